"""Folder layouts: MVTec and BIDS folders are read; what they leave unclear is refused in one line."""

import io
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reshift.data.cases import Case
from reshift.data.layouts import detect
from reshift.data.manifest import check_cases, read_cases
from reshift.errors import UserError

MVTEC = (
    *("train/good/000.png", "train/good/001.png", "test/good/000.png", "test/crack/000.png", "test/crack/001.png"),
    *("test/hole/000.png", "ground_truth/crack/000_mask.png", "ground_truth/crack/001_mask.png", "ground_truth/hole/000.png"),
)


def tree(folder: Path, *names: str) -> Path:
    """Empty files; a layout is read from names alone."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def rows(cases: list[Case] | None) -> list[tuple[str, int, str, str | None]]:
    assert cases is not None
    return [(case.name, case.label, case.split, case.mask.name if case.mask else None) for case in cases]


def test_mvtec(tmp_path: Path) -> None:
    cases = detect(tree(tmp_path, *MVTEC))
    assert sorted(rows(cases)) == [
        ("test/crack/000.png", 1, "test", "000_mask.png"),
        ("test/crack/001.png", 1, "test", "001_mask.png"),
        ("test/good/000.png", 0, "test", None),
        ("test/hole/000.png", 1, "test", "000.png"),
        ("train/good/000.png", 0, "train", None),
        ("train/good/001.png", 0, "train", None),
    ]
    assert cases is not None
    assert {case.name: case.note for case in cases}["test/hole/000.png"] == "hole"
    assert len({case.subject for case in cases}) == 6
    assert check_cases(cases, tmp_path) == cases


@pytest.mark.parametrize(
    ("normal", "abnormal"), [("good", "Ungood"), ("normal", "abnormal"), ("Normal", "Abnormal"), ("healthy", "lesion")]
)
def test_other_names_for_the_classes(tmp_path: Path, normal: str, abnormal: str) -> None:
    tree(tmp_path, f"train/{normal}/a.jpg", f"valid/{normal}/b.jpg", f"test/{normal}/c.jpg", f"test/{abnormal}/d.jpg")
    found = {(split, label) for _, label, split, _ in rows(detect(tmp_path))}
    assert found == {("train", 0), ("val", 0), ("test", 0), ("test", 1)}


def test_images_and_masks_in_separate_folders_of_a_class(tmp_path: Path) -> None:
    tree(tmp_path, "train/good/1.png", "test/good/img/2.png", "test/good/label/2.png", "test/Ungood/img/3.png")
    tree(tmp_path, "test/Ungood/label/3.png")
    cases = detect(tmp_path) or []
    assert sorted(rows(cases)) == [
        ("test/Ungood/img/3.png", 1, "test", "3.png"),
        ("test/good/img/2.png", 0, "test", "2.png"),
        ("train/good/1.png", 0, "train", None),
    ]
    assert {case.mask.parent.name for case in cases if case.mask} == {"label"}


def test_an_abnormal_training_image_is_refused_by_the_common_check(tmp_path: Path) -> None:
    cases = detect(tree(tmp_path, *MVTEC, "val/Ungood/9.png"))
    assert cases is not None
    with pytest.raises(UserError, match=r"val/Ungood/9.png is abnormal but in the val split"):
        check_cases(cases, tmp_path)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("train/loose.png", "loose.png: is beside the class folders"),
        ("ground_truth/crack/777_mask.png", "777_mask.png: matches no image"),
        ("ground_truth/crack/000.png", "is a mask of the same image"),
        ("ground_truth/cracks/000.png", "belong to no folder test/cracks"),
        ("test/crack/000.jpg", "the same name but another suffix"),
        ("test/crack/label/000.png", "put the images into crack/img"),
    ],
)
def test_unclear_mvtec_folders_are_refused(tmp_path: Path, extra: str, expected: str) -> None:
    with pytest.raises(UserError, match=expected) as refusal:
        detect(tree(tmp_path, *MVTEC, extra))
    assert "\n" not in str(refusal.value)


def test_a_folder_of_data_sets(tmp_path: Path) -> None:
    for name in ("bottle", "cable"):
        tree(tmp_path / name, *MVTEC)
    with pytest.raises(UserError, match=r"holds 2 data sets \(bottle, cable"):
        detect(tmp_path)


def test_other_folders_are_not_taken_for_a_layout(tmp_path: Path) -> None:
    assert detect(tree(tmp_path, "a.png", "train/p1/a.png", "test/p2/a.png", "good/1.png", "sub-01/other/x.nii.gz")) is None
    with pytest.raises(UserError, match="cannot be listed"):
        detect(tmp_path / "nothing")


def bids(folder: Path, *subjects: str, masks: tuple[str, ...] = (), table: str = "") -> Path:
    tree(folder, "dataset_description.json", *(f"{s}/anat/{s}_T1w.nii.gz" for s in subjects))
    tree(folder, *(f"derivatives/lesions/{s}/anat/{s}_desc-lesion_mask.nii.gz" for s in masks))
    if table:
        (folder / "participants.tsv").write_text(table.replace(" ", "\t"))
    return folder


def test_bids_without_labels_is_normal(tmp_path: Path) -> None:
    cases = detect(bids(tmp_path, "sub-01", "sub-02")) or []
    assert [(case.subject, case.label, case.split) for case in cases] == [("sub-01", 0, "train"), ("sub-02", 0, "train")]
    assert cases[0].name == "sub-01/anat/sub-01_T1w.nii.gz"


def test_bids_images_with_masks_are_abnormal(tmp_path: Path) -> None:
    bids(tmp_path, "sub-01", "sub-02", masks=("sub-02",), table="participant_id group age\nsub-01 Control 30\nsub-02 stroke 40\n")
    assert [(label, split, mask) for _, label, split, mask in rows(detect(tmp_path))] == [
        (0, "train", None),
        (1, "test", "sub-02_desc-lesion_mask.nii.gz"),
    ]


def test_bids_sessions_splits_and_masks_beside_the_image(tmp_path: Path) -> None:
    tree(tmp_path, "sub-1/ses-a/anat/sub-1_ses-a_FLAIR.nii", "sub-1/ses-b/anat/sub-1_ses-b_FLAIR.nii")
    tree(tmp_path, "sub-1/ses-b/anat/sub-1_ses-b_FLAIR_mask.nii", "sub-1/ses-a/anat/sub-1_ses-a_lesion.nii")
    tree(tmp_path, "sub-1/ses-a/anat/sub-1_ses-a_desc-brain_mask.nii", "sub-2/ses-a/anat/sub-2_ses-a_FLAIR.nii")
    (tmp_path / "participants.tsv").write_text("participant_id\tdiagnosis\tsplit\nsub-1\tpatient\t\nsub-2\thc\tval\n")
    cases = detect(tmp_path) or []
    assert [(case.subject, case.note, case.split, case.mask and case.mask.name) for case in cases] == [
        ("sub-1", "ses-a", "test", "sub-1_ses-a_lesion.nii"),
        ("sub-1", "ses-b", "test", "sub-1_ses-b_FLAIR_mask.nii"),
        ("sub-2", "ses-a", "val", None),
    ]


@pytest.mark.parametrize(
    ("masks", "table", "extra", "expected"),
    [
        (("sub-01",), "", (), "sub-02 has no lesion mask and no group in participants.tsv"),
        ((), "participant_id group\nsub-01 patient\nsub-02 n/a\n", (), "sub-02 has no lesion mask"),
        ((), "participant_id group\nsub-01 a\nsub-02 b\n", (), "none of the groups a, b is called 'control'"),
        ((), "participant_id group\nsub-01 main\nsub-02 main\n", (), "none of the groups main"),
        ((), "participant_id group diagnosis\nsub-01 control x\n", (), "columns group and diagnosis"),
        ((), "participant_id split\nsub-01 training\n", (), "split 'training' is not one of"),
        ((), "", ("sub-01/anat/sub-01_FLAIR.nii.gz",), "holds 1 FLAIR and 2 T1w images"),
        (("sub-01", "sub-02"), "", ("sub-01/anat/sub-01_lesion.nii.gz",), r"sub-01_T1w.nii.gz: has 2 masks"),
    ],
)
def test_unclear_bids_folders_are_refused(
    tmp_path: Path, masks: tuple[str, ...], table: str, extra: tuple[str, ...], expected: str
) -> None:
    tree(bids(tmp_path, "sub-01", "sub-02", masks=masks, table=table), *extra)
    with pytest.raises(UserError, match=expected) as refusal:
        detect(tmp_path)
    assert "\n" not in str(refusal.value)


def test_bids_without_images(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="BIDS folder without T1w"):
        detect(tree(tmp_path, "sub-01/anat/sub-01_bold.nii.gz"))


def test_a_bids_table_in_another_encoding(tmp_path: Path) -> None:
    bids(tmp_path, "sub-01")
    (tmp_path / "participants.tsv").write_bytes("participant_id\tgroup\n".encode("utf-16"))
    with pytest.raises(UserError, match=r"participants.tsv: not a table"):
        detect(tmp_path)


@pytest.mark.parametrize("layout", ["plain", "mvtec"])
def test_listing_many_files_opens_none_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    folder = tmp_path / ("images" if layout == "plain" else "train/good")
    folder.mkdir(parents=True)
    for i in range(2_000):
        os.close(os.open(folder / f"{i}.png", os.O_CREAT))
    touched = Counter[str]()

    def counted(kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **options: Any) -> Any:
            touched[kind] += 1
            return call(*args, **options)

        return counting

    monkeypatch.setattr(os, "stat", counted("stat", os.stat))
    monkeypatch.setattr(io, "open", counted("open", io.open))
    cases = read_cases(tmp_path).cases
    monkeypatch.undo()
    assert len(cases) == 2_000
    assert touched["open"] == 0
    assert touched["stat"] <= 2_100  # at most one each
