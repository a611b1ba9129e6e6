"""Series full of patient data from an archive and from a sender: canaries are in DICOM objects, and nowhere else."""

from pathlib import Path

import pydicom
import pytest
from canaries import CANARY, DATE, UID, full_series, leaks
from helpers import Cli
from orthanc import Orthanc
from test_pacs_listen import listening

LEDGER = ("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm")  # has UIDs, which lead to the patient in the archive


def only_in_dicom(out: Path, said: str) -> None:
    """No canary but in DICOM files, and in the ledger nothing but UIDs."""
    assert [place for place in leaks(out, said, allowed=(".dcm",)) if place not in LEDGER] == []
    ledger = (out / "ledger.sqlite").read_bytes()
    assert UID.encode() in ledger
    assert not any(text.encode() in ledger for text in (CANARY, CANARY.upper(), DATE))


@pytest.mark.filterwarnings("ignore::UserWarning:pydicom")
def test_an_archive(run_cli: Cli, tiny_bundle: Path, archive: Orthanc, tmp_path: Path) -> None:
    full_series(tmp_path / "in", 3)
    archive.upload(sorted((tmp_path / "in").glob("*.dcm")))
    out = tmp_path / "out"
    outcome = run_cli("pacs", "score", tiny_bundle, "--dicomweb", archive.dicomweb, "--out", out, "--push", "--overlays", "all")
    assert outcome.code == 0, outcome
    made = sorted(out.rglob("*.dcm"))
    assert made
    assert all(str(pydicom.dcmread(path).PatientID).startswith(CANARY) for path in made)
    only_in_dicom(out, outcome.out + outcome.err)


@pytest.mark.filterwarnings("ignore::UserWarning:pydicom")
def test_a_sender(tiny_bundle: Path, tmp_path: Path) -> None:
    full_series(tmp_path / "in", 3)
    with listening(tiny_bundle, tmp_path / "made" / "out") as listener:
        assert listener.send(*sorted((tmp_path / "in").glob("*.dcm"))) == [0, 0, 0]
        listener.wait("scored")
        log = listener.log
    only_in_dicom(tmp_path / "made" / "out", log.read_text())
