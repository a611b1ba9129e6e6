"""``reshift pacs score`` against a real Orthanc: what comes out, and that nothing is done twice."""

import csv
import sqlite3
from pathlib import Path

import dicom_files
import pydicom
import pytest
from helpers import Cli, refused
from orthanc import Orthanc
from pacs_studies import STUDY, states, write_study

from reshift.pacs.query import parse_since


def score(run_cli: Cli, bundle: Path, archive: Orthanc, out: Path, *more: object) -> str:
    outcome = run_cli("pacs", "score", bundle, "--dicomweb", archive.dicomweb, "--out", out, *more)
    assert outcome.code == 0, outcome
    return outcome.out


def test_results_are_stored_once(run_cli: Cli, tiny_bundle: Path, archive: Orthanc, tmp_path: Path) -> None:
    sources = [path for number in (1, 2) for path in write_study(tmp_path, number)]
    archive.upload(sources)
    out = tmp_path / "out"
    assert "2 series, 2 scored, 0 failed, 0 results stored" in score(run_cli, tiny_bundle, archive, out)
    assert len(archive.instances()) == len(sources)  # nothing is stored unless asked for
    first = score(run_cli, tiny_bundle, archive, out, "--push")
    stored = archive.instances()
    made = sorted(out.rglob("*.dcm"))
    assert f"{len(made)} results stored" in first
    assert len(stored) == len(sources) + len(made)
    assert {str(pydicom.dcmread(path).SOPInstanceUID) for path in made} <= set(stored)
    assert {found["Modality"] for found in archive.series()} >= {"CT", "SEG", "OT"}
    for path in made:  # into the studies they belong to
        assert str(pydicom.dcmread(path).StudyInstanceUID) in (f"{STUDY}.1", f"{STUDY}.2")
    again = score(run_cli, tiny_bundle, archive, out, "--push")
    assert again == first
    assert archive.instances() == stored
    assert not any((out / "spool").iterdir())


def test_our_own_results_are_not_scored(run_cli: Cli, tiny_bundle: Path, archive: Orthanc, tmp_path: Path) -> None:
    archive.upload(write_study(tmp_path, 1))
    score(run_cli, tiny_bundle, archive, tmp_path / "a", "--push")
    assert "1 series, 1 scored, 0 failed" in score(run_cli, tiny_bundle, archive, tmp_path / "b")  # knows nothing of a


def test_a_lost_ledger_entry_stores_nothing_twice(run_cli: Cli, tiny_bundle: Path, archive: Orthanc, tmp_path: Path) -> None:
    """As after a kill between the archive's answer and our note of it."""
    archive.upload(write_study(tmp_path, 1))
    out = tmp_path / "out"
    score(run_cli, tiny_bundle, archive, out, "--push")
    stored = archive.instances()
    with sqlite3.connect(out / "ledger.sqlite") as db:
        db.execute("UPDATE result SET stored = 0")
        db.execute("UPDATE series SET state = 'scored'")
    db.close()
    score(run_cli, tiny_bundle, archive, out, "--push")
    assert archive.instances() == stored
    assert list(states(out)) == ["pushed"]


def test_filters(run_cli: Cli, tiny_bundle: Path, archive: Orthanc, tmp_path: Path) -> None:
    for number, date in ((1, "20200101"), (2, "20260110"), (3, "20260120")):
        archive.upload(write_study(tmp_path, number, 3, StudyDate=date))
    archive.upload(write_study(tmp_path, 3, 3, SeriesInstanceUID=f"{STUDY}.3.2", Modality="MR", StudyDate="20260120"))
    mr = score(run_cli, tiny_bundle, archive, tmp_path / "mr", "--query", "Modality=MR,StudyDate=20260101-")
    assert mr.startswith("1 series, 1 scored")
    assert list(states(tmp_path / "mr").values()) == [[""]]
    out = tmp_path / "new"
    assert score(run_cli, tiny_bundle, archive, out, "--new-since", "2026-01-15").startswith("2 series")  # CT and MR of study 3
    assert score(run_cli, tiny_bundle, archive, out, "--new-since", "last").startswith("2 series")
    assert score(run_cli, tiny_bundle, archive, tmp_path / "one", "--study", f"{STUDY}.1").startswith("1 series")
    few = tmp_path / "few"
    for wanted in (1, 2, 4):  # the next run takes the next study
        assert score(run_cli, tiny_bundle, archive, few, "--max-studies", "1").split(",")[1] == f" {wanted} scored"


