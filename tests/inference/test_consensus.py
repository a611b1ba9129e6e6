"""Slices of a stack agree: the average itself, and that scoring, evaluation and thresholds all use it, or nothing at all."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from helpers import BRIGHTNESS, Cli, Outcome, noise, read_records, refused, save, write_manifest
from numpy.typing import NDArray
from torch import Tensor
from volumes import SPACING, canonical_affine, head, save_nifti, stored

from reshift.data.cases import Case, expand_volumes
from reshift.data.manifest import load_cases
from reshift.data.nifti import read_nifti
from reshift.data.prepare import prepare, restore
from reshift.evaluation.evaluate import evaluate
from reshift.inference.calibrate import _sample, calibrate_bundle
from reshift.inference.consensus import smooth as smooth_stack
from reshift.inference.consensus import stacks, together
from reshift.inference.model import Model, load_model
from reshift.inference.stream import Sample
from reshift.methods.detector import Prediction
from reshift.methods.trivial import Brightness
from reshift.training.run import resolve, train_run

Maps = NDArray[np.float32]
ORIENTATION = ((2, 0, 1), (False, True, False))  # slices are the second axis, and run downwards
SMALL = {
    "data": {"size": 32, "holdout": 0.5},
    "train": {"batch": 8, "device": "cpu"},
    "calibrate": {"features": "off"},
    "model": {
        "steps": 4,
        "folds": 1,
        "witnesses": ["plain"],
        "widths": [8, 8, 8, 8],
        "features": "off",
        "sources": ["offset", "swap"],
        "top": 0.05,
    },
}


class Grey(Brightness):
    """A map that is the grey value, and a score that is its mean."""

    def forward(self, x: Tensor) -> Prediction:
        heatmap = super().forward(x).heatmap
        return Prediction(heatmap.flatten(1).mean(1), heatmap)

    def rescore(self, score: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """By the change of the mean alone, as a method does whose score has other parts."""
        return score + (after - before).flatten(1).mean(1)


def slow(maps: Maps, positions: Sequence[float], sigma: float) -> NDArray[np.float64]:
    """The definition, pixel by pixel."""
    out = np.zeros(maps.shape)
    for (i, row, column), own in np.ndenumerate(maps):
        total = weight = 0.0
        for other, at in zip(maps, positions, strict=True):
            distance = abs(at - positions[i])
            if distance <= 3.0 * sigma:
                total += math.exp(-(distance**2) / (2.0 * sigma**2)) * float(other[row, column])
                weight += math.exp(-(distance**2) / (2.0 * sigma**2))
        out[i, row, column] = total / weight if own != 0.0 else 0.0
    return out


def smooth(maps: Maps, positions: Sequence[float], sigma: float) -> Maps:
    """Of maps in any order."""
    order = np.argsort(positions, kind="stable")
    found = [m for m in smooth_stack(((positions[i], maps[i]) for i in order), sigma) if m is not None]
    return np.stack(found)[np.argsort(order)]


def some_maps(count: int) -> Maps:
    maps = np.random.default_rng(0).random((count, 5, 5), dtype=np.float32)
    maps[:, 0] = 0.0
    maps[::2, 1] = 0.0  # anatomy that begins in the next slice
    return maps


@pytest.mark.parametrize("sigma", [0.4, 1.0, 2.5])
@pytest.mark.parametrize("positions", [[0, 1, 2, 3, 4, 5], [7, 3, 4, 20, 5, 9], [0.5, -1.25, 3.0, 2.0, 40.0, 0.0]])
def test_it_is_the_weighted_mean_of_the_neighbours(positions: list[float], sigma: float) -> None:
    maps = some_maps(6)
    found = smooth(maps, positions, sigma)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, slow(maps, positions, sigma), rtol=1e-6)
    assert ((found == 0.0) == (maps == 0.0)).all()


def test_what_is_far_away_has_no_say() -> None:
    maps = some_maps(3)
    found = smooth(maps, [0, 3, 7], 1.0)
    np.testing.assert_array_equal(found[2], maps[2])  # nobody is near
    changed = maps.copy()
    changed[2] += 1.0
    np.testing.assert_array_equal(smooth(changed, [0, 3, 7], 1.0)[:2], found[:2])
    assert not np.array_equal(found[0], maps[0])


def test_stacks_of_slices_and_of_pictures() -> None:
    def case(name: str, subject: str, **more: Any) -> Case:
        return Case(name, Path(name.partition("#")[0]), None, subject, 0, "train", "", **more)

    pictures = [case("a", "s", position=2.0), case("b", "t", position=2.0), case("c", "s"), case("d", "s", position=1.0)]
    cases = [*pictures, *(case(f"{v}#{k}", "s", slice=k) for v in "xy" for k in (4, 5))]
    assert stacks(cases) == [[0, 3], [1], [2], [4, 5], [6, 7]]
    assert [c.name for c in together(cases)] == ["d", "a", "b", "c", "x#4", "x#5", "y#4", "y#5"]


def heads(folder: Path, count: int, split: str, spacing: tuple[float, float, float] = SPACING) -> list[str]:
    """Manifest rows of volumes that are exactly black outside the head."""
    rows, affine = [], canonical_affine(spacing=spacing)
    for seed in range(count):
        array = head(seed)
        save_nifti(folder / f"{split}{seed}.nii", *stored(np.where(array < 120.0, 0.0, array), ORIENTATION, affine))
        rows.append(f"{split}{seed}.nii,,{split}{seed},0,{split},")
    return rows


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Two volumes to learn from and one to test on, and a bundle without and one with consensus."""
    folder = tmp_path_factory.mktemp("volumes")
    write_manifest(folder, *heads(folder, 2, "train"), *heads(folder, 1, "test"))

    def bundle(sigma: float) -> Path:
        config = resolve("reshift", "quick", [SMALL, {"data": {"consensus": sigma}}])
        return train_run(config, folder, folder / f"run{sigma}")

    return folder, bundle(0.0), bundle(1.0)


