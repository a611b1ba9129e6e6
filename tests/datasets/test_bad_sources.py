"""What is wrong with a source is reported with the file, the rest is prepared, and nothing is dropped without a line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dataset_trees as trees
import nibabel
import numpy as np
import pytest
from helpers import Cli, refused

from reshift.data.manifest import load_cases

SIZE = 32


def facts_of(out: Path) -> dict[str, Any]:
    """The record of a prepared set, whose counts must add up."""
    facts: dict[str, Any] = json.loads((out / "dataset.json").read_text())
    cases = facts["cases"]
    assert cases["found"] == cases["prepared"] + cases["left_out"] + cases["refused"]
    assert cases["refused"] == len(facts["skipped"])
    return facts


def other_list(folder: Path, name: str) -> Path:
    """The PNGs and the list of another of MedIAnomaly's data sets."""
    names = [f"{name}_{i}.png" for i in range(12)]
    for i, file in enumerate(names):
        trees.write_image(folder / "images" / file, 50 + i, shape=(48, 48))
    (folder / "data.json").write_text(json.dumps({"train": {"0": names[:8]}, "test": {"0": names[8:10], "1": names[10:]}}))
    return folder


def test_vindr_takes_no_other_data_set_of_medianomaly(run_cli: Cli, tmp_path: Path) -> None:
    root = tmp_path / "MedIAnomaly-Data"
    other_list(root / "BrainTumor", "Te-gl")
    command = ("prepare", "vindr", "--out", tmp_path / "out", "--size", SIZE, "--source")
    refused(run_cli(*command, root), "BrainTumor/data.json: lists 'Te-gl_0.png'", "32 hexadecimal digits")
    trees.medianomaly_vindr(root / "VinCXR")
    refused(run_cli(*command, root), "2 data.json (BrainTumor/data.json, VinCXR/data.json)", "VinCXR is VinDr's")
    assert not (tmp_path / "out").exists()
    assert run_cli(*command, root / "VinCXR").code == 0
    assert len(load_cases(tmp_path / "out")) == 12
    shutil.copytree(root / "VinCXR", tmp_path / "two" / "b")
    shutil.copytree(root / "VinCXR", tmp_path / "two" / "a")
    refused(run_cli(*command, tmp_path / "two"), "a/data.json, b/data.json", "give the folder of one")


def test_images_of_vindr_are_those_beside_its_list(run_cli: Cli, tmp_path: Path) -> None:
    source = trees.medianomaly_vindr(tmp_path / "source" / "VinCXR").parent
    stray = source / "VinCXR/images" / f"{trees.image_id(0)}.png"
    (source / "elsewhere/images").mkdir(parents=True)
    stray.rename(source / "elsewhere/images" / stray.name)
    trees.write_image(source / "VinCXR/images" / f"{trees.image_id(77)}.png", 77)
    done = run_cli("prepare", "vindr", "--source", source, "--out", tmp_path / "out", "--size", SIZE)
    assert done.code == 3
    assert f"skipped: images/{trees.image_id(0)}: listed in data.json, but not there" in done.err
    assert "1 of 12 PNGs are not in data.json" in done.err
    assert facts_of(tmp_path / "out")["cases"] == {"found": 12, "prepared": 11, "left_out": 0, "refused": 1}


@pytest.mark.parametrize(
    ("was", "now", "complaint"),
    [
        ("Cardiomegaly,3,R9,16.5,10.0,28,22.0", "Cardiomegaly,3,R9,,,,", "the finding 'Cardiomegaly' without a box"),
        ("Cardiomegaly,3,R9,16.5,10.0,28,22.0", "Cardiomegaly,3,R9,28,10.0,16.5,22.0", "without a box"),
        ("Cardiomegaly,3,R9,16.5,10.0,28,22.0", "", "a row without a label"),
        ("Cardiomegaly,3,R9,16.5,10.0,28,22.0", "Cardiomegaly", "without a box"),  # a table that was cut short
    ],
)
def test_a_finding_that_says_too_little_costs_its_image_alone(
    run_cli: Cli, tmp_path: Path, was: str, now: str, complaint: str
) -> None:
    source, bad = trees.vindr(tmp_path / "source"), trees.image_id(11)
    table = source / "train.csv"
    table.write_text(table.read_text().replace(f"{bad},{was}", f"{bad},{now}"))
    line = 1 + next(i for i, row in enumerate(table.read_text().splitlines()) if row == f"{bad},{now}")
    done = run_cli("prepare", "vindr", "--source", source, "--out", tmp_path / "out", "--size", SIZE)
    assert done.code == 3
    [skipped] = facts_of(tmp_path / "out")["skipped"]
    assert skipped.startswith(f"{bad}: train.csv, line {line}: ")
    assert complaint in skipped
    assert {case.subject for case in load_cases(tmp_path / "out") if case.label} == {trees.image_id(i) for i in (10, 12, 13)}


