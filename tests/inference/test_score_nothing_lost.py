"""Damaged and unusual files through ``reshift score``: each is scored, recorded as failed, or counted; the rest goes on."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from dicom_files import ct, grey, series, values, write
from helpers import Cli, noise, read_records, refused, run_process, save
from pydicom.dataset import Dataset
from pydicom.uid import UID, MediaStorageDirectoryStorage

from reshift.data.dicom.series import read_dicom
from reshift.data.read import list_inputs, open_input, read_image, read_mask
from reshift.errors import UserError
from reshift.inference.dicom_export.export import Result, Setup, export_result

OTHER = "1.2.826.0.1.3680043.8.498.99"
CLASS, SERIES = b"\x08\x00\x16\x00UI", b"\x20\x00\x0e\x00UI"  # where SOPClassUID and SeriesInstanceUID begin


def wholes(out: Path) -> dict[str, dict[str, Any]]:
    """The record of every case, by the last part of its input."""
    return {Path(record["input"]).name: record for record in read_records(out) if record["slice"] is None}


def cut(path: Path, before: bytes) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: raw.index(before)])


def warnings_of(err: str) -> list[str]:
    return [line for line in err.splitlines() if line.startswith("warning: ")]


def test_series_whose_uids_end_alike_are_all_scored(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    uids = [f"1.2.{k}.777.12345678" for k in (3, 4, 5)]
    for k, uid in enumerate(uids):
        series(tmp_path / "new", 3, SeriesInstanceUID=uid)
        for file in (tmp_path / "new").iterdir():
            (tmp_path / "in").mkdir(exist_ok=True)
            file.rename(tmp_path / "in" / f"{k}-{file.name}")
    out = tmp_path / "out"
    assert run_cli("score", tiny_bundle, tmp_path / "in", "--out", out).code == 0
    assert len(wholes(out)) == 3
    written = (out / "scores.jsonl").read_text() + "".join(str(path) for path in out.rglob("*"))
    assert "12345678" not in written
    assert not any(uid in written for uid in uids)


def test_a_series_above_another_gets_a_name_of_its_own(tmp_path: Path) -> None:
    series(tmp_path / "in", 4, SeriesInstanceUID=OTHER)
    for k, file in enumerate(sorted((tmp_path / "in").iterdir())):  # two of its slices in each of two folders
        (tmp_path / "in" / str(k % 2)).mkdir(exist_ok=True)
        file.rename(tmp_path / "in" / str(k % 2) / file.name)
    series(tmp_path / "in", 3)
    inputs = list_inputs(tmp_path / "in")
    assert sorted(len(item.series.files) for item in inputs if item.series) == [3, 4]
    assert len({item.path for item in inputs}) == 2
    for item in inputs:  # names that are taken already
        save(noise(), item.path / "z.png")
    again = [item.path for item in list_inputs(tmp_path / "in") if item.series]
    assert len({*again, *(item.path for item in inputs)}) == 4


@pytest.mark.parametrize("before", [CLASS, SERIES], ids=["class", "series"])
def test_a_file_cut_short_is_a_failed_case(run_cli: Cli, tiny_bundle: Path, tmp_path: Path, before: bytes) -> None:
    root, out = tmp_path / "in", tmp_path / "out"
    series(root / "scan", 5)
    cut(root / "scan" / "IM0004", before)
    write(grey(values(1), SeriesInstanceUID=OTHER), root / "film.dcm")
    write(grey(values(2), SeriesInstanceUID=OTHER + ".2"), root / "lost.dcm")
    (root / "lost.dcm").write_bytes((root / "lost.dcm").read_bytes()[:100])  # not even a preamble
    write(ct(values(), SOPClassUID="1.2.840.10008.5.1.4.1.1.88.11", SeriesInstanceUID="1.2.5"), root / "report.dcm")
    write_dicomdir(root / "DICOMDIR")
    (root / "notes.txt").write_text("hello")
    for _ in range(2):  # a re-run says the same
        done = run_cli("score", tiny_bundle, root, "--out", out)
        assert done.code == 3, done
        found = wholes(out)
        assert {name: record["error"] is None for name, record in found.items()} == {
            "scan": True, "IM0004": False, "film.dcm": True, "lost.dcm": False}  # fmt: skip
        assert "has no Rows" in found["IM0004"]["error"]
        said = "\n".join(warnings_of(done.err))
        assert "scan: 1 damaged file beside it (IM0004) may be slices of it" in said
        assert "3 files left out: 2 DICOM without an image (reports, plans, segmentations, DICOMDIR), 1 of other kinds" in said


def test_a_whole_folder_leaves_nothing_out(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    series(tmp_path / "in", 3)
    done = run_cli("score", tiny_bundle, tmp_path / "in", "--out", tmp_path / "out")
    assert "left out" not in done.err
    assert "damaged" not in done.err


def test_one_bad_file_does_not_end_the_run(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("highdicom", reason="reshift[dicom] is not installed")
    root, out = tmp_path / "in", tmp_path / "out"
    series(root / "syntax", 3, SeriesInstanceUID=OTHER + ".1")
    for path in (root / "syntax").iterdir():
        path.write_bytes(path.read_bytes().replace(b"\x02\x00\x10\x00UI", b"\x02\x00\x10\x00LO"))
    for name in ("a", "b"):  # two in one folder, so that the uid becomes part of a name
        series(root / name, 3, SeriesInstanceUID=f"1.2.3.{name == 'a':d}.55555555")
        for path in (root / name).iterdir():
            raw = path.read_bytes().replace(b"55555555", b"55\x005555" + name.encode())
            path.unlink()
            write_bytes(root / "nul" / f"{name}-{path.name}", raw)
        (root / name).rmdir()
    thick = ct(values(3), SeriesInstanceUID=OTHER + ".3")
    thick.add_new(0x00180050, "SQ", [Dataset()])
    write(thick, root / "thick.dcm")
    series(root / "thick", 3, SeriesInstanceUID=OTHER + ".4")
    for path in (root / "thick").iterdir():
        slice_ = pydicom.dcmread(path)
        slice_.add_new(0x00180050, "SQ", [])
        write(slice_, path)
    save(noise(), root / "z.png")
    for _ in range(2):
        done = run_cli("score", tiny_bundle, root, "--out", out, "--dicom-out")
        assert done.code == 3, done
        found = wholes(out)
        assert len(found) == 6
        assert found["z.png"]["error"] is None
        assert "TransferSyntaxUID is unknown" in found["syntax"]["error"]
        assert "leave out DICOM results" in found["thick.dcm"]["error"]
        assert found["thick.dcm"]["score"] is not None
        assert found["thick"]["error"] is None
        assert len([name for name, record in found.items() if name.startswith("CT-") and record["error"] is None]) == 2


def write_dicomdir(path: Path) -> None:
    directory = Dataset()
    directory.file_meta = grey(values()).file_meta
    directory.file_meta.MediaStorageSOPClassUID = MediaStorageDirectoryStorage
    directory.file_meta.MediaStorageSOPInstanceUID = UID("1.2.9")
    directory.FileSetID = "DISC"
    directory.save_as(path, enforce_file_format=True)


def write_bytes(path: Path, raw: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)


@pytest.mark.parametrize("length", [244, 251, 255])
def test_names_of_the_greatest_length(run_cli: Cli, tiny_bundle: Path, tmp_path: Path, length: int) -> None:
    names = ["é" * ((length - 6) // 2) + "x" * ((length - 6) % 2) + f"{k}.png" for k in (10, 11)]
    for k, name in enumerate(names):
        assert len(os.fsencode(name)) == length
        save(noise(k), tmp_path / "in" / name)
    (tmp_path / "in" / ("f" * 255)).mkdir()
    series(tmp_path / "in" / ("f" * 255), 3)
    out = tmp_path / "out"
    done = run_cli("score", tiny_bundle, tmp_path / "in", "--out", out)
    assert done.code == 0, done
    found = wholes(out)
    assert set(found) == {*names, "f" * 255}
    assert len({record["map"] for record in found.values()}) == 3
    assert all((out / record["map"]).is_file() for record in found.values())


def test_an_error_of_a_library_is_the_error_of_one_case(
    run_cli: Cli, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise AttributeError("Okonkwo has no attribute")

    series(tmp_path / "in" / "scan", 3)
    save(noise(), tmp_path / "in" / "z.png")
    monkeypatch.setattr("reshift.data.dicom.series.stack_planes", fails)
    done = run_cli("score", tiny_bundle, tmp_path / "in", "--out", tmp_path / "out")
    assert done.code == 3, done
    assert wholes(tmp_path / "out")["z.png"]["error"] is None
    assert "cannot be read (AttributeError)" in wholes(tmp_path / "out")["scan"]["error"]
    assert "Okonkwo" not in (tmp_path / "out" / "scores.jsonl").read_text()
    monkeypatch.setattr("reshift.inference.dicom_export.export._export", fails)
    image = read_dicom(write(ct(values()), tmp_path / "a.dcm"))
    result = Result(image, np.zeros((24, 20), np.float32), None, {})
    text = export_result(tmp_path / "o", result, Setup(0.7, 1.0, "model"))
    assert text is not None
    assert "(AttributeError)" in text
    assert "Okonkwo" not in text


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_pipes_and_devices_are_not_opened(tiny_bundle: Path, tmp_path: Path) -> None:
    names = ("x.nii", "x.nii.gz", "x.png", "x.tif", "x.dcm")
    for name in names:
        (tmp_path / "in").mkdir(exist_ok=True)
        os.mkfifo(tmp_path / "in" / name)
        with pytest.raises(UserError, match="is not a regular file"):
            open_input(tmp_path / "in" / name)
    (tmp_path / "in" / "zero.png").symlink_to("/dev/zero")
    with pytest.raises(UserError, match="is not a regular file"):
        read_image(tmp_path / "in" / "zero.png")
    with pytest.raises(UserError, match="is not a regular file"):
        read_mask(tmp_path / "in" / "x.png")
    save(noise(), tmp_path / "in" / "z.png")
    done = run_process("score", tiny_bundle, tmp_path / "in", "--out", tmp_path / "out")  # ends within its time limit
    assert done.code == 3, done
    found = wholes(tmp_path / "out")
    assert {name for name, record in found.items() if record["error"]} == {*names, "zero.png"}
    assert all(record["error"] is None or "is not a regular file" in record["error"] for record in found.values())
    train = run_process("train", "--data", tmp_path / "in", "--out", tmp_path / "run", "--method", "brightness")
    refused(train, "is not a regular file")
    refused(run_process("train", "--data", tmp_path / "in" / "x.nii", "--out", tmp_path / "run"), "is not a regular file")
