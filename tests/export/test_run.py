"""run.py does what ``reshift score`` does: it prepares images to the bit, judges scores alike, and needs no torch."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from helpers import save

from reshift.config import DataConfig
from reshift.data.prepare import prepare
from reshift.data.read import read_image
from reshift.errors import UserError
from reshift.export.folder import preparation, script
from reshift.inference.calibration import Calibration, Reference
from reshift.inference.exported import run


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Every kind of file that Pillow decodes in its own way."""
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)

    def grey(high: int, dtype: Any, height: int = 50, width: int = 70) -> Any:
        return rng.integers(0, high, (height, width)).astype(dtype)

    colours = rng.integers(0, 256, (60, 50, 4)).astype(np.uint8)
    palette = folder / "palette.png"
    PIL.Image.fromarray(colours[..., :3]).quantize(16).save(palette)
    return [
        palette,
        save(grey(256, np.uint8), folder / "grey.png"), save(colours[..., :3], folder / "colour.png"),
        save(colours[..., :3], folder / "colour.jpg"), save(grey(256, np.uint8, 64, 64), folder / "square.jpg"),
        save(grey(4000, np.uint16), folder / "wide.png"), save(grey(4000, np.uint16, 90, 40), folder / "wide.tif"),
        save(rng.normal(size=(60, 44)).astype(np.float32), folder / "float.tif"),
        save(grey(99999, np.int32), folder / "long.tif"),
        save(grey(200, np.float32), folder / "whole.tif"), save(colours, folder / "alpha.png"),
        save(colours[..., :2], folder / "grey-alpha.png"), save(grey(2, np.bool_), folder / "bits.png"),
        save(grey(256, np.uint8), folder / "hole.png", transparency=7),
        save(grey(256, np.uint8, 2200, 1000), folder / "large.png"),
        save(np.full((40, 40), 7, np.uint8), folder / "empty.png"), save(grey(256, np.uint8, 9, 40), folder / "small.png"),
    ]  # fmt: skip


def attempt(work: Any) -> Any:
    try:
        return work()
    except (UserError, ValueError):
        return None


@pytest.mark.parametrize("scale", ["auto", "bits", "percentile"])
def test_images_are_prepared_to_the_bit(scale: Any, files: list[Path]) -> None:
    compared = 0
    for level, square, channels, path in itertools.product(("none", "median"), ("crop", "pad"), (1, 3), files):
        if path.name == "large.png" and (level, channels) != ("none", 1):
            continue  # once is enough: it is read in strips
        config = DataConfig(size=64, scale=scale, level=level, square=square, channels=channels)
        settings = preparation(config)
        expected = attempt(lambda path=path, config=config: prepare(read_image(path), config).pixels)
        found = attempt(lambda path=path, settings=settings: run.prepare(*run.read_image(path, settings), settings))
        assert (found is None) == (expected is None), path
        if expected is not None:
            assert found.dtype == expected.dtype
            assert np.array_equal(found, expected), (path, level, square, channels)
            compared += 1
    assert compared > 80


def test_scores_are_judged_alike() -> None:
    scores, owners = (0.1, 0.2, 0.2, 0.5, 0.9), (0, 1, 1, 2, 2)
    held = Reference(images=5, image_threshold=0.5, pixel_threshold=1.0, scores=scores, owners=owners)
    other = Reference(images=5, image_threshold=0.7, pixel_threshold=1.0, scores=scores)
    settings, image = preparation(DataConfig()), np.ones((1, 8, 8), np.float32)
    for default, known in itertools.product(("held-out", "training"), ((held, other), (None, other), (held, None))):
        calibration = Calibration(
            image_quantile=0.95, pixel_quantile=0.99, default=default, held_out=known[0], training=known[1], smallest_tissue=0.25
        )
        values = calibration.model_dump(mode="json")
        for score in (0.0, 0.2, 0.5, 0.6, 0.9, 2.0):
            expected = {
                "score": score,
                "p_value": calibration.p_value(score),
                "flag": score > calibration.reference.image_threshold,
            }
            assert run.judge(score, image, values, settings) == pytest.approx(expected)
        assert run.judge(9.0, -image, values, settings)["flag"] is False  # too little tissue to be judged


def test_the_script_is_short_and_loads_its_own_format() -> None:
    for suffix, package in {".onnx": "onnxruntime", ".xml": "openvino", ".pt2": "torch"}.items():
        text = script(suffix)
        assert len(text.splitlines()) < 120
        compile(text, "run.py", "exec")
        assert f"    import {package}\n" in text
        assert text.count("def load_runner(") == 1
        assert "import reshift" not in text
        assert "from reshift" not in text
