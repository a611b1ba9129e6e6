"""``--anonymise``: nothing of the patient in any result, consistent new UIDs, and a key file that only its owner reads."""

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from canaries import CANARY, full_series, leaks
from dicom_checks import dciodvfy_errors, program
from dicom_files import enhanced, grey, series, values, write
from dicom_kinds import KINDS
from helpers import Cli, refused

from reshift.data.dicom.series import DicomVolume, read_dicom
from reshift.inference.dicom_export.anonymise import Key
from reshift.inference.dicom_export.export import Result, Setup, export_result
from reshift.inference.dicom_export.sources import read_sources

pytest.importorskip("highdicom")


def lines(key: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in key.read_text().splitlines()]


def test_results_have_no_patient_and_the_key_file_has(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    full_series(tmp_path / "in" / "scan", BurnedInAnnotation="NO")
    key, out = tmp_path / "keys" / "key.jsonl", tmp_path / "out"
    score = ("score", tiny_bundle, tmp_path / "in", "--out", out, "--dicom-out", "--anonymise", key)
    assert run_cli(*score).code == 0
    files = sorted((out / "dicom").rglob("*.dcm"))
    assert {"mask.dcm", "map.dcm", "report.dcm"} < {path.name for path in files}
    assert leaks(out, text="") == []
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    secret, *names = lines(key)
    assert len(secret["secret"]) == 64
    known = {line["new"]: line for line in names}
    source = pydicom.dcmread(next((tmp_path / "in" / "scan").iterdir()))
    for path in files:
        made = pydicom.dcmread(path)
        assert known[made.StudyInstanceUID]["old"] == source.StudyInstanceUID
        assert known[made.StudyInstanceUID]["PatientID"] == source.PatientID
        assert (made.PatientName, made.PatientIdentityRemoved) == (made.PatientID, "YES")
        assert known[made.StudyInstanceUID]["patient"] == made.PatientID
        assert made.DeidentificationMethodCodeSequence[0].CodeValue == "113100"
    uids = {line["old"] for line in names}
    assert uids >= {str(pydicom.dcmread(path).SOPInstanceUID) for path in (tmp_path / "in" / "scan").iterdir()}
    before = key.read_bytes()
    again = ("score", tiny_bundle, tmp_path / "in", "--out", tmp_path / "again", *score[5:])
    assert run_cli(*again).code == 0
    assert key.read_bytes() == before
    for path in files:
        other = pydicom.dcmread(tmp_path / "again" / path.relative_to(out))
        assert other.SOPInstanceUID == pydicom.dcmread(path).SOPInstanceUID
    assert run_cli(*again[:3], "--out", tmp_path / "plain", "--dicom-out").code == 0
    plain = {pydicom.dcmread(path).SOPInstanceUID for path in (tmp_path / "plain" / "dicom").rglob("*.dcm")}
    assert not plain & {pydicom.dcmread(path).SOPInstanceUID for path in files}


def test_overlays_need_a_source_without_burned_in_text(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    series(tmp_path / "in" / "scan", 3)
    command = ("score", tiny_bundle, tmp_path / "in", "--out", tmp_path / "out", "--dicom-out", "--anonymise", tmp_path / "key")
    assert run_cli(*command).code == 0
    assert {path.name for path in (tmp_path / "out" / "dicom").rglob("*.dcm")} == {"mask.dcm", "map.dcm", "report.dcm"}


@pytest.mark.skipif(program("dciodvfy") is None, reason="dciodvfy is not installed (Debian package dicom3tools)")
@pytest.mark.parametrize("kind", ["CT series", "enhanced MR", "CR", "US"])
def test_anonymised_results_are_valid(tmp_path: Path, kind: str) -> None:
    scan = KINDS[kind](tmp_path / "in")
    shape = scan.voxels.shape if isinstance(scan, DicomVolume) else scan.pixels.shape[:2]
    result = Result(scan, np.random.default_rng(0).random(shape).astype(np.float32), None, {"score": 1.0, "p_value": 0.5})
    assert export_result(tmp_path / "out", result, Setup(0.7, 1.4, "model", key=Key(tmp_path / "key"))) is None
    files = sorted((tmp_path / "out").glob("*.dcm"))
    assert {path.name: dciodvfy_errors(path) for path in files} == {path.name: [] for path in files}


def test_geometry_stays_and_text_in_functional_groups_goes(tmp_path: Path) -> None:
    ds = enhanced()
    ds.PerFrameFunctionalGroupsSequence[0].FrameContentSequence[0].FrameComments = CANARY
    ds.PerFrameFunctionalGroupsSequence[0].PlanePositionSequence[0].PatientComments = CANARY
    scan = read_dicom(write(ds, tmp_path / "a.dcm"))
    assert isinstance(scan, DicomVolume)
    [source] = read_sources(scan)
    [made] = Key(tmp_path / "key").anonymise([source])
    assert CANARY not in str(made)
    for k in range(4):
        places = [one.PerFrameFunctionalGroupsSequence[k].PlanePositionSequence[0].ImagePositionPatient for one in (source, made)]
        assert places[0] == places[1]


def test_patients_keep_their_pseudonym_under_one_key_only(tmp_path: Path) -> None:
    sources = []
    for name, patient in (("a", "7"), ("b", "7"), ("c", "8")):
        image = read_dicom(write(grey(values(), stored=12, PatientID=patient), tmp_path / f"{name}.dcm"))
        sources += read_sources(image)
    key = Key(tmp_path / "key")
    one, two, other = (made.PatientID for made in key.anonymise(sources))
    assert one == two != other
    assert Key(tmp_path / "key").anonymise(sources)[0].PatientID == one
    assert Key(tmp_path / "second").anonymise(sources)[0].PatientID != one


def test_mistakes(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    series(tmp_path / "scan", 3)
    score = ("score", tiny_bundle, tmp_path / "scan", "--out", tmp_path / "out")
    refused(run_cli(*score, "--anonymise", tmp_path / "key"), "--dicom-out")
    refused(run_cli(*score, "--dicom-out", "--anonymise", tmp_path / "out" / "key"), "elsewhere")
    (tmp_path / "photo.png").write_bytes(b"not a key")
    refused(run_cli(*score, "--dicom-out", "--anonymise", tmp_path / "photo.png"), "photo.png", "is not a key file")
    refused(run_cli(*score, "--dicom-out", "--engine", "ray", "--anonymise", tmp_path / "key"), "--engine local")
    assert (tmp_path / "photo.png").read_bytes() == b"not a key"
    assert run_cli(*score, "--dicom-out").code == 0
    refused(run_cli(*score, "--dicom-out", "--anonymise", tmp_path / "key"), "never mixed")


def test_a_key_file_that_was_cut_short_or_removed_is_used_on(tmp_path: Path) -> None:
    image = read_dicom(write(grey(values(), stored=12), tmp_path / "a.dcm"))
    sources, path = read_sources(image), tmp_path / "key"
    key = Key(path)
    alias, whole = key.anonymise(sources)[0].PatientID, path.read_bytes()
    path.write_bytes(whole + b'{"new": "2.2')
    path.chmod(0o644)
    assert Key(path).anonymise(sources)[0].PatientID == alias
    assert path.read_bytes() == whole
    path.unlink()
    key.anonymise(sources)
    assert path.read_bytes() == whole
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