def expected(plain: Path, volume: Path) -> dict[int, tuple[float, Maps]]:
    """The score and the map of every slice, along the file's own axis, from a model that knows no consensus."""
    model, scan = load_model(plain, "cpu"), read_nifti(volume)
    chosen = scan.foreground_slices(0.1)
    inputs = [prepare(scan.image(k), model.bundle.config.data) for k in chosen]
    alone = [model.launch(item.pixels[None])() for item in inputs]
    before = np.concatenate([heatmaps for _, heatmaps in alone])
    maps = smooth(before, chosen, 1.0)
    assert (maps == 0.0).any()
    scores = model.rescore([score for [score], _ in alone], before, maps)
    assert scores != [score for [score], _ in alone]
    found = zip(chosen, scores, maps, inputs, strict=True)
    return {scan.native_index(k): (score, restore(heatmap, item.geometry)) for k, score, heatmap, item in found}


def test_scoring_a_volume(run_cli: Cli, volumes: tuple[Path, Path, Path], tmp_path: Path) -> None:
    folder, plain, agreeing = volumes
    assert load_model(plain).bundle.fingerprint == load_model(agreeing).bundle.fingerprint
    done = run_cli("score", agreeing, folder / "test0.nii", "--out", tmp_path, "--device", "cpu")
    assert done.code == 0
    assert "data.consensus = 1" in done.err
    *slices, _ = read_records(tmp_path)
    wanted = expected(plain, folder / "test0.nii")
    assert [record["slice"] for record in slices] == sorted(wanted)
    loaded: Any = nibabel.load(tmp_path / "maps" / "test0.nii.gz")
    values = loaded.get_fdata(dtype=np.float32)
    for record in slices:
        score, heatmap = wanted[record["slice"]]
        assert record["score"] == pytest.approx(score, rel=1e-6)
        np.testing.assert_allclose(values[:, record["slice"], :], heatmap.T, rtol=1e-6)
    alone = tmp_path / "alone"
    assert run_cli("score", plain, folder / "test0.nii", "--out", alone, "--device", "cpu").code == 0
    assert max(abs(a["score"] - b["score"]) for a, b in zip(read_records(alone)[:-1], slices, strict=True)) > 1e-3


def test_evaluation_and_thresholds_agree_too(volumes: tuple[Path, Path, Path], tmp_path: Path) -> None:
    folder, plain, agreeing = volumes
    seen = run_evaluation(load_model(agreeing, "cpu"), folder, tmp_path)
    wanted = {f"test0.nii#{at}": score for at, (score, _) in expected(plain, folder / "test0.nii").items()}
    assert {name: item.score for name, item in seen.items()} == pytest.approx(wanted, rel=1e-6)
    calibration = load_model(agreeing).bundle.calibration
    assert calibration is not None
    assert calibration.held_out is not None
    assert calibration.training is not None
    references = [calibration.held_out.scores, calibration.training.scores]
    each = [sorted(score for score, _ in expected(plain, folder / f"train{i}.nii").values()) for i in range(2)]
    assert sorted(references) == [pytest.approx(scores, rel=1e-6) for scores in sorted(tuple(scores) for scores in each)]


def run_evaluation(model: Model, data: Path, out: Path) -> dict[str, Sample[Case]]:
    seen = dict[str, Sample[Case]]()

    def keep(item: Sample[Case]) -> None:
        seen[item.case.name] = item

    evaluate(model, [case for case in load_cases(data) if case.split == "test"], out, "test", on_case=keep, keep_arrays=False)
    return seen


def pictures(folder: Path) -> Path:
    """Subjects that take turns, with gaps, and test pictures without a position among them."""
    rows = []
    for i in range(24):
        save(noise(i), folder / f"{i}.png")
        split, position = ("train", str(i)) if i < 12 else ("test", "" if i % 5 == 0 else str(30 - i))
        rows.append(f"{i}.png,{split}{i % 3},{split},{position}")
    return write_manifest(folder, *rows, header="image,subject,split,position")


def grey(folder: Path, out: Path, **data: Any) -> Path:
    layer = {"data": {"size": 32, "holdout": 0.0, **data}, "calibrate": {"features": "off"}}
    return train_run(resolve("test_consensus:Grey", "paper", [layer]), folder, out)


