"""A real Orthanc with its DICOMweb plug-in, on free loopback ports and in a temporary folder."""

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PLUGIN = Path("/usr/share/orthanc/plugins/libOrthancDicomWeb.so")
SECONDS = 60.0  # until it answers


class Orthanc:
    """A running server."""

    def __init__(self, http: int, dicom: int, process: "subprocess.Popen[bytes]") -> None:
        self.http, self.dicom, self.process = http, dicom, process
        self.url = f"http://127.0.0.1:{http}"
        self.dicomweb = f"{self.url}/dicom-web"

    def ask(self, path: str, data: bytes | None = None, method: str | None = None) -> Any:
        """Its own REST API; the answer as JSON."""
        request = urllib.request.Request(f"{self.url}/{path}", data=data, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            body = answer.read()
        return json.loads(body) if body else None

    def upload(self, files: Iterable[Path]) -> None:
        """Store DICOM files."""
        for path in files:
            self.ask("instances", path.read_bytes())

    def instances(self) -> list[str]:
        """The SOP instance UID of every instance, sorted."""
        query = json.dumps({"Level": "Instance", "Query": {}, "Expand": True}).encode()
        return sorted(found["MainDicomTags"]["SOPInstanceUID"] for found in self.ask("tools/find", query))

    def series(self) -> list[dict[str, Any]]:
        """Main tags of every series, with its number of instances."""
        query = json.dumps({"Level": "Series", "Query": {}, "Expand": True}).encode()
        return [{**found["MainDicomTags"], "count": len(found["Instances"])} for found in self.ask("tools/find", query)]

    def delete_all(self) -> None:
        """Empty it."""
        for study in self.ask("studies"):
            self.ask(f"studies/{study}", method="DELETE")


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_orthanc(folder: Path, **settings: Any) -> Iterator[Orthanc]:
    """Start it, wait until it answers, and end it after the block."""
    program = shutil.which("Orthanc", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if program is None or not PLUGIN.exists():
        pytest.skip("Orthanc with DICOMweb is not installed (Debian: orthanc orthanc-dicomweb)")
    http, dicom = free_port(), free_port()
    config = {
        "StorageDirectory": str(folder / "storage"),
        "IndexDirectory": str(folder / "storage"),
        "Plugins": [str(PLUGIN)],
        "RemoteAccessAllowed": False,
        "AuthenticationEnabled": False,
        "HttpPort": http,
        "DicomPort": dicom,
        "DicomAet": "ORTHANC",
        "DicomAlwaysAllowStore": True,
        "SaveJobs": False,
        "DicomWeb": {"Enable": True, "Root": "/dicom-web/"},
        **settings,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "orthanc.json").write_text(json.dumps(config))
    with (folder / "orthanc.log").open("wb") as log:
        process = subprocess.Popen([program, str(folder / "orthanc.json")], stdout=log, stderr=log)
    try:
        server = Orthanc(http, dicom, process)
        _wait(server, folder / "orthanc.log")
        yield server
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(server: Orthanc, log: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            server.ask("dicom-web/studies?limit=1")
            return
        except urllib.error.HTTPError:  # it wants a password
            return
        except OSError:
            assert server.process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, "Orthanc did not start"
            time.sleep(0.05)
