"""Subjects of a plain folder, as the names of its files tell them."""

from pathlib import Path

import pytest
from helpers import noise, save

from reshift.config import DataConfig
from reshift.data.cases import Case, expand_volumes
from reshift.data.manifest import load_cases
from reshift.data.subjects import about_subjects, subject_by_name
from reshift.training.stacks import choose_sigma


def folder_of(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        save(noise(), root / name)
    return root


@pytest.mark.parametrize(("one", "other", "same"), [
    ("sub-01_slice_034.png", "sub-01_slice_035.png", True),
    ("sub-01_slice_034.png", "sub-02_slice_034.png", False),
    ("anna/12.png", "anna/13.png", True),
    ("anna/12.png", "ben/12.png", False),
    ("00000013_005.png", "00000013_026.png", True),
    ("p3_t1_7_brain.png", "p3_t1_8_brain.tif", True),
    ("anna.png", "ben.png", False),
])  # fmt: skip
def test_names_that_differ_in_their_last_number_only_are_of_one(one: str, other: str, same: bool) -> None:
    assert (subject_by_name(one) == subject_by_name(other)) is same


def test_slices_of_a_plain_folder_belong_to_the_person_in_their_names(tmp_path: Path) -> None:
    cases = load_cases(folder_of(tmp_path, *(f"p{k}_{i}.png" for k in range(5) for i in range(3))))
    assert len({case.subject for case in cases}) == 5
    assert "15 normal images of 5 subjects" in (line := about_subjects(cases))
    assert "data.subject='(.+)'" in line
    assert len({case.subject for case in load_cases(tmp_path, "(.+)")}) == 15  # as that line says


@pytest.mark.parametrize("names", [
    [f"normal ({i}).png" for i in range(12)],  # one name for all: numbers count people, or nobody can be told from another
    [f"p{k}_{i}.png" for k in range(4) for i in range(3)],  # four would be too few to learn from and to set thresholds
    [f"p{k}_1.png" for k in range(11)] + ["p0_2.png"],  # hardly any two of one
    [f"{name}.png" for name in "abcdefgh"],
    [f"no {i}.png" for i in range(9)] + ["1 no.png", "2 no.png", "No11.png", "No12.png", "N1.png", "N2.png", "x1.png"],
])  # fmt: skip
def test_where_names_do_not_tell_every_image_is_a_subject_and_train_says_so(tmp_path: Path, names: list[str]) -> None:
    cases = load_cases(folder_of(tmp_path, *names))
    assert [case.subject for case in cases] == sorted(names)
    assert "each image its own" in about_subjects(cases)


def test_slices_that_only_names_tell_are_not_averaged(tmp_path: Path) -> None:
    """Alike as neighbours are, new images of a folder are judged one by one."""
    image = noise()
    for k in range(5):
        for i in range(8):
            save((image // 2 + 12 * i + k).astype(image.dtype), tmp_path / f"p{k}_{i}.png")
    listed = load_cases(tmp_path)
    assert len({case.subject for case in listed}) == 5
    cases = expand_volumes(listed, DataConfig())
    assert choose_sigma(cases, listed, DataConfig()) == 0.0


def test_a_data_set_with_subjects_of_its_own_needs_no_advice(tmp_path: Path) -> None:
    cases = [Case(f"{i}.png", tmp_path / f"{i}.png", None, f"s{i // 2}", 0, "train", "") for i in range(6)]
    assert about_subjects(cases) == "6 normal images of 3 subjects"