def test_atlas_masks_may_hold_255(run_cli: Cli, tmp_path: Path) -> None:
    source = trees.atlas(tmp_path / "source", volumes=4, hidden=0)
    command = ("prepare", "atlas", "--source", source, "--size", SIZE, "--out")
    assert run_cli(*command, tmp_path / "one").code == 0
    for path in source.rglob("*mask.nii.gz"):
        image: Any = nibabel.load(path)
        nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj) * np.uint8(255), image.affine), path)
    assert run_cli(*command, tmp_path / "byte").code == 0
    for file in (tmp_path / "one").rglob("*.png"):
        assert file.read_bytes() == (tmp_path / "byte" / file.relative_to(tmp_path / "one")).read_bytes()
    image = nibabel.load(path)
    nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj) // np.uint8(255) * np.uint8(7), image.affine), path)
    done = run_cli(*command, tmp_path / "seven")
    assert done.code == 3
    assert f"{path.name}: holds label 7; known are 0, 1, 255" in done.err
    assert facts_of(tmp_path / "seven")["cases"] == {"found": 4, "prepared": 3, "left_out": 0, "refused": 1}


def test_every_image_of_busi_is_prepared_left_out_or_refused(run_cli: Cli, tmp_path: Path) -> None:
    source = trees.busi(tmp_path / "source")
    folder = source / "Dataset_BUSI_with_GT"
    trees.mask(folder / "benign/benign (1)_mask.png", (2, 10, 20, 30), shape=(30, 30))  # of another size
    (folder / "benign/benign (10)_mask.png").unlink()  # a missing label
    damaged = folder / "normal/normal (7).png"
    damaged.write_bytes(damaged.read_bytes()[:300])
    trees.mask(folder / "malignant/malignant (9)_mask.png", (2, 10, 20, 30))  # without its image
    shutil.copy(folder / "normal/normal (1).png", folder / "normal (1).png")  # twice
    trees.write_image(folder / "normal/Normal 12.png", 12)  # renamed by somebody
    trees.write_image(folder / "normal/normal (60).jpg", 60)
    done = run_cli("prepare", "busi", "--source", source, "--out", tmp_path / "out", "--size", SIZE)
    assert done.code == 3
    strange = "2 images are not named as BUSI's PNGs are and are not used, the first: Dataset_BUSI_with_GT/normal/Normal 12.png"
    assert strange in done.err
    assert "cases: 20 found = 14 prepared, 1 left out by rules, 5 refused" in done.out  # 18 images, an orphan and a copy
    skipped = facts_of(tmp_path / "out")["skipped"]
    start = "Dataset_BUSI_with_GT"
    for file, complaint in {
        f"{start}/benign/benign (1)_mask.png": "the mask has 30×30 pixels, its image 52×40",
        f"{start}/benign/benign (10).png": "has a lesion, but no mask",
        f"{start}/normal/normal (7).png": "",
        f"{start}/malignant/malignant (9)_mask.png": "a mask without its image",
        f"{start}/normal (1).png": "exists twice",
    }.items():
        assert any(line.startswith(f"{file}: ") and complaint in line for line in skipped), (file, skipped)


def test_a_brats_file_in_two_folders_is_reported(run_cli: Cli, tmp_path: Path) -> None:
    source = trees.brats(tmp_path / "source", cases=4)
    path = next(source.rglob("BraTS2021_00002_flair.nii.gz"))
    (source / "again").mkdir()
    shutil.copy(path, source / "again")
    done = run_cli("prepare", "brats2021", "--source", source, "--out", tmp_path / "out", "--size", SIZE)
    assert done.code == 3
    assert "BraTS2021_00002_flair.nii.gz: exists twice" in done.err
    assert facts_of(tmp_path / "out")["cases"] == {"found": 5, "prepared": 4, "left_out": 0, "refused": 1}


