"""WMH without its skull: masks of HD-BET and SynthStrip are found by name, and without masks every result carries a caveat."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dataset_trees as trees
import nibabel
import numpy as np
import pytest
from helpers import Cli, refused
from numpy.typing import NDArray
from PIL import Image

from reshift.bench.compute import run_task
from reshift.bench.plan import group_tasks, plan
from reshift.bench.suite import load_suite
from reshift.data.manifest import load_cases

SIZE = 48
PHILIPS = "Amsterdam/Philips_VU .PETMR_01./160"
CASES = ("Utrecht/1", "Utrecht/11", PHILIPS)


def with_skull(root: Path) -> Path:
    """The cases with a bright ring around the brain."""
    trees.wmh(root, CASES)
    for path in root.rglob("FLAIR.nii.gz"):
        image: Any = nibabel.load(path)
        x, y, z = (np.arange(n) - (n - 1) / 2 for n in image.shape)
        radius = (x[:, None, None] * 5.5 / 88) ** 2 + (y[None, :, None] * 5 / 100) ** 2 + (z[None, None, :] * 3 / 75) ** 2
        values = np.where((radius > 0.8) & (radius < 1.0), 700, np.asarray(image.dataobj)).astype(np.int16)
        nibabel.save(nibabel.Nifti1Image(values, image.affine), path)
    return root


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_skull(tmp_path_factory.mktemp("wmh"))


def brain(source: Path, case: str, change: Callable[[NDArray[Any]], NDArray[Any]] = lambda mask: mask) -> Any:
    """The brain mask of a case; it leaves out the ring."""
    image: Any = nibabel.load(source / "dataverse_files/test" / case / "pre/FLAIR.nii.gz")
    shape, zoom = (40, 44, 48), (5.5, 5.0, 3.0)
    x, y, z = trees.positions(shape, zoom)
    inside = (x / 70) ** 2 + (y / 85) ** 2 + (z / 65) ** 2 < 1  # symmetric, so the file's axes do not matter
    return nibabel.Nifti1Image(change(inside.astype(np.uint8)), image.affine)


def write(path: Path, mask: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(mask, path)
    return path


LAYOUTS = {
    "HD-BET beside a copy of the tree": lambda case: f"test/{case}/pre/FLAIR_bet_mask.nii.gz",
    "HD-BET on a folder": lambda case: f"{case.replace('/', '_')}_mask.nii.gz",
    "HD-BET 2": lambda case: f"{case.replace('/', '-')}_FLAIR_bet.nii.gz",
    "SynthStrip, a folder for each case": lambda case: f"{case.replace('/', '-')}/mask.nii.gz",
    "SynthStrip, named by its user": lambda case: f"out/test_{case.replace('/', '_')}_synthstrip_mask.nii",
    "SynthStrip, brainmask": lambda case: f"test/{case}/brainmask.nii.gz",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_masks_are_found_and_the_skull_is_gone(run_cli: Cli, whole: Path, tmp_path: Path, layout: str) -> None:
    masks, out = tmp_path / "masks", tmp_path / "out"
    for case in CASES:
        write(masks / LAYOUTS[layout](case), brain(whole, case))
    done = run_cli("prepare", "wmh", "--source", whole, "--out", out, "--size", SIZE, "--brain-masks", masks)
    assert done.code == 0, done.err
    assert "skull" not in done.err
    facts = json.loads((out / "dataset.json").read_text())
    assert (facts["caveat"], facts["settings"]["brain_masks"]) == (None, True)
    assert str(tmp_path) not in (out / "dataset.json").read_text() + (out / "subjects.jsonl").read_text()
    assert run_cli("prepare", "wmh", "--source", whole, "--out", tmp_path / "skull", "--size", SIZE).code == 0
    for image in (found.image for found in load_cases(out)):
        pixels = np.asarray(Image.open(image))
        assert (pixels[[0, -1]].max(), pixels[:, [0, -1]].max()) == (0, 0)
        other = tmp_path / "skull/images" / image.name
        if other.exists():  # without the skull, other slices have enough foreground
            assert np.count_nonzero(np.asarray(Image.open(other))) > np.count_nonzero(pixels)


def test_the_mask_beside_the_image_of_the_same_stage_wins(run_cli: Cli, whole: Path, tmp_path: Path) -> None:
    for case in CASES:
        write(tmp_path / "masks" / case / "pre/FLAIR_bet_mask.nii.gz", brain(whole, case))
        write(tmp_path / "masks" / case / "orig/FLAIR_bet_mask.nii.gz", brain(whole, case, np.zeros_like))
        write(tmp_path / "masks" / case / "pre/FLAIR_bet.nii.gz", brain(whole, case))  # HD-BET 1 leaves the stripped image so
    done = run_cli("prepare", "wmh", "--source", whole, "--out", tmp_path / "out", "--brain-masks", tmp_path / "masks")
    assert done.code == 0, done.err
    assert "6 files of --brain-masks are not used" in done.err


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda mask: mask[:-3], "they must be the same grid"),
        (lambda mask: mask * np.arange(40, dtype=np.uint8)[:, None, None], "grey values; a mask holds 0 and one other"),
        (np.zeros_like, "the mask is empty"),
        (None, "--brain-masks has no mask of it"),
    ],
)
def test_a_case_whose_mask_is_wrong_is_refused_alone(
    run_cli: Cli, whole: Path, tmp_path: Path, change: Any, complaint: str
) -> None:
    for case in CASES:
        if case != "Utrecht/1" or change is not None:
            mask = brain(whole, case, change if case == "Utrecht/1" else lambda mask: mask)
            write(tmp_path / "masks" / case / "mask.nii.gz", mask)
    done = run_cli(
        "prepare", "wmh", "--source", whole, "--out", tmp_path / "out", "--size", SIZE, "--brain-masks", tmp_path / "masks"
    )
    assert done.code == 3
    [line] = json.loads((tmp_path / "out/dataset.json").read_text())["skipped"]
    assert complaint in line
    assert "Utrecht/1/" in line
    assert str(tmp_path) not in line
    assert {case.subject for case in load_cases(tmp_path / "out")} == {"Utrecht-11", "Amsterdam-Philips_VU-.PETMR_01-160"}


def test_mistakes_are_one_line(run_cli: Cli, whole: Path, tmp_path: Path) -> None:
    command = ("prepare", "wmh", "--source", whole, "--out", tmp_path / "out", "--brain-masks")
    refused(run_cli(*command, tmp_path / "none"), "--brain-masks", "no such folder")
    (tmp_path / "empty").mkdir()
    refused(run_cli(*command, tmp_path / "empty"), "holds no *_mask.nii.gz")
    refused(
        run_cli("prepare", "busi", "--source", whole, "--out", tmp_path / "out", "--brain-masks", whole),
        "is for wmh, not for busi",
    )


def test_without_masks_every_result_carries_a_caveat(run_cli: Cli, whole: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    done = run_cli("prepare", "wmh", "--source", whole, "--out", data, "--size", SIZE)
    assert done.code == 0
    assert "warning: the skull is on these images" in done.err
    caveat = json.loads((data / "dataset.json").read_text())["caveat"]
    assert "--brain-masks" in caveat
    flair = tmp_path / "flair"
    assert (
        run_cli("prepare", "brats2021", "--source", trees.brats(tmp_path / "brats", 5), "--out", flair, "--size", SIZE).code == 0
    )
    suite = tmp_path / "suite.toml"
    suite.write_text(SUITE)
    dry = run_cli("bench", suite, "--data", tmp_path, "--out", tmp_path / "bench", "--dry-run")
    assert f"caveat of wmh: {caveat}" in dry.out
    assert "caveat of flair" not in dry.out
    for task in group_tasks(plan(load_suite(suite), tmp_path, tmp_path / "bench").specs, tmp_path / "bench"):
        run_task(task, "cpu")
    assert run_cli("bench", suite, "--data", tmp_path, "--out", tmp_path / "bench").code == 0
    cells = [json.loads(path.read_text()) for path in (tmp_path / "bench/cells").glob("*.json")]
    assert {cell["dataset"]: cell["data_caveat"] for cell in cells} == {"flair": None, "wmh": caveat}
    assert [caveat in cell["metrics"]["warnings"] for cell in cells] == [cell["dataset"] == "wmh" for cell in cells]
    assert f"wmh: {caveat}" in (tmp_path / "bench/tables.md").read_text()
    model = next((tmp_path / "bench/models").glob("*/bundle"))
    shown = run_cli("evaluate", model, "--data", data, "--out", tmp_path / "evaluation")
    assert f"warning: {caveat}" in shown.err


SUITE = f"""
name = "caveats"
[set]
data = {{ size = {SIZE} }}
calibrate = {{ features = "off" }}
[datasets.flair]
manifest = "flair/manifest.csv"
[datasets.wmh]
manifest = "data/manifest.csv"
trained_on = "flair"
[[rows]]
method = "brightness"
"""
