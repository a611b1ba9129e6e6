"""Manifests: every mistake is one line with its position, and no subject is in two splits."""

import json
from pathlib import Path

import pytest
from helpers import COLUMNS, noise, save, save_many, write_manifest
from volumes import save_head

from reshift.data.cases import Case, fingerprint
from reshift.data.manifest import load_cases
from reshift.errors import UserError

SLICES = "image,subject,position"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """``images/000.png`` … ``images/005.png``."""
    save_many(tmp_path / "images", 6)
    return tmp_path


def test_a_full_row(folder: Path) -> None:
    save(noise() > 99, folder / "masks" / "a.png")
    path = write_manifest(folder, "images/000.png,masks/a.png,anna,1,test,tumour", "images/001.png,,ben,0,train,")
    for given_as in (path, folder):
        first, second = load_cases(given_as)
        mask = folder / "masks" / "a.png"
        assert first == Case("images/000.png", folder / "images" / "000.png", mask, "anna", 1, "test", "tumour")
        assert (second.mask, second.subject, second.label, second.split, second.note) == (None, "ben", 0, "train", "")


def test_only_the_image_is_needed(folder: Path) -> None:
    [case] = load_cases(write_manifest(folder, "images/000.png", header="image"))
    assert (case.subject, case.label, case.split) == ("images/000.png", 0, "train")


def test_a_label_may_be_missing_where_something_else_says_it(folder: Path) -> None:
    rows = ("images/000.png,,a,,train,", "images/001.png,,b,,val,", "scan.nii.gz,mask.nii.gz,c,,test,")
    for name in ("scan", "mask"):
        save_head(folder / f"{name}.nii.gz")
    assert [case.label for case in load_cases(write_manifest(folder, *rows))] == [0, 0, 0]  # the mask decides, slice by slice
    [case] = load_cases(write_manifest(folder, "images/000.png,test", header="image,split"))  # nobody has asked for labels
    assert case.label == 0


def test_positions_are_numbers_or_nothing(folder: Path) -> None:
    rows = ("images/000.png,a,3", "images/001.png,a,-1.5", "images/002.png,b,3", "images/003.png,b,")
    cases = load_cases(write_manifest(folder, *rows, header=SLICES))
    assert [case.position for case in cases] == [3.0, -1.5, 3.0, None]
    moved = [cases[0]._replace(position=4.0), *cases[1:]]
    without = [case._replace(position=None) for case in cases]
    assert len({fingerprint(cases), fingerprint(moved), fingerprint(without)}) == 3


def test_byte_order_mark_and_crlf(folder: Path) -> None:
    path = folder / "manifest.csv"
    path.write_bytes(b"\xef\xbb\xbf" + f"{COLUMNS}\r\nimages/000.png,,a,0,train,\r\n\r\n".encode())
    assert [case.subject for case in load_cases(path)] == ["a"]


ROW = "images/000.png,,a,0,train,"


