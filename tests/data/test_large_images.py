"""Large images: the limit is a setting, pixels stay narrow, and working in strips changes no bit."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from dicom_files import grey, values, write
from helpers import Cli, noise, save, save_many

from reshift.config import DataConfig
from reshift.data import image, prepare
from reshift.data.image import Image, percentiles
from reshift.data.read import read_image
from reshift.errors import UserError
from reshift.inference import overlay

PEAK = """
import resource, sys
from pathlib import Path
from reshift.config import DataConfig
from reshift.data.prepare import prepare
from reshift.data.read import read_image
read = lambda path: prepare(read_image(Path(path)), DataConfig())
read(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read(sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("square", ["crop", "pad"])
@pytest.mark.parametrize("shape", [(61, 97, 3), (97, 61, 1), (40, 40, 1)])
def test_strips_change_no_bit(channels: int, square: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    config = DataConfig(size=32, channels=channels, square=square)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    wide = Image(pixels.astype(np.float32), 8, Path("a"))
    whole = prepare.prepare(wide, config)
    heatmap = np.random.default_rng(1).random(shape[:2], dtype=np.float32)
    shown = overlay.overlay(wide.pixels, heatmap, 0.5, 1.0)
    for module in (image, prepare, overlay):
        monkeypatch.setattr(module, "BLOCK", 300)
    narrow = prepare.prepare(Image(pixels, 8, Path("a")), config)
    np.testing.assert_array_equal(narrow.pixels, whole.pixels)
    np.testing.assert_array_equal(overlay.overlay(pixels, heatmap, 0.5, 1.0), shown)
    np.testing.assert_array_equal(percentiles(pixels, (0.5, 99.5)), np.percentile(wide.pixels, (0.5, 99.5)))


def test_a_large_image_takes_little_more_than_its_pixels(tmp_path: Path) -> None:
    """Decoding takes 4 bytes a pixel in Pillow and 3 as an array; it took 40 before pixels stayed narrow."""
    side = 2500
    colour = np.repeat(np.repeat(np.random.default_rng(0).integers(0, 256, (50, 50, 3), np.uint8), 50, 0), 50, 1)
    small, large = save(noise(), tmp_path / "small.png"), save(colour, tmp_path / "large.png")
    done = subprocess.run([sys.executable, "-c", PEAK, small, large], capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < 20 * side**2


def test_the_limit_is_a_setting(tmp_path: Path, run_cli: Cli) -> None:
    path = save(noise(0, 40, 40), tmp_path / "a.png")
    assert read_image(path, None, 1600).pixels.shape == (40, 40, 1)
    with pytest.raises(UserError, match=r"40×40 pixels, over the limit of 1,599 pixels; .* or raise data.max_pixels"):
        read_image(path, None, 1599)
    slide = write(grey(values()), tmp_path / "a.dcm")
    with pytest.raises(UserError, match=r"24×20, over the limit of 479 pixels; .* or raise data.max_pixels"):
        read_image(slide, None, 479)
    images = save_many(tmp_path / "images", 8, 40, 40)
    settings = [("--set", line) for line in ("data.size=32", "calibrate.features=off", "data.max_pixels=1024")]
    args = ("train", "--data", images, "--out", tmp_path / "run", "--method", "brightness")
    refused = run_cli(*args, *(word for pair in settings for word in pair))
    assert "over the limit of 1,024 pixels" in refused.err
