"""Public data sets as downloaded → manifests: labels, splits, orientation and counts, on small copies of the real folders."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dataset_trees as trees
import numpy as np
import pytest
from helpers import Cli, assert_nothing_half_written
from numpy.typing import NDArray
from PIL import Image

from reshift.data.cases import Case
from reshift.data.manifest import load_cases
from reshift.data.volume import canonical
from reshift.datasets import DATASETS, busi
from reshift.datasets.plan import safe_name, shuffled, split_subjects
from reshift.datasets.samples import FIELD, LabelledVolume, cut_slices

SIZE = 48
TREES: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "brats2021": ("brats2021", trees.brats),
    "brats-gli": ("brats2021", lambda root: trees.brats(root, gli=True)),
    "brats-png": ("brats2021", trees.medianomaly_brats),
    "ixi": ("ixi", trees.ixi),
    "atlas": ("atlas", trees.atlas),
    "atlas-png": ("atlas", trees.thor_png),
    "ixi-atlas": ("ixi-atlas", lambda root: trees.atlas(trees.ixi(root))),
    "wmh": ("wmh", trees.wmh),
    "busi": ("busi", trees.busi),
    "vindr": ("vindr", trees.vindr),
    "vindr-png": ("vindr", trees.medianomaly_vindr),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Build a source folder once; tests only read it."""
    built: dict[str, Path] = {}

    def source(name: str) -> Path:
        if name not in built:
            built[name] = TREES[name][1](tmp_path_factory.mktemp(name))
        return built[name]

    return source


Prepare = Callable[..., Path]


@pytest.fixture
def prepare(run_cli: Cli, sources: Callable[[str], Path], tmp_path: Path) -> Prepare:
    """``prepare("busi", "--seed", 1)`` → the folder with the manifest."""

    def run(name: str, *options: object, out: str = "out", code: int = 0) -> Path:
        folder = tmp_path / out
        done = run_cli("prepare", TREES[name][0], "--source", sources(name), "--out", folder, "--size", SIZE, *options)
        assert done.code == code, done.err
        return folder

    return run


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "manifest.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def facts(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "dataset.json").read_text())
    return found


def plane(path: Path) -> NDArray[np.uint8]:
    return np.asarray(Image.open(path))


def count(cases: list[Case], split: str, label: int) -> int:
    return sum(case.split == split and case.label == label for case in cases)


@pytest.mark.parametrize("name", TREES)
def test_every_source_becomes_a_manifest_without_leaks(prepare: Prepare, sources: Callable[[str], Path], name: str) -> None:
    out = prepare(name)
    cases = load_cases(out)
    assert_nothing_half_written(out)
    splits: dict[str, set[str]] = {}
    for case in cases:
        splits.setdefault(case.subject, set()).add(case.split)
        image = Image.open(case.image)
        assert (image.mode, image.size) == ("L", (SIZE, SIZE))
        assert (case.mask is not None) == (case.label == 1 and name != "vindr-png")
        if case.mask:
            assert plane(case.mask).shape == (SIZE, SIZE)
            assert plane(case.mask).any()
    assert all(len(found) == 1 for found in splits.values())
    for file in ("manifest.csv", "dataset.json", "subjects.jsonl"):
        assert str(sources(name)) not in (out / file).read_text()
    assert sorted(p.name for p in (out / "images").iterdir()) == sorted(case.image.name for case in cases)


@pytest.mark.parametrize("name", ["brats2021", "atlas", "busi", "vindr"])
def test_only_the_seed_decides_the_split(prepare: Prepare, name: str) -> None:
    first, again, other = (prepare(name, "--seed", seed, out=f"out{i}") for i, seed in enumerate((0, 0, 1)))
    for file in ("manifest.csv", "dataset.json", "subjects.jsonl"):
        assert (first / file).read_bytes() == (again / file).read_bytes()
    assert (first / "manifest.csv").read_bytes() != (other / "manifest.csv").read_bytes()


def test_the_order_of_items_does_not_depend_on_other_items() -> None:
    few = shuffled(["a", "b", "c"], 0)
    assert [s for s in shuffled(["d", "c", "b", "a", "e"], 0) if s in few] == few
    splits = list(split_subjects((f"BraTS2021_{i:05d}" for i in range(1251)), 0).values())
    assert [splits.count(split) for split in ("train", "val", "test")] == [938, 62, 251]


