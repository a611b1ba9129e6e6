"""Receive instances (C-STORE): every one is on disk, and in the ledger, before its sender is told so.

A series is complete when no association that sent a part of it is open and nothing of it came for a while.
"""

import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any

from reshift.errors import UserError
from reshift.pacs.ledger import Ledger, Row
from reshift.pacs.spool import folder_size
from reshift.pacs.uids import instance_name, is_uid, modality_code
from reshift.system.files import atomic_bytes, remove_temporary_files, writing

SUCCESS, NO_ROOM, MISMATCH, NOT_UNDERSTOOD = 0x0000, 0xA700, 0xA900, 0xC000  # PS3.4 table B.2-1
TAGS = ("StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID", "SOPClassUID", "Modality")
LATE = "instances came after it was scored; raise --quiet and send the whole series again"


class Receiver:
    """The incoming series. Every association has a thread of its own and calls ``store``."""

    def __init__(self, ledger: Ledger, folder: Path, limit: int, quiet: float, log: Callable[[str], None]) -> None:
        self.ledger, self.folder, self.limit, self.quiet, self.log = ledger, folder, limit, quiet, log
        self._lock = Lock()
        self._last = dict[str, float]()  # when something of a series came
        self._senders = dict[int, set[str]]()  # open associations and the series they sent
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._used = 0
        self._resume()

    def _resume(self) -> None:
        """What lies here was received before a kill; its senders may still have more."""
        for row in self.ledger.all_series():
            folder = self.folder / row.name
            if row.state == "found" and folder.is_dir():
                remove_temporary_files(folder)
                self._used += folder_size(folder)
                self._last[row.name] = time.monotonic()

    def store(self, event: Any) -> int:
        """The status for one instance (handler of EVT_C_STORE)."""
        guard = getattr(event.assoc.dul.socket, "socket", None)
        if guard is not None:
            guard.instance = 0
        try:
            data = event.encoded_dataset()
            tags = _tags(data)
        except Exception:  # anything can come from outside, and an error may quote it
            return self._refuse(NOT_UNDERSTOOD, "an instance whose header cannot be read")
        study, series, sop, kind, modality = tags
        asked = (str(event.request.AffectedSOPInstanceUID), str(event.request.AffectedSOPClassUID))
        if not all(is_uid(uid) for uid in (study, series, sop, kind)):
            return self._refuse(MISMATCH, "an instance with a UID that is missing or not valid")
        if (sop, kind) != asked:
            return self._refuse(MISMATCH, "an instance that is not the one announced")
        with self._lock:
            return self._keep(self.ledger.add_series(study, series, modality_code(modality)), sop, data, id(event.assoc))

    def _keep(self, row: Row, sop: str, data: bytes, sender: int) -> int:
        if row.state in ("fetched", "scored", "pushed") and self.ledger.has_received(sop) == row.name:
            return SUCCESS  # sent twice; it is scored already, or about to be
        if self._used + len(data) > self.limit:
            return self._refuse(NO_ROOM, "an instance, because the spool is full")
        folder = self.folder / row.name
        try:
            with writing(folder):
                folder.mkdir(exist_ok=True)
            atomic_bytes(folder / instance_name(sop), data)
            self.ledger.receive(sop, row.name)
        except UserError:
            return self._refuse(NO_ROOM, "an instance, because the spool could not be written")
        self._used += len(data)
        self._last[row.name] = time.monotonic()
        self._senders.setdefault(sender, set()).add(row.name)
        return SUCCESS

    def ended(self, event: Any) -> None:
        """An association is over, in whatever way."""
        with self._lock:
            for name in self._senders.pop(id(event.assoc), set()):
                self._last[name] = time.monotonic()

    def complete(self, spool: Path) -> list[str]:
        """Move the series that are complete to ``spool`` and return their names."""
        with self._lock:
            sending = set[str]().union(*self._senders.values())
            quiet = [name for name, last in self._last.items() if time.monotonic() - last >= self.quiet and name not in sending]
            return [name for name in quiet if self._hand_over(name, spool / name)]

    def freed(self, size: int) -> None:
        """A series was scored and its files are gone."""
        with self._lock:
            self._used -= size

    def _hand_over(self, name: str, target: Path) -> bool:
        if target.exists():  # an earlier part of it is being scored
            return False
        del self._last[name]
        source = self.folder / name
        count, size = len(list(source.iterdir())), folder_size(source)
        with writing(target):
            source.replace(target)
        self.ledger.fetched(name, count, size)
        return True

    def _refuse(self, status: int, what: str) -> int:
        self.log(f"refused: {what} (status 0x{status:04X})")
        return status


def is_late(ledger: Ledger, name: str, files: int) -> bool:
    """Whether a part of the series was scored before and is not here any more."""
    return files < ledger.count_received(name)


def _tags(data: bytes) -> tuple[str, ...]:
    from pydicom import dcmread

    found = dcmread(BytesIO(data), stop_before_pixels=True, specific_tags=list(TAGS))
    return tuple(str(found.get(tag, "")) for tag in TAGS)