@pytest.mark.parametrize(
    ("rows", "header", "expected"),
    [
        ([ROW], "image,mask,subject,lable,split,note", r"unknown column 'lable'; did you mean 'label'\?"),
        ([ROW], "image,mask,subject,label,split,split", "column 'split' 2 times"),
        ([ROW], "mask,subject,label,split,note", "no 'image' column"),
        (["images/000.png;;a;0;train;"], COLUMNS.replace(",", ";"), "unknown column .*known: ignore, image, label"),
        ([], COLUMNS, "lists no images"),
        ([ROW, "images/001.png,,a"], COLUMNS, "line 3: wrong number of fields"),
        ([ROW, "images/001.png,,b,0,train,one,two"], COLUMNS, "line 3: wrong number of fields"),
        ([ROW, "", "", ",,b,0,train,"], COLUMNS, "line 5: the image field is empty"),
        ([ROW, "images/001.png,,b,2,train,"], COLUMNS, "line 3: label '2'"),
        ([ROW, "images/001.png,,b,tumour,train,"], COLUMNS, "line 3: label 'tumour' is neither 0"),
        ([ROW, "images/001.png,,b,,test,"], COLUMNS, "line 3: images/001.png has no label; a test image is 0"),
        ([ROW, "images/001.png,masks/a.png,b,,test,"], COLUMNS, "line 3: images/001.png has no label"),
        ([ROW, "images/001.png,,b,0,trian,"], COLUMNS, "line 3: split 'trian' is not one of train, val, test"),
        ([ROW, "images/001.png,,b,1,train,"], COLUMNS, "images/001.png is abnormal but in the train split"),
        ([ROW, "images/001.png,,b,1,val,"], COLUMNS, "images/001.png is abnormal but in the val split"),
        ([ROW, "images/001.png,,a,0,test,"], COLUMNS, "subject 'a' is in two splits.*leaks"),
        (["images/001.png,,a,1,test,", ROW], COLUMNS, "subject 'a' is in two splits.*leaks"),
        ([ROW, "images/../images/000.png,,b,0,test,"], COLUMNS, "lists .*images/000.png 2 times"),
        ([ROW, "images/x.png,,b,0,train,", "images/y.png,,c,0,train,"], COLUMNS, r"images/x.png does not exist \(and 1 more\)"),
        (["images/000.png,masks/x.png,a,1,test,"], COLUMNS, "masks/x.png does not exist"),
        (["images/000.png,4", "images/001.png,top"], "image,position", "line 3: position 'top' is not a number"),
        (["images/000.png,nan"], "image,position", "line 2: position 'nan' is not a number"),
        (["images/000.png,a,2", "images/001.png,a,2.0"], SLICES, "000.png and images/001.png of subject 'a' are both at .* 2;"),
    ],
)
def test_mistakes(folder: Path, rows: list[str], header: str, expected: str) -> None:
    path = write_manifest(folder, *rows, header=header)
    with pytest.raises(UserError, match=expected) as refusal:
        load_cases(path)
    assert str(refusal.value).startswith(str(path))


def test_files_that_are_not_a_manifest(folder: Path) -> None:
    path = folder / "manifest.csv"
    path.write_bytes(f"{COLUMNS}\n".encode("utf-16"))
    with pytest.raises(UserError, match=r"manifest.csv: not a CSV file .*UTF-8"):
        load_cases(path)
    path.write_bytes(b"")
    with pytest.raises(UserError, match="no 'image' column"):
        load_cases(path)
    with pytest.raises(UserError, match="no such folder or manifest"):
        load_cases(folder / "nothing.csv")


def test_a_plain_folder_is_all_normal(folder: Path) -> None:
    cases = load_cases(folder)
    assert [case.name for case in cases] == [f"images/{i:03d}.png" for i in range(6)]
    assert {(case.label, case.split, case.mask) for case in cases} == {(0, "train", None)}
    assert len({case.subject for case in cases}) == 6


def test_subjects_from_file_names(tmp_path: Path) -> None:
    for name in ("p01_s1.png", "p01_s2.png", "sub/p02_s1.png"):
        save(noise(), tmp_path / name)
    assert [case.subject for case in load_cases(tmp_path, r"(p\d+)_")] == ["p01", "p01", "p02"]
    for pattern, expected in (
        ("(q)", "does not match data.subject"),
        ("p01|p02", "no .group."),
        ("(", "not a regular"),
    ):
        with pytest.raises(UserError, match=expected):
            load_cases(tmp_path, pattern)


def test_medianomaly(folder: Path) -> None:
    table = {"train": {"0": ["000.png", "001.png"]}, "test": {"0": ["002.png"], "1": ["003.png"]}}
    path = folder / "data.json"
    path.write_text(json.dumps(table))
    for given_as in (path, folder):
        rows = [(case.name, case.label, case.split) for case in load_cases(given_as)]
        assert rows[1:] == [("images/001.png", 0, "train"), ("images/002.png", 0, "test"), ("images/003.png", 1, "test")]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"train": {"0": []}}', '{"train": {"0": [1]}, "test": {"0": [], "1": []}}',
             '{"train": {"0": "a.png"}, "test": {"0": [], "1": []}}']
)  # fmt: skip
def test_damaged_medianomaly(tmp_path: Path, text: str) -> None:
    (tmp_path / "data.json").write_text(text)
    with pytest.raises(UserError, match=r"data.json: not a MedIAnomaly"):
        load_cases(tmp_path)