def test_clocks_that_differ_lose_no_study(run_cli: Cli, tiny_bundle: Path, archive: Orthanc, tmp_path: Path) -> None:
    """A study that a slow clock has dated a day early, and one that a fast clock has dated in the future, are both found."""
    for number, date in ((1, "20260113"), (2, "20260114"), (3, "20991231")):
        archive.upload(write_study(tmp_path, number, 3, StudyDate=date))
    found = score(run_cli, tiny_bundle, archive, tmp_path / "out", "--new-since", "2026-01-15", "--dicom-kinds", "mask")
    assert found.startswith("2 series, 2 scored")
    assert {path.name for path in (tmp_path / "out" / "series").rglob("*.dcm")} == {"mask.dcm"}
    assert parse_since("last", "2026-01-15T00:10:00+00:00") == "20260114-"


def test_what_is_no_image_is_left_out(run_cli: Cli, tiny_bundle: Path, archive: Orthanc, tmp_path: Path) -> None:
    report = dicom_files.grey(dicom_files.values(), StudyInstanceUID=f"{STUDY}.1", SeriesInstanceUID=f"{STUDY}.9")
    report.SOPClassUID = "1.2.840.10008.5.1.4.1.1.88.11"  # Basic Text SR
    for modality, uid in (("SR", "9"), ("OT", "10")):
        report.Modality, report.SeriesInstanceUID = modality, f"{STUDY}.{uid}"
        report.SOPInstanceUID = f"{STUDY}.1.{uid}"
        archive.upload([dicom_files.write(report, tmp_path / f"{modality}.dcm")])
    archive.upload(write_study(tmp_path, 1))
    assert "1 scored, 0 failed" in score(run_cli, tiny_bundle, archive, tmp_path / "out")
    assert states(tmp_path / "out").get("skipped") == ["it has no images"]


def test_the_table_and_the_messages_have_no_patient_data(
    run_cli: Cli, tiny_bundle: Path, archive: Orthanc, tmp_path: Path
) -> None:
    archive.upload(write_study(tmp_path, 1))
    outcome = run_cli("pacs", "score", tiny_bundle, "--dicomweb", archive.dicomweb, "--out", tmp_path / "out", "--push")
    with (tmp_path / "out" / "series.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["state"], row["instances"], row["modality"]) == ("pushed", "4", "CT")
    texts = [outcome.out + outcome.err, *(str(path) for path in tmp_path.rglob("out/**/*"))]
    texts += [path.read_text() for path in (tmp_path / "out").rglob("*.[cj]s*")]
    for secret in (*dicom_files.SECRETS, STUDY):
        assert not any(secret in text for text in texts)


def test_mistakes(run_cli: Cli, tiny_bundle: Path, archive: Orthanc, tmp_path: Path) -> None:
    def mistake(*more: object, url: object = archive.dicomweb, words: str) -> None:
        refused(run_cli("pacs", "score", tiny_bundle, "--dicomweb", url, "--out", tmp_path / "out", *more), words)

    mistake("--query", "Modalty=MR", words="did you mean Modality?")
    mistake("--query", "MR", words="KEYWORD=VALUE")
    mistake("--study", "../../etc", words="is not a UID")
    mistake("--study", "1.2", "--query", "Modality=MR", words="leave out --query")
    mistake("--new-since", "yesterday", words="is not a date")
    mistake("--new-since", "last", words="no run has finished")
    mistake("--overlays", "some", "--study", "1.2.3", url="ftp://x", words="needs an address")
    mistake(url="http://user:secret@127.0.0.1/dicom-web", words="leave user and password out")
    mistake("--retries", "0", url="http://127.0.0.1:9/dicom-web", words="no answer")
    mistake("--ca", tmp_path / "none.pem", words="no such file")
    assert run_cli("pacs", "score", tiny_bundle, "--dicomweb", archive.dicomweb, "--out", tmp_path / "out").code == 0
    mistake(url=archive.dicomweb.replace("127.0.0.1", "localhost"), words="belongs to another archive")


def test_a_study_that_is_not_there_fails(run_cli: Cli, tiny_bundle: Path, archive: Orthanc, tmp_path: Path) -> None:
    outcome = run_cli("pacs", "score", tiny_bundle, "--dicomweb", archive.dicomweb, "--out", tmp_path / "o", "--study", "1.2.3")
    assert outcome.code == 3
    assert "not in the archive" in outcome.err


@pytest.mark.parametrize("command", ["score", "listen"])
def test_help(run_cli: Cli, command: str) -> None:
    shown = run_cli("pacs", command, "--help")
    assert shown.code == 0
    assert "--out" in shown.out