@pytest.mark.parametrize("name", ["brats2021", "ixi", "atlas", "wmh"])
def test_slices_show_the_front_above_and_the_patients_right_on_the_left(prepare: Prepare, name: str) -> None:
    """Each source stores its axes differently; the bright spot is 30 mm to the right and 45 mm to the front."""
    options = ("--protocol", "subjects") if name == "atlas" else ()
    out = prepare(name, *options)
    normal = next(row for row in rows(out) if row["label"] == "0")
    pixels = plane(out / normal["image"]).astype(float)
    top, left = np.argwhere(pixels > 0.9 * pixels.max()).mean(0)
    middle = (SIZE - 1) / 2
    per_mm = SIZE / FIELD
    assert abs(left - (middle - 30 * per_mm)) < 1.5
    assert abs(top - (middle - 45 * per_mm)) < 1.5


@pytest.mark.parametrize("name", ["brats2021", "wmh"])
def test_masks_lie_on_their_lesions(prepare: Prepare, name: str) -> None:
    """Lesions are the brightest part of their volumes, off centre; a mask with another orientation would miss them."""
    out = prepare(name)
    found = [row for row in rows(out) if row["label"] == "1"]
    assert found
    for row in found:
        pixels, mask = plane(out / row["image"]), plane(out / row["mask"]).astype(bool)
        assert pixels[mask].mean() > 150  # a brain without lesion is below 100
        assert pixels[~mask].mean() < 100


def test_brats_uses_whole_tumours_and_trains_on_slices_without_tumour(prepare: Prepare) -> None:
    out = prepare("brats2021")
    cases = load_cases(out)
    assert count(cases, "train", 0) > 0
    assert count(cases, "test", 0) > 0
    assert count(cases, "test", 1) > 0
    assert all(case.label == 0 for case in cases if case.split != "test")
    left = facts(out)["left_out"]
    assert left["abnormal slice of a training subject"] > 0
    assert left["no lesion, but one nearby"] > 0
    assert facts(out)["expected"] == [{"what": "cases", "published": 1251, "found": 8}]


def test_unexpected_counts_are_a_warning(run_cli: Cli, sources: Callable[[str], Path], tmp_path: Path) -> None:
    done = run_cli("prepare", "brats2021", "--source", sources("brats2021"), "--out", tmp_path / "out", "--size", SIZE)
    assert done.code == 0
    assert "warning: 1251 cases expected, found 8" in done.err


def test_two_visits_of_a_patient_are_one_subject(prepare: Prepare) -> None:
    cases = load_cases(prepare("brats-gli"))
    assert {case.subject for case in cases} == {f"BraTS-GLI-{i:05d}" for i in range(4)}


def test_a_training_image_of_a_tested_subject_is_left_out(prepare: Prepare) -> None:
    out = prepare("brats-png")
    cases = load_cases(out)
    assert [count(cases, *key) for key in (("train", 0), ("test", 0), ("test", 1))] == [5, 3, 3]
    assert facts(out)["left_out"] == {"training image whose subject is in the test set as well": 1}
    assert facts(out)["cases"] == {"found": 12, "prepared": 11, "left_out": 1, "refused": 0}


def test_ixi_uses_the_brain_and_not_the_neck(prepare: Prepare) -> None:
    out = prepare("ixi")
    cases = load_cases(out)
    assert {case.split for case in cases} == {"train"}
    assert {case.note for case in cases} == {"IXI Guys", "IXI HH", "IXI IOP"}
    assert len(cases) == 6 * 5
    assert len(rows(prepare("ixi", "--protocol", "middle", out="one"))) == 6


@pytest.mark.parametrize("name", ["atlas", "atlas-png", "ixi-atlas"])
def test_atlas_never_tests_on_training_subjects(prepare: Prepare, name: str) -> None:
    out = prepare(name)
    cases = [case for case in load_cases(out) if not case.note.startswith("IXI")]
    assert [count(cases, *key) for key in (("train", 0), ("test", 1))] == [2, 4]
    assert count(cases, "test", 0) == 2
    assert any("218 of 655" in note for note in facts(out)["notes"])
    trained = {case.subject for case in cases if case.split == "train"}
    assert not trained & {case.subject for case in cases if case.split == "test"}


def test_leaking_lists_are_named_and_not_used(prepare: Prepare) -> None:
    notes = facts(prepare("atlas-png"))["notes"]
    assert "splits/ixi-t1_atlas_train_2D.csv and splits/atlas_test.csv share 4 ATLAS images; neither list is used" in notes


def test_wmh_ignores_other_pathology(prepare: Prepare) -> None:
    out = prepare("wmh")
    cases = load_cases(out)
    assert {case.subject for case in cases} == {
        "Utrecht-1", "Singapore-51", "Amsterdam-GE3T-101", "Amsterdam-GE1T5-151", "Amsterdam-Philips_VU-.PETMR_01-160",
    }  # fmt: skip
    assert facts(out)["left_out"]["other pathology only"] > 0
    both = [case for case in cases if case.ignore]
    assert both
    for case in both:
        assert case.label == 1
        assert case.mask
        assert case.ignore
        assert not (plane(case.mask).astype(bool) & plane(case.ignore).astype(bool)).any()
    assert len(rows(prepare("wmh", "--protocol", "all", out="all"))) > len(cases)


