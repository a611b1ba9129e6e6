"""An archive that misbehaves: each fault ends in a retry, a listed case or one line; nothing is lost or stored twice."""

from collections.abc import Callable
from pathlib import Path

import pytest
from faulty_proxy import Fault, FaultyProxy
from helpers import Cli, Outcome, refused, run_process
from orthanc import Orthanc
from pacs_studies import STUDY, states, write_study

Score = Callable[..., Outcome]


@pytest.fixture
def score(run_cli: Cli, tiny_bundle: Path, proxy: FaultyProxy, archive: Orthanc, tmp_path: Path) -> Score:
    """Two studies lie in the archive; run with ``--push`` through the proxy."""
    for number in (1, 2):
        archive.upload(write_study(tmp_path, number))

    def run(*faults: Fault, retries: int = 1) -> Outcome:
        proxy.plan(*faults)
        url = f"{proxy.url}/dicom-web"
        return run_cli("pacs", "score", tiny_bundle, "--dicomweb", url, "--out", tmp_path / "out", "--push", "--retries", retries)

    return run


def everything_stored(archive: Orthanc, out: Path) -> None:
    """Both studies have their results, each once."""
    assert list(states(out)) == ["pushed"]
    assert len(archive.instances()) == 8 + len(list(out.rglob("*.dcm")))
    assert sorted(found["count"] for found in archive.series() if found["Modality"] == "SEG") == [1, 1]


WADO = Fault("GET", "", end=f"/series/{STUDY}.1.1")  # the whole series of study 1
ONE = f"/series/{STUDY}.1.1/instances/{STUDY}.1.1.3"  # one instance of it
STOW = Fault("POST", f"/studies/{STUDY}.1")


@pytest.mark.parametrize(
    "fault",
    [
        Fault("GET", "/studies", status=503, times=1, headers=(("Retry-After", "0"),)),
        Fault("GET", "/studies", reset=True, times=1),
        WADO._replace(status=500),  # instances come one by one
        WADO._replace(cut=True, times=1),
        WADO._replace(body=lambda body: body[: len(body) * 2 // 3]),  # whole by its length, but not by its boundaries
        Fault("GET", "/studies", body=lambda _: b"{not json", times=1),
        STOW._replace(reset=True, times=1),
    ],
)
def test_what_may_pass_is_tried_again(score: Score, archive: Orthanc, tmp_path: Path, fault: Fault) -> None:
    outcome = score(fault)
    assert outcome.code == 0, outcome
    everything_stored(archive, tmp_path / "out")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (WADO._replace(status=403), "403"),
        (WADO._replace(status=404), "not in the archive any more"),
        (Fault("GET", f"/series/{STUDY}.1.1", status=500), "failed 2 times"),
        (Fault("GET", f"/studies/{STUDY}.1/series", end="/series", status=404), "not in the archive any more"),
        (STOW._replace(status=413), "larger than the archive takes"),
        (WADO._replace(body=lambda body: body.replace(f"{STUDY}.1.1.3".encode(), f"{STUDY}.1.1.2".encode())), "one SOP"),
    ],
)
def test_a_case_that_fails_is_listed_and_tried_again(
    score: Score, archive: Orthanc, tmp_path: Path, fault: Fault, words: str
) -> None:
    outcome = score(fault)
    assert outcome.code == 3, outcome
    assert words in outcome.err
    assert "Okonkwo" not in outcome.err + outcome.out
    assert len(states(tmp_path / "out")["pushed"]) == 1  # the other study
    assert score().code == 0
    everything_stored(archive, tmp_path / "out")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault("GET", "/studies", status=401), "asks for credentials (401)"),
        (Fault("GET", "/studies", status=403), "403"),
        (Fault("GET", "/studies", status=302, headers=(("Location", "http://127.0.0.1:1/"),)), "redirects elsewhere"),
        (Fault("GET", "", reset=True), "no answer"),
    ],
)
def test_an_archive_that_cannot_be_used_ends_the_run(
    score: Score, archive: Orthanc, tmp_path: Path, fault: Fault, words: str
) -> None:
    refused(score(fault), words)
    assert score().code == 0
    everything_stored(archive, tmp_path / "out")


