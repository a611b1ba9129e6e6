"""Images with less tissue than any normal are not judged: scoring, volumes and evaluation agree on what that means."""

import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from helpers import Cli, read_records, save, write_manifest
from numpy.typing import NDArray
from torch import Tensor
from volumes import canonical_affine, save_nifti, stored

from reshift.inference.model import load_model
from reshift.inference.tissue import has_empty_border, smallest_tissue
from reshift.methods.detector import Prediction
from reshift.methods.trivial import Brightness
from reshift.training.run import resolve, train_run

SIDE = 48
SMALLEST = 10  # radius of the smallest normal


class Edges(Brightness):
    """Small discs light up: the smaller the image's disc, the higher score and map."""

    def forward(self, x: Tensor) -> Prediction:
        inside = (x > -0.8).float()
        heatmap = (inside / (0.01 + inside.mean((1, 2, 3), keepdim=True)))[:, 0]
        return Prediction(heatmap.flatten(1).amax(1), heatmap)

    def rescore(self, score: Tensor, before: Tensor, after: Tensor) -> Tensor:
        del score, before
        return after.flatten(1).amax(1)


def disc(radius: float, grey: int = 200) -> NDArray[np.uint8]:
    """A disc in an empty background; a bright corner pixel keeps the grey scale the same for all."""
    y, x = np.mgrid[:SIDE, :SIDE] - SIDE / 2 + 0.5
    pixels = np.where(y**2 + x**2 <= radius**2, grey, 0).astype(np.uint8)
    pixels[SIDE // 2, SIDE // 2] = 255
    return pixels


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("discs")
    for i in range(24):
        save(disc(SMALLEST + i / 2), folder / f"{i}.png")
    layer = {"data": {"size": SIDE, "min_foreground": 0.0, "consensus": 1.0}, "calibrate": {"features": "off"}}
    return train_run(resolve("test_tissue:Edges", "paper", [layer]), folder, folder / "run")


def calibrated(bundle: Path) -> Any:
    return load_model(bundle, "cpu").bundle.calibration


def test_the_rule_comes_from_the_normals(bundle: Path, tiny_bundle: Path) -> None:
    calibration = calibrated(bundle)
    assert calibration.smallest_tissue == pytest.approx(np.pi * SMALLEST**2 / SIDE**2, rel=0.05)
    assert calibrated(tiny_bundle).smallest_tissue is None  # noise up to the border: its area says nothing
    assert has_empty_border((disc(10)[None] / 127.5 - 1.0).astype(np.float32))
    assert not has_empty_border(np.zeros((1, 8, 8), np.float32))
    assert smallest_tissue([], []) is None
    assert smallest_tissue([0.3, 0.2], [True, False]) is None


def test_a_single_image(bundle: Path) -> None:
    model, calibration = load_model(bundle, "cpu"), calibrated(bundle)
    tiny, usual, large = model.predict([disc(4), disc(SMALLEST), disc(20)])
    assert tiny.not_judged == (
        f"too little tissue: {np.mean(disc(4) > 25):.1%} of the image, normals have at least "
        f"{calibration.smallest_tissue:.1%}; its score was {1 / (0.01 + np.mean(disc(4) > 25)):.6g}"
    )
    assert (tiny.flag, tiny.score) == (False, calibration.reference.image_threshold)
    assert tiny.p_value == calibration.p_value(tiny.score)
    assert (tiny.heatmap == 0.0).all()
    assert (usual.not_judged, large.not_judged) == (None, None)
    assert usual.heatmap.max() > 0.0


def ball(path: Path) -> Path:
    """A volume whose slices grow from nothing and shrink again."""
    radii = [3, 6, 9, 12, 15, 17, 15, 12, 9, 6, 3]
    array = np.stack([disc(radius) for radius in radii]).astype(np.float32)
    affine = canonical_affine(array.shape, (2.0, 2.0, 2.0))
    return save_nifti(path, *stored(array, ((2, 1, 0), (False, False, False)), affine))


def test_the_ends_of_a_volume_are_not_judged(run_cli: Cli, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHIFT_METHODS", "test_tissue")
    source = ball(tmp_path / "ball.nii")
    done = run_cli("score", bundle, source, "--out", tmp_path / "out", "--device", "cpu")
    assert done.code == 0, (tmp_path / "out" / "scores.jsonl").read_text()[-600:]
    *slices, whole = read_records(tmp_path / "out")
    judged = [record["not_judged"] is None for record in slices]
    assert judged == [False] * 3 + [True] * 5 + [False] * 3
    assert not any(record["flag"] for record in slices if record["not_judged"])
    highest = sorted((record["score"] for record in slices if record["not_judged"] is None), reverse=True)[:5]
    assert whole["score"] == pytest.approx(np.mean(highest))
    assert whole["not_judged"] is None
    loaded: Any = nibabel.load(tmp_path / "out" / "maps" / "ball.nii.gz")
    heat = loaded.get_fdata(dtype=np.float32)
    assert [bool((heat[:, :, k] > 0.0).any()) for k in range(len(judged))] == judged
    # Neighbours of the ends are averaged with judged slices only: the hot ends do not reach them.
    alone = load_model(bundle, "cpu").predict([disc(radius) for radius in (12, 15, 17)])
    assert max(record["score"] for record in slices) <= max(result.score for result in alone) + 1e-4


def test_evaluation_counts_them_as_not_flagged(
    bundle: Path, tmp_path: Path, run_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESHIFT_METHODS", "test_tissue")
    rows = []
    for i, radius in enumerate((3, 4, 5, 15, 20)):
        save(disc(radius), tmp_path / f"{i}.png")
        save(disc(2) > 100, tmp_path / f"mask{i}.png")
        rows.append(f"{i}.png,{f'mask{i}.png' if i == 0 else ''},s{i},{int(i == 0)},test,")
    data = write_manifest(tmp_path, *rows)
    done = run_cli("evaluate", bundle, "--data", data, "--out", tmp_path / "out", "--device", "cpu")
    assert done.code == 0, done.err
    assert "3 test image(s) have too little tissue to be judged; they count as not flagged" in done.err
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    cases = [json.loads(line) for line in (tmp_path / "out" / "cases.jsonl").read_text().splitlines()]
    assert [case["not_judged"] is not None for case in cases] == [True, True, True, False, False]
    assert [case["flag"] for case in cases] == [False] * 5
    assert (metrics["image"]["fpr"], metrics["image"]["tpr"], metrics["pixel"]["dice"]) == (0.0, 0.0, 0.0)