@pytest.mark.parametrize(("dataset", "tree", "file"), [("wmh", trees.wmh, "pre/FLAIR.nii.gz"), ("ixi", trees.ixi, "T1.nii.gz")])
def test_a_case_in_two_folders_is_reported_with_both(
    run_cli: Cli, tmp_path: Path, dataset: str, tree: Callable[[Path], Path], file: str
) -> None:
    source = tmp_path / "source"
    shutil.copytree(tree(source / "a"), source / "b")
    done = run_cli("prepare", dataset, "--source", source, "--out", tmp_path / "out", "--size", SIZE)
    assert done.code == 3
    for line in facts_of(tmp_path / "out")["skipped"]:
        first, second = line.partition("exists twice, ")[2].removesuffix(" is not; remove one").split(" is used and ")
        assert first.startswith("a/")
        assert first.endswith(file)
        assert second == f"b/{first[2:]}"


def test_brats_pngs_lie_in_one_folder(run_cli: Cli, tmp_path: Path) -> None:
    root, out = tmp_path / "MedIAnomaly-Data", tmp_path / "out"
    command = ("prepare", "brats2021", "--out", out, "--size", SIZE, "--source")
    trees.medianomaly_brats(root / "BraTS2021")
    trees.write_image(root / "Camelyon16/train/c.png", 900)
    refused(run_cli(*command, root), "2 folders hold PNGs", "(BraTS2021, Camelyon16)", "BraTS2021 has all of MedIAnomaly's")
    assert not out.exists()
    shutil.copytree(root / "BraTS2021", root / "copy")
    refused(run_cli(*command, root), "(BraTS2021, Camelyon16, copy)", "give the folder of one")
    shutil.rmtree(root / "copy")
    (root / "BraTS2021/train").rename(root / "train")  # no folder has them all
    refused(run_cli(*command, root), "no BraTS 2021 here")
    (root / "train").rename(root / "BraTS2021/train")
    shutil.rmtree(root / "Camelyon16")
    assert run_cli(*command, root).code == 0
    assert len(load_cases(out)) == 11


@pytest.mark.parametrize(
    ("dataset", "tree", "name"),
    [
        ("busi", trees.busi, "Dataset_BUSI_with_GT/malignant/malignant (2)_mask.png"),
        ("brats2021", trees.medianomaly_brats, "test/annotation/BraTS2021_00201_seg_71.png"),
    ],
)
def test_a_lesion_whose_mask_is_empty_is_refused(
    run_cli: Cli, tmp_path: Path, dataset: str, tree: Callable[[Path], Path], name: str
) -> None:
    source = tree(tmp_path / "source")
    trees.mask(source / name, None)
    done = run_cli("prepare", dataset, "--source", source, "--out", tmp_path / "out", "--size", SIZE)
    assert done.code == 3
    [line] = facts_of(tmp_path / "out")["skipped"]
    assert line.startswith(f"{name}: the mask is empty")


def test_vindr_knows_lists_of_other_forms(run_cli: Cli, tmp_path: Path) -> None:
    root = tmp_path / "MedIAnomaly-Data"
    trees.medianomaly_vindr(root / "VinCXR")
    (root / "Camelyon16").mkdir()
    other, command = root / "Camelyon16/data.json", ("prepare", "vindr", "--out", tmp_path / "out", "--source")
    for text in ('{"train": ["a"], "test": ["b"]}', '{"train": {"0": []}, "test": {"0": [], "1": []}}'):
        other.write_text(text)
        refused(run_cli(*command, root), "2 data.json (Camelyon16/data.json, VinCXR/data.json)", "VinCXR is VinDr's")
    refused(run_cli(*command, other.parent), other, "lists no images")


@pytest.mark.parametrize("text", ["image_id\n".encode("utf-16"), b"image_id," + b"x" * 200_000 + b"\n"])
def test_a_label_table_that_is_no_csv_is_one_line(run_cli: Cli, tmp_path: Path, text: bytes) -> None:
    source = trees.vindr(tmp_path / "source", normals=2, abnormals=1)
    (source / "train.csv").write_bytes(text)
    done = run_cli("prepare", "vindr", "--source", source, "--out", tmp_path / "out")
    refused(done, source / "train.csv", "not a CSV file", "UTF-8")


def test_images_of_the_table_without_dicom_are_counted(run_cli: Cli, tmp_path: Path) -> None:
    source = trees.vindr(tmp_path / "source")
    for i in (3, 12):
        (source / "train" / f"{trees.image_id(i)}.dicom").unlink()
    done = run_cli("prepare", "vindr", "--source", source, "--out", tmp_path / "out", "--size", SIZE)
    assert done.code == 0
    assert "2 of 14 images of train.csv have no DICOM in train/ and are not used" in done.err
    assert facts_of(tmp_path / "out")["cases"]["prepared"] == 12