def test_an_archive_that_goes_away_ends_the_run_and_marks_nothing_as_failed(
    score: Score, archive: Orthanc, proxy: FaultyProxy, tmp_path: Path
) -> None:
    """When the first series is asked for, it stops to answer anything."""

    def leave() -> None:
        proxy.plan(Fault("GET", "", reset=True), Fault("POST", "", reset=True))

    refused(score(WADO._replace(before=leave, reset=True)), "no answer")
    assert "failed" not in states(tmp_path / "out")
    assert score().code == 0
    everything_stored(archive, tmp_path / "out")


def test_credentials_that_expire_end_the_run(score: Score, archive: Orthanc, tmp_path: Path) -> None:
    refused(score(STOW._replace(status=401)), "401")
    assert "failed" not in states(tmp_path / "out")
    assert score().code == 0
    everything_stored(archive, tmp_path / "out")


def test_a_study_deleted_meanwhile(score: Score, archive: Orthanc, tmp_path: Path) -> None:
    def delete() -> None:
        found = archive.ask("tools/lookup", f"{STUDY}.1".encode())
        archive.ask(f"studies/{found[0]['ID']}", method="DELETE")

    outcome = score(WADO._replace(before=delete, times=1))
    assert outcome.code == 3
    assert len(states(tmp_path / "out")["pushed"]) == 1
    assert len(states(tmp_path / "out")["failed"]) == 1


def test_an_instance_that_cannot_be_had(score: Score, tmp_path: Path) -> None:
    outcome = score(WADO._replace(status=500), Fault("GET", ONE, status=500))
    assert outcome.code == 3
    assert "1 of 4 instances could not be retrieved" in outcome.err


def test_an_instance_that_is_damaged(score: Score, archive: Orthanc, tmp_path: Path) -> None:
    def damage(body: bytes) -> bytes:
        at = body.index(b"DICM", body.index(b"DICM") + 4)
        return body[:at] + b"XXXX" + body[at + 4 :]

    outcome = score(WADO._replace(body=damage))
    assert outcome.code == 3
    assert "unreadable-0000.dcm" in outcome.err
    assert len(states(tmp_path / "out")["pushed"]) == 1


def test_two_geometries(run_cli: Cli, tiny_bundle: Path, archive: Orthanc, tmp_path: Path) -> None:
    archive.upload(write_study(tmp_path / "a", 1))
    archive.upload(write_study(tmp_path / "b", 1, 5, SeriesInstanceUID=f"{STUDY}.1.2", PixelSpacing=[2.0, 2.0]))
    mixed = write_study(tmp_path / "c", 1, 3, SeriesInstanceUID=f"{STUDY}.1.3")
    mixed += write_study(tmp_path / "d", 1, 5, SeriesInstanceUID=f"{STUDY}.1.3", PixelSpacing=[2.0, 2.0])[3:]
    archive.upload(mixed)
    outcome = run_cli("pacs", "score", tiny_bundle, "--dicomweb", archive.dicomweb, "--out", tmp_path / "out")
    assert outcome.code == 3
    found = states(tmp_path / "out")
    assert len(found["scored"]) == 2  # two series of different geometry are two cases
    assert "PixelSpacing" in found["failed"][0]


def test_a_full_spool(tiny_bundle: Path, archive: Orthanc, tmp_path: Path) -> None:
    """Files beyond a limit cannot be written, as on a full disk: the large series fails, the small one is scored."""
    archive.upload(write_study(tmp_path, 1))
    big = write_study(tmp_path, 2, 3, TextValue="x" * 200_000)
    archive.upload(big)
    arguments = ("pacs", "score", tiny_bundle, "--dicomweb", archive.dicomweb, "--out", tmp_path / "out")
    outcome = run_process(*arguments, largest_file=150_000)
    assert outcome.code == 3, outcome
    assert "the spool could not be written" in outcome.err
    assert not any((tmp_path / "out" / "spool").iterdir())
    assert run_process(*arguments).code == 0
    assert len(states(tmp_path / "out")["scored"]) == 2


def test_a_series_larger_than_the_spool(run_cli: Cli, tiny_bundle: Path, archive: Orthanc, tmp_path: Path) -> None:
    archive.upload(write_study(tmp_path, 1, TextValue="x" * 300_000))
    arguments = ("pacs", "score", tiny_bundle, "--dicomweb", archive.dicomweb, "--out", tmp_path / "out")
    outcome = run_cli(*arguments, "--spool-gb", "0.001")
    assert outcome.code == 3
    assert "raise --spool-gb" in outcome.err
    assert run_cli(*arguments).code == 0