def test_busi_pairs_exactly_and_keeps_groups_together(prepare: Prepare) -> None:
    out = prepare("busi")
    found = {row["image"].removeprefix("images/").removesuffix(".png"): row for row in rows(out)}
    cases = load_cases(out)
    assert [count(cases, *key) for key in (("train", 0), ("test", 0), ("test", 1))] == [6, 6, 5]
    upper, lower = slice(0, SIZE // 2), slice(SIZE // 2, None)
    one, ten, hundred = (plane(out / found[f"benign-{n}"]["mask"]) for n in (1, 10, 100))
    assert one[upper].any()
    assert not one[lower].any()  # (1) does not use the mask of (10) or (100)
    assert not ten[upper].any()
    assert hundred[upper].any()
    assert hundred[lower].any()  # both of its masks
    for a, b in (("normal-2", "normal-3"), ("benign-10", "malignant-1"), ("normal-5", "malignant-2")):
        assert found[a]["subject"] == found[b]["subject"]
        assert found[a]["split"] == found[b]["split"]
    assert found["normal-5"]["split"] == "test"  # its copy shows a lesion
    assert facts(out)["near_duplicates"] == [
        ["benign (10)", "malignant (1)"], ["malignant (2)", "normal (5)"], ["normal (2)", "normal (3)"]
    ]  # fmt: skip
    assert facts(out)["left_out"] == {"lesion outside the crop": 1}
    assert "malignant-3" in {row["image"][7:-4] for row in rows(prepare("busi", "--fit", "pad", out="padded"))}


def test_vindr_merges_boxes_and_inverts_monochrome1(prepare: Prepare) -> None:
    out = prepare("vindr")
    cases = load_cases(out)
    assert [count(cases, *key) for key in (("train", 0), ("test", 0), ("test", 1))] == [8, 2, 4]
    for case in cases:
        pixels = plane(case.image).astype(float)
        assert pixels[:, :10].mean() < pixels[:, -10:].mean(), "MONOCHROME1 was not inverted"
    mask = plane(next(case.mask for case in cases if case.mask))
    expected = np.zeros((48, 64), dtype=bool)  # three boxes, each four pixels further right, together 12.5 to 32
    expected[10:22, 12:32] = True
    np.testing.assert_array_equal(mask, expected[:, 8:56])


def test_no_group_with_a_lesion_is_trained_on() -> None:
    groups = {"normal (1)": "a", "benign (1)": "a", "normal (2)": "b", "normal (3)": "b", "normal (4)": "c", "normal (5)": "d"}
    chosen = [busi._choose_training(groups, seed) for seed in range(20)]
    assert all(train <= {"normal (2)", "normal (3)", "normal (4)", "normal (5)"} and len(train) == 2 for train in chosen)
    assert all(("normal (2)" in train) == ("normal (3)" in train) for train in chosen)
    assert len({frozenset(train) for train in chosen}) > 1


def test_a_tiny_lesion_is_neither_normal_nor_abnormal() -> None:
    """A voxel of 5 × 5 mm is 7 pixels at 128 × 128; ten are needed."""
    ras, affine = trees.head(0)
    lesion = np.zeros(ras.shape, dtype=bool)
    lesion[20, 20, 10] = lesion[20, 20, 20] = lesion[21, 20, 20] = True
    volume = canonical(ras, affine, source=Path("head.nii"))
    labelled = LabelledVolume(volume, volume.from_native(lesion))
    result = cut_slices(labelled, (4, 9, 10, 20, 30), 128, "head", lambda label: "test")
    assert [(sample.name, sample.label) for sample in result.samples] == [("head_004", 0), ("head_020", 1), ("head_030", 0)]
    assert result.left_out == {"no lesion, but one nearby": 1, "lesion too small": 1}


def test_names_are_safe() -> None:
    assert safe_name("Amsterdam-Philips_VU .PETMR_01.-160") == "Amsterdam-Philips_VU-.PETMR_01.-160"
    assert safe_name("benign (163)") == "benign-163"


def test_datasets_are_listed(run_cli: Cli) -> None:
    shown = run_cli("datasets")
    assert all(name in shown.out for name in DATASETS)
    table = json.loads(run_cli("datasets", "--json").out)
    assert table.keys() == DATASETS.keys()
    assert all(entry[key] for entry in table.values() for key in ("what", "download", "publisher", "licence", "size"))
