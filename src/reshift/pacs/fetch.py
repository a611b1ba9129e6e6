"""Retrieve a series (WADO-RS) into a folder, instance by instance as it arrives, byte by byte as the archive has it."""

import hashlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

from reshift.data.dicom.header import read_header
from reshift.errors import UserError
from reshift.pacs.archive import Archive, CaseError, RefusedError
from reshift.pacs.multipart import boundary_of, read_parts
from reshift.pacs.spool import SpoolFullError
from reshift.pacs.uids import instance_name
from reshift.system.files import writing

ACCEPT = 'multipart/related; type="application/dicom"; transfer-syntax=*'  # as it is stored, nothing converted
CHUNK = 2**18  # bytes
UNREADABLE = "unreadable-"
PART = ".part"  # of an instance that is arriving
OURS = "Reshift"  # the Manufacturer of our own results


class Fetched(NamedTuple):
    """What lies in the folder."""

    instances: int
    size: int  # bytes


class OursError(UserError):
    """The series is a result of ours, perhaps of another run or model."""


class Inbox:
    """The folder that one series is retrieved into."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self.size = 0
        self.instances = set[str]()
        self.unreadable = list[Path]()

    def keep(self, pieces: Iterable[bytes], wanted: str | None = None) -> None:
        """Write one instance and name it after its UID, or after the one that was ``wanted`` where it has none we can read."""
        path = self.folder / PART
        size = self._write(path, pieces)
        sop = self._identify(path) or wanted
        if sop is None:
            target = self.folder / f"{UNREADABLE}{len(self.unreadable):04d}.dcm"  # scoring it says what is wrong with it
            self.unreadable.append(target)
        else:
            target = self.folder / instance_name(sop)
        if target.exists():
            if _digest(path) != _digest(target):
                raise RefusedError("two different instances have one SOP instance UID; correct that in the archive")
            path.unlink()
            return
        with writing(target):
            path.replace(target)
        self.size += size
        self.instances |= {sop} if sop else set()

    def drop_unreadable(self) -> None:
        """They are asked for again, by their UIDs."""
        for path in self.unreadable:
            self.size -= path.stat().st_size
            path.unlink()
        self.unreadable.clear()

    def _write(self, path: Path, pieces: Iterable[bytes]) -> int:
        """The file is opened and written apart from the network: an error says which of the two it was."""
        size = 0
        try:
            file = path.open("wb", buffering=0)
        except OSError as err:
            raise SpoolFullError(f"the spool could not be written ({err.strerror})") from None
        with closing(file):
            for piece in pieces:
                size += len(piece)
                if self.size + size > self.limit:
                    raise RefusedError("it is larger than the spool; raise --spool-gb")
                view = memoryview(piece)
                try:
                    while view:
                        view = view[file.write(view) :]
                except OSError as err:
                    raise SpoolFullError(f"the spool could not be written ({err.strerror}); make room") from None
        return size

    @staticmethod
    def _identify(path: Path) -> str | None:
        for _ in range(2):  # a disk may fail for a moment, and the instance would get another name
            try:
                header = read_header(path, ("SOPInstanceUID", "Manufacturer"))
                if header.words("Manufacturer") == (OURS,):
                    raise OursError("it is a result of ours")
                return "".join(header.words("SOPInstanceUID")) or None
            except OursError:
                raise
            except UserError:
                continue
        return None


def fetch_series(archive: Archive, study: str, series: str, expected: Collection[str], inbox: Inbox) -> Fetched:
    """Retrieve the series in one answer; what does not come that way is asked for instance by instance, with retries."""
    where, problem = f"studies/{study}/series/{series}", "the archive did not send them"
    try:
        archive.call("a series", partial(_retrieve, archive, where, inbox), once=True)
        whole = True
    except RefusedError:
        raise
    except CaseError:
        whole = False
    missing = [sop for sop in expected if sop not in inbox.instances]
    if not whole or len(missing) > len(inbox.unreadable):
        inbox.drop_unreadable()
        for sop in missing:
            try:
                archive.call("an instance", partial(_retrieve, archive, f"{where}/instances/{sop}", inbox, sop))
            except CaseError as err:
                problem = str(err)
        lost = sum(sop not in inbox.instances for sop in missing)
        if lost:
            raise CaseError(f"{lost} of {len(expected)} instances could not be retrieved; {problem}")
    if not inbox.size:
        raise CaseError("the archive sent no instance of it")
    return Fetched(len(inbox.instances) + len(inbox.unreadable), inbox.size)


def _retrieve(archive: Archive, where: str, inbox: Inbox, wanted: str | None = None) -> None:
    with closing(archive.get(where, accept=ACCEPT)) as answer:
        chunks: Iterator[bytes] = answer.iter_content(CHUNK)
        boundary = boundary_of(answer.headers.get("Content-Type", ""))
        try:
            for pieces in [chunks] if boundary is None else read_parts(chunks, boundary):
                inbox.keep(pieces, wanted)
        finally:
            (inbox.folder / PART).unlink(missing_ok=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