def test_pictures_with_a_position(tmp_path: Path) -> None:
    data = pictures(tmp_path)
    models = [load_model(grey(data, tmp_path / f"run{sigma}", consensus=sigma), "cpu") for sigma in (0.0, 2.5)]
    alone, agreed = (run_evaluation(model, data, tmp_path / f"out{i}") for i, model in enumerate(models))
    assert set(alone) == set(agreed)
    for name, item in agreed.items():
        others = [
            other for other in alone.values() if other.case.subject == item.case.subject and other.case.position is not None
        ]
        if item.case.position is None:
            np.testing.assert_array_equal(item.heatmap, alone[name].heatmap)
            assert item.score == alone[name].score
            continue
        at = [float(other.case.position or 0.0) for other in others]
        wanted = smooth(np.stack([other.heatmap for other in others]), at, 2.5)[at.index(item.case.position)]
        np.testing.assert_array_equal(item.heatmap, wanted)
        assert not np.array_equal(wanted, alone[name].heatmap)
        assert item.score == pytest.approx(float(wanted.mean()), rel=1e-5)
        np.testing.assert_array_equal(item.prepared.pixels, alone[name].prepared.pixels)
    spreads = [np.std(model.bundle.calibration.training.scores) for model in models if model.bundle.calibration
               and model.bundle.calibration.training]  # fmt: skip
    assert spreads[1] < spreads[0]
    redone = calibrate_bundle(tmp_path / "run2.5" / "bundle", data, "cpu")
    assert redone.held_out is not None
    assert redone.training is not None
    assert redone.held_out.scores == redone.training.scores


def test_thin_slices_are_averaged_over_the_same_millimetres(tmp_path: Path) -> None:
    """Half as far apart, slices count half: as many millimetres agree as in the volumes that set the thresholds."""
    thin = (SPACING[0] / 2, *SPACING[1:])
    write_manifest(tmp_path, *heads(tmp_path, 2, "train"), *heads(tmp_path, 1, "test", thin))
    models = [load_model(grey(tmp_path, tmp_path / f"run{sigma}", consensus=sigma), "cpu") for sigma in (0.0, 1.0)]
    assert [model.bundle.config.data.slice_mm for model in models] == [0.0, pytest.approx(SPACING[0])]
    alone, agreed = (run_evaluation(model, tmp_path, tmp_path / f"out{i}") for i, model in enumerate(models))
    maps = np.stack([item.heatmap for item in alone.values()])
    at = [float(item.case.slice or 0) for item in alone.values()]
    for name, wanted, by_slices in zip(alone, smooth(maps, [k / 2 for k in at], 1.0), smooth(maps, at, 1.0), strict=True):
        np.testing.assert_allclose(agreed[name].heatmap, wanted, rtol=1e-5, atol=1e-7)
        assert not np.allclose(wanted, by_slices, rtol=1e-3)


def test_a_failed_slice_does_not_part_its_stack() -> None:
    maps = some_maps(3)
    found = list(smooth_stack([(0.0, maps[0]), (0.0, None), (1.0, maps[1]), (2.0, maps[2])], 1.0))
    assert found[1] is None
    kept = [one for one in found if one is not None]
    np.testing.assert_array_equal(np.stack(kept), smooth(maps, [0, 1, 2], 1.0))


def test_a_sample_of_normals_has_whole_stacks(volumes: tuple[Path, Path, Path]) -> None:
    folder, plain, agreeing = volumes
    model = load_model(agreeing, "cpu")
    cases = expand_volumes([case for case in load_cases(folder) if case.split == "train"], model.bundle.config.data)
    sizes = {len(stack) for stack in stacks(cases)}
    for most in (1, max(sizes) + 1, len(cases) - 1):
        chosen = _sample(model, cases, most)
        assert len(stacks(chosen)) == 1
        assert chosen == [case for case in cases if case.image == chosen[0].image]
    assert _sample(model, cases, len(cases)) == cases
    assert len(_sample(load_model(plain, "cpu"), cases, 5)) == 5


def test_a_method_that_cannot_score_a_map(run_cli: Cli, folder_of_images: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    def train(sigma: str) -> Outcome:
        setting = f"data.consensus={sigma}"
        return run_cli("train", "--data", folder_of_images, "--out", tmp_path / "run", *BRIGHTNESS, "--set", setting)

    refused(train("1"), "data.consensus = 1", "method 'brightness'", "rescore", "set data.consensus=0")
    refused(train("-1"), "data.consensus", "greater than or equal to 0")
    refused(train("inf"), "data.consensus", "finite")
    refused(train("on"), "'data.consensus' = 'on'", "number")
    assert not (tmp_path / "run").exists()
    about = json.loads((tiny_bundle / "config.json").read_text())
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    for name in ("model.safetensors", "calibration.json"):
        (bundle / name).write_bytes((tiny_bundle / name).read_bytes())
    about["config"]["data"]["consensus"] = 0.5
    (bundle / "config.json").write_text(json.dumps(about))
    refused(run_cli("score", bundle, folder_of_images, "--out", tmp_path / "out"), "data.consensus = 0.5", "method 'brightness'")
    assert not (tmp_path / "out").exists()
