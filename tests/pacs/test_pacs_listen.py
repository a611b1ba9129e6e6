"""``reshift pacs listen`` as a process of its own, with real peers: pynetdicom as sender, Orthanc as receiver."""

import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dicom_files
import pytest
from forked import Forked
from helpers import Cli, refused, start
from orthanc import Orthanc, free_port
from pacs_studies import STUDY, states, write_study
from processes import wait_until
from pydicom import dcmread
from pydicom.config import disable_value_validation
from pydicom.dataset import Dataset
from pydicom.uid import HTJ2K, UID, ExplicitVRLittleEndian

pytest.importorskip("pynetdicom", reason="reshift[pacs] is not installed")
from pynetdicom import AE, build_context

CT, SR = "1.2.840.10008.5.1.4.1.1.2", "1.2.840.10008.5.1.4.1.1.88.11"


class Listener:
    """The process, and what it has printed so far."""

    def __init__(self, process: Forked, port: int, out: Path, log: Path) -> None:
        self.process, self.port, self.out, self.log = process, port, out, log

    def wait(self, words: str, times: int = 1) -> None:
        wait_until(lambda: self.log.read_text().count(words) >= times, self.process)

    def associate(self, title: str = "SENDER", called: str = "RESHIFT", contexts: Any = None) -> Any:
        entity = AE(title)
        entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = 20
        wanted = contexts or [build_context(CT, ExplicitVRLittleEndian), build_context("1.2.840.10008.1.1")]
        return entity.associate("127.0.0.1", self.port, wanted, ae_title=called)

    def send(self, *sources: Path | Dataset) -> list[int]:
        """The status of each."""
        association = self.associate()
        found = [association.send_c_store(source).get("Status") for source in sources]
        association.release()
        return found


@contextmanager
def listening(bundle: Path, out: Path, *more: object, end: signal.Signals = signal.SIGTERM) -> Iterator[Listener]:
    out.parent.mkdir(exist_ok=True)
    port, log = free_port(), out.parent / "log"
    divert = f"import sys; sys.stderr = open({str(log)!r}, 'a', buffering=1)"
    log.write_text("")
    arguments = ("--aet", "RESHIFT", "--port", port, "--out", out, "--quiet", 0.3, "--allow", "SENDER")
    process = start("pacs", "listen", bundle, *arguments, *more, prelude=divert)
    try:
        listener = Listener(process, port, out, log)
        listener.wait("listening")
        yield listener
    finally:
        process.send_signal(end)
        process.communicate(timeout=60)


def test_a_series_is_scored_and_its_results_sent_on(tiny_bundle: Path, archive: Orthanc, tmp_path: Path) -> None:
    files = write_study(tmp_path, 1)
    forward = ("--forward", f"ORTHANC@127.0.0.1:{archive.dicom}")
    with listening(tiny_bundle, tmp_path / "out", *forward) as listener:
        association = listener.associate()
        assert association.send_c_echo().Status == 0x0000
        association.release()
        assert listener.send(*files[:2]) == [0, 0]  # in two associations; the second soon enough
        assert listener.send(*files[2:]) == [0, 0]
        listener.wait("results sent")
        assert listener.send(*files) == [0, 0, 0, 0]  # again: nothing is done twice
        stored = archive.instances()
        assert len(stored) == len(list((tmp_path / "out").rglob("*.dcm"))) > 0
        late = dcmread(files[0])
        late.SOPInstanceUID = late.file_meta.MediaStorageSOPInstanceUID = UID(f"{STUDY}.1.1.99")
        late.ImagePositionPatient = [-31.0, 12.5, 17.25]
        assert listener.send(late) == [0]
        listener.wait("came after it was scored")
        assert listener.send(*files, late) == [0, 0, 0, 0, 0]
        listener.wait("scored, 5 instances")
    assert listener.process.returncode == 3  # one failed
    text = listener.log.read_text()
    assert not any(secret in text for secret in (*dicom_files.SECRETS, STUDY))


def test_what_was_received_survives_a_kill(tiny_bundle: Path, tmp_path: Path) -> None:
    files = write_study(tmp_path, 1)
    with listening(tiny_bundle, tmp_path / "out", "--quiet", 60, end=signal.SIGKILL) as listener:
        assert listener.send(*files) == [0, 0, 0, 0]
    assert states(tmp_path / "out") == {"found": [""]}
    with listening(tiny_bundle, tmp_path / "out") as listener:
        listener.wait("scored, 4 instances")
    assert states(tmp_path / "out") == {"scored": [""]}


def test_refusals(tiny_bundle: Path, tmp_path: Path) -> None:
    (file,) = write_study(tmp_path, 1, 1)
    with listening(tiny_bundle, tmp_path / "out") as listener:
        assert listener.associate("STRANGER").is_rejected
        assert listener.associate(called="SOMEBODY").is_rejected
        unknown = [build_context(CT, HTJ2K), build_context(SR, ExplicitVRLittleEndian), build_context(CT, ExplicitVRLittleEndian)]
        association = listener.associate(contexts=unknown)
        assert sorted(context.result for context in association.rejected_contexts) == [3, 4]  # the class, the transfer syntax
        association.release()
        for tag, value in (("StudyInstanceUID", "../../etc/passwd"), ("SeriesInstanceUID", "/tmp/x"), ("StudyInstanceUID", "")):
            hostile = dcmread(file)
            with disable_value_validation():
                setattr(hostile, tag, value)
                assert listener.send(hostile) == [0xA900]
        oversized_pdu(listener)
        assert listener.send(file) == [0]  # it still works
    text = listener.log.read_text()
    for words in ("from 'STRANGER'", "UID that is missing or not valid (status 0xA900)", "a PDU larger than allowed"):
        assert words in text
    assert not any(secret in text for secret in (*dicom_files.SECRETS, STUDY, "passwd"))
    assert len(list((tmp_path / "out" / "incoming").rglob("*.dcm"))) + len(states(tmp_path / "out").get("failed", [])) == 1


def oversized_pdu(listener: Listener) -> None:
    """A request for an association that claims four gigabytes is answered with an abort before they are sent."""
    with socket.create_connection(("127.0.0.1", listener.port), timeout=20) as peer:
        peer.sendall(struct.pack(">BBL", 1, 0, 2**32 - 1) + b"x" * 100)
        assert peer.recv(10)[:1] == b"\x07"


def test_a_full_spool_is_out_of_resources_and_sigterm_ends_it_cleanly(tiny_bundle: Path, tmp_path: Path) -> None:
    files = write_study(tmp_path, 1, 4, TextValue="x" * 400_000)
    with listening(tiny_bundle, tmp_path / "out", "--spool-gb", "0.001", "--quiet", 60) as listener:
        assert listener.send(*files) == [0, 0, 0xA700, 0xA700]
    assert listener.process.returncode == 0
    assert "stopping; what was received is kept" in listener.log.read_text()


def test_mistakes(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    def mistake(*more: object, words: str) -> None:
        refused(run_cli("pacs", "listen", tiny_bundle, "--port", free_port(), "--out", tmp_path / "out", *more), words)

    mistake("--aet", "much too long a title", words="is not an AE title")
    mistake("--aet", "RESHIFT", "--forward", "ORTHANC", words="AET@host:port")
    mistake("--aet", "RESHIFT", "--host", "0.0.0.0", words="--allow AET")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        mistake("--aet", "RESHIFT", "--port", taken.getsockname()[1], words="cannot be used")
