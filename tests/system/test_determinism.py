"""What the table of determinism promises for a CPU, tried."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import read_records, save_many

from reshift.inference.model import Model, load_model
from reshift.inference.score import score
from reshift.system.determinism import BITS, determinism_table
from reshift.training.run import resolve, train_run

FROZEN = Path(__file__).parents[1] / "frozen" / "dmd" / "bundle"
LAYER: dict[str, Any] = {
    "data": {"size": 32},
    "calibrate": {"features": "off"},
    "train": {"batch": 4, "device": "cpu"},
    "model": {"widths": [4, 8], "epochs": 3},
}


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(FROZEN, "cpu")


def test_the_table_has_every_row_once() -> None:
    rows = determinism_table()
    assert len({row["changed"] for row in rows}) == len(rows) >= 8
    root = Path(__file__).parents[2]
    for row in rows:
        named = [word.strip(",") for word in row["checked_by"].split() if word.startswith("tests/")]
        assert all((root / name).exists() for name in named)
        assert named or BITS not in row["training"] + row["scoring"]  # nothing is promised to the bit without a test


def test_the_same_training_again(folder_of_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHIFT_WORKERS", "0")
    config = resolve("dae", "quick", [LAYER, {"train": {"cache": "off"}}])
    first = train_run(config, folder_of_images, tmp_path / "a")
    again = train_run(config, folder_of_images, tmp_path / "b")
    assert (first / "model.safetensors").read_bytes() == (again / "model.safetensors").read_bytes()


def test_order_and_number_of_images(model: Model, folder_of_images: Path) -> None:
    paths = sorted(folder_of_images.iterdir())[:5]
    alone = [model.predict(path)[0] for path in paths]
    for order in (paths, paths[::-1]):
        together = dict(zip(order, model.predict(order), strict=True))
        for path, one in zip(paths, alone, strict=True):
            assert together[path].score == one.score
            np.testing.assert_array_equal(together[path].heatmap, one.heatmap)


def test_workers_that_read(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = save_many(tmp_path / "in", 4)
    for count in ("0", "1"):
        monkeypatch.setenv("RESHIFT_WORKERS", count)
        score(model, [images], tmp_path / count)
    assert read_records(tmp_path / "0") == read_records(tmp_path / "1")
    for path in (tmp_path / "0" / "maps").rglob("*.npy"):
        assert path.read_bytes() == (tmp_path / "1" / path.relative_to(tmp_path / "0")).read_bytes()


def test_number_of_threads(model: Model, folder_of_images: Path) -> None:
    paths, before, found = sorted(folder_of_images.iterdir())[:3], torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append([(one.score, float(one.heatmap.max()), float(one.heatmap.mean())) for one in model.predict(paths)])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-5)
