"""``reshift pacs score --push`` in the rounds, beside a real Orthanc: what it holds before and after."""

import hashlib
import json
import shutil
import sqlite3
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path

from orthanc import PLUGIN, Orthanc, running_orthanc
from pacs_studies import states, write_study

STUDIES = 2


def is_here(command: str) -> bool:
    """Whether this machine can run the rounds of a command."""
    orthanc = shutil.which("Orthanc", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    return command != "pacs" or bool(orthanc and PLUGIN.exists() and find_spec("dicomweb_client") and find_spec("highdicom"))


class Archives:
    """An Orthanc, started when it is first needed."""

    def __init__(self, home: Path) -> None:
        self.home, self.stack = home, ExitStack()
        self.running: Orthanc | None = None
        self.sources: list[Path] = []

    def close(self) -> None:
        """End it."""
        self.stack.close()

    def filled(self) -> str:
        """The address of an archive with two studies; before the second run of a round it is left as it is."""
        if self.running is None:
            self.running = self.stack.enter_context(running_orthanc(self.home / "orthanc"))
            self.sources = [path for number in range(1, STUDIES + 1) for path in write_study(self.home / "studies", number)]
        if not (self.home / "out").exists():
            self.running.delete_all()
            self.running.upload(self.sources)
        return self.running.dicomweb

    def check(self, where: str, out: Path) -> None:
        """Every study has its results in the archive, and each of them once."""
        assert self.running is not None
        made = len(list(out.rglob("*.dcm")))
        assert list(states(out)) == ["pushed"], where
        assert len(self.running.instances()) == len(self.sources) + made, where
        masks = [found["count"] for found in self.running.series() if found["Modality"] == "SEG"]
        assert masks == [1] * STUDIES, f"{where}: {masks}"


def about(path: Path) -> str:
    """What two runs have in common of a ledger or a DICOM object."""
    if path.suffix == ".dcm":
        from pydicom import dcmread

        found = dcmread(path)
        return f"{found.SOPClassUID} {hashlib.sha256(found.get('PixelData', b'')).hexdigest()}"
    with closing(sqlite3.connect(path)) as database:
        series = database.execute("SELECT name, state, reason, instances, score, flagged FROM series ORDER BY name").fetchall()
        made = database.execute("SELECT path, stored FROM result ORDER BY path").fetchall()
    return json.dumps([series, made])
