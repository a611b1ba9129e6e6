"""DICOM through the commands: which files make a scan, what it is reported as, and a map on its own voxels."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest
from dicom_files import enhanced, grey, series, values, write
from helpers import BRIGHTNESS, Cli, noise, read_records, refused, save

from reshift.config import DataConfig
from reshift.data.cases import expand_volumes
from reshift.data.dicom.series import read_series
from reshift.data.manifest import load_cases
from reshift.data.read import list_inputs, open_input
from reshift.data.volume import Volume
from reshift.errors import UserError

OTHER = "1.2.826.0.1.3680043.8.498.99"
FIRST, SECOND = (f"CT-{hashlib.sha256(f'{OTHER}.{k}'.encode()).hexdigest()[:8]}" for k in (1, 2))


def loaded(path: Path) -> Any:
    return nibabel.load(path)


def tree(root: Path) -> Path:
    """A series alone in its folder, two that share one, a radiograph, and a picture."""
    series(root / "alone")
    series(root / "both", SeriesInstanceUID=OTHER + ".1")
    for file in sorted((root / "both").iterdir()):
        file.rename(file.with_name(f"first-{file.name}"))
    series(root / "both", count=4, SeriesInstanceUID=OTHER + ".2")
    write(grey(values(9), SeriesInstanceUID=OTHER + ".3"), root / "chest" / "film.dcm")
    save(noise(), root / "picture.png")
    return root


def test_a_folder_is_taken_apart_by_headers(tmp_path: Path) -> None:
    scans = list_inputs(tree(tmp_path))
    names = [scan.path.relative_to(tmp_path).as_posix() for scan in scans]
    assert names == ["alone", *sorted([f"both/{FIRST}", f"both/{SECOND}"]), "chest/film.dcm", "picture.png"]
    assert {scan.path.name: len(scan.series.files) for scan in scans if scan.series} == {"alone": 5, FIRST: 5, SECOND: 4}


def test_no_headers_are_read_where_no_dicom_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("headers were read")

    monkeypatch.setattr("reshift.data.dicom.series.find_series", never)
    save(noise(), tmp_path / "a.png")
    (tmp_path / "manifest.csv").write_text("image\n")
    assert [scan.path.name for scan in list_inputs(tmp_path)] == ["a.png"]


def test_scoring(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    root, out = tree(tmp_path / "in"), tmp_path / "out"
    done = run_cli("score", tiny_bundle, root, "--out", out)
    assert done.code == 0, done
    wholes = {
        Path(record["input"]).relative_to(root).as_posix(): record for record in read_records(out) if record["slice"] is None
    }
    maps = {name: record["map"].removeprefix("maps/in/") for name, record in wholes.items()}
    assert maps == {
        "alone": "alone.nii.gz",
        f"both/{FIRST}": f"both/{FIRST}.nii.gz",
        f"both/{SECOND}": f"both/{SECOND}.nii.gz",
        "chest/film.dcm": "chest/film.dcm.npy",
        "picture.png": "picture.png.npy",
    }
    volume, heat = read_series(root / "alone"), loaded(out / "maps" / "in" / "alone.nii.gz")
    np.testing.assert_allclose(heat.affine, volume.native_affine, atol=1e-4)
    assert heat.shape == volume.native_shape
    before = read_records(out)
    assert run_cli("score", tiny_bundle, root, "--out", out).code == 0
    assert read_records(out) == before


def test_a_series_by_itself_and_a_file_of_many_frames(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    series(tmp_path / "scan")
    frames = write(enhanced(), tmp_path / "frames.dcm")
    out = tmp_path / "out"
    assert run_cli("score", tiny_bundle, tmp_path / "scan", frames, "--out", out).code == 0
    records = read_records(out)
    assert [record["map"] for record in records if record["slice"] is None] == ["maps/scan.nii.gz", "maps/frames.dcm.nii.gz"]
    assert len([record for record in records if record["input"] == str(frames)]) == 4 + 1
    assert isinstance(open_input(frames), Volume)


def test_learning_from_series(run_cli: Cli, tmp_path: Path) -> None:
    for i in range(3):
        series(tmp_path / "in" / f"p{i}", SeriesInstanceUID=f"{OTHER}.{i}")
    cases = load_cases(tmp_path / "in")
    assert [case.subject for case in cases] == ["p0", "p1", "p2"]
    slices = expand_volumes(cases, DataConfig())
    assert len(slices) == 15
    assert {case.name for case in slices} >= {"p0#0", "p2#4"}
    assert run_cli("train", "--data", tmp_path / "in", "--out", tmp_path / "run", *BRIGHTNESS).code == 0
    with pytest.raises(UserError, match="holds several DICOM series; put each into a folder of its own"):
        load_cases(tree(tmp_path / "tree"))
    damaged = tmp_path / "in" / "p1" / "IM0001"
    damaged.write_bytes(damaged.read_bytes()[:-300])
    refused(run_cli("train", "--data", tmp_path / "in", "--out", tmp_path / "no", *BRIGHTNESS), "IM0001")


def test_dicom_results_beside_the_maps(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("highdicom", reason="reshift[dicom] is not installed")
    root, out = tree(tmp_path / "in"), tmp_path / "out"
    done = run_cli("score", tiny_bundle, root, "--out", out, "--dicom-out")
    assert done.code == 0, done
    made = {path.parent.relative_to(out / "dicom").as_posix() for path in (out / "dicom").rglob("mask.dcm")}
    assert made == {"in/alone", f"in/both/{FIRST}", f"in/both/{SECOND}", "in/chest/film.dcm"}  # and none of the PNG
    mapped = pydicom.dcmread(out / "dicom" / "in" / "alone" / "map.dcm")
    volume, heat = read_series(root / "alone"), loaded(out / "maps" / "in" / "alone.nii.gz").get_fdata()
    stored = np.frombuffer(mapped.FloatPixelData, dtype=np.float32).reshape(mapped.NumberOfFrames, mapped.Rows, mapped.Columns)
    assert len(stored) == len(volume)
    seen = np.sort(heat[np.isfinite(heat)].astype(np.float32))
    np.testing.assert_array_equal(np.sort(stored[stored != mapped.FloatPixelPaddingValue]), seen)


def test_some_kinds_of_dicom_results(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("highdicom", reason="reshift[dicom] is not installed")
    series(tmp_path / "scan")

    def made(name: str, *kinds: str) -> dict[str, str]:
        out = tmp_path / name
        assert run_cli("score", tiny_bundle, tmp_path / "scan", "--out", out, "--dicom-out", *kinds).code == 0
        return {path.name: pydicom.dcmread(path).SOPInstanceUID for path in (out / "dicom").rglob("*.dcm")}

    every, some = made("every"), made("some", "--dicom-kinds", "mask, report")
    assert sorted(some) == ["mask.dcm", "report.dcm"]
    assert some.items() < every.items()  # the same objects, whatever else is made
    assert sorted(made("map", "--dicom-kinds", "map")) == ["map.dcm"]
    wrong = ("score", tiny_bundle, tmp_path / "scan", "--out", tmp_path / "no", "--dicom-out", "--dicom-kinds")
    refused(run_cli(*wrong, "mask,seg"), "'seg' is not known", "mask, report, map, overlay")
    refused(run_cli(*wrong, "report"), "ask for both: mask,report")
    assert not (tmp_path / "no").exists()


def test_dicom_results_need_the_extra_and_a_threshold(
    run_cli: Cli, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    series(tmp_path / "scan")
    score = ("score", tiny_bundle, tmp_path / "scan", "--out", tmp_path / "out", "--dicom-out")
    monkeypatch.setattr("reshift.inference.score.find_spec", lambda _name: None)
    refused(run_cli(*score), "pip install 'reshift[dicom]'")
    monkeypatch.undo()
    bare = shutil.copytree(tiny_bundle, tmp_path / "bare")
    (bare / "calibration.json").unlink()
    refused(run_cli("score", bare, *score[2:]), "reshift calibrate")


def test_what_is_odd_about_a_series_is_said(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    series(tmp_path / "scan", count=7)
    sorted((tmp_path / "scan").iterdir())[1].unlink()
    done = run_cli("score", tiny_bundle, tmp_path / "scan", "--out", tmp_path / "out")
    assert done.code == 0
    assert any(line.startswith("warning: ") and "is one missing?" in line for line in done.err.splitlines()), done.err


def test_a_scan_that_dicom_cannot_make_a_result_of_keeps_its_score(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("highdicom", reason="reshift[dicom] is not installed")
    film = grey(values(9), SeriesInstanceUID=OTHER + ".3")
    del film.StudyInstanceUID
    write(film, tmp_path / "in" / "film.dcm")
    series(tmp_path / "in" / "scan", StudyInstanceUID="")
    out = tmp_path / "out"
    done = run_cli("score", tiny_bundle, tmp_path / "in", "--out", out, "--dicom-out")
    assert done.code == 3
    for record in (record for record in read_records(out) if record["slice"] is None):
        assert record["score"] is not None
        assert "StudyInstanceUID" in record["error"]
        assert (out / record["map"]).exists()
