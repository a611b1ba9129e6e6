"""Where a server keeps things: ``STORE/jobs/ID/inputs`` (uploads), ``…/results`` (what scoring leaves), ``…/cache``.

A job's folder appears whole, by a rename, after its upload is on the disk; a folder without a row in the database is left over
from an upload that never ended, and is removed when the server starts.
"""

import os
import re
import secrets
import shutil
import unicodedata
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from reshift.data.nifti import SUFFIXES as NIFTI
from reshift.data.raster import SUFFIXES as RASTER
from reshift.errors import UserError
from reshift.serve.errors import Problem
from reshift.system.files import create_output_folder

JOB_ID = re.compile(r"[0-9a-f]{16}")
MAX_PART = 120  # characters of a file's or folder's name
MAX_DEPTH = 8
IMAGES = (*RASTER, *NIFTI, ".dcm", ".ima")  # names that say what a file is; anything else must begin like DICOM


class Store:
    """The folders of one server."""

    def __init__(self, root: Path) -> None:
        self.root = create_output_folder(root).resolve()
        self.database = self.root / "jobs.sqlite"
        self.audit = self.root / "audit.jsonl"
        self.jobs, self.incoming = self.root / "jobs", self.root / "incoming"
        for folder in (self.jobs, self.incoming):
            folder.mkdir(mode=0o700, exist_ok=True)

    def job(self, identifier: str) -> Path:
        """The folder of a job; what is not an identifier never becomes a path."""
        if JOB_ID.fullmatch(identifier) is None:
            raise Problem(404, "no such job; it may have been deleted")
        return self.jobs / identifier

    def inputs(self, identifier: str) -> Path:
        """What was uploaded."""
        return self.job(identifier) / "inputs"

    def results(self, identifier: str) -> Path:
        """What scoring leaves: scores.jsonl, maps, overlays, …"""
        return self.job(identifier) / "results"

    def new_upload(self) -> tuple[str, Path]:
        """A new identifier, and the folder in which its upload grows."""
        identifier = secrets.token_hex(8)
        folder = self.incoming / identifier
        (folder / "inputs").mkdir(parents=True, mode=0o700)
        return identifier, folder

    def accept(self, identifier: str) -> None:
        """The upload is complete: when it is on the disk, give it its place."""
        for place, _, names in os.walk(self.incoming / identifier):
            for name in (".", *names):
                _sync(Path(place, name))
        (self.incoming / identifier).rename(self.job(identifier))
        for folder in (self.incoming, self.jobs):
            _sync(folder)

    def discard(self, identifier: str) -> None:
        """Remove an upload that was refused, or a job: it is gone when this returns."""
        for folder in (self.incoming / identifier, self.job(identifier)):
            if folder.exists():
                shutil.rmtree(folder)

    def remove_strangers(self, known: Iterable[str]) -> None:
        """When the server starts: remove what no row of the database speaks of."""
        for folder in self.incoming.iterdir():
            shutil.rmtree(folder)
        for name in {path.name for path in self.jobs.iterdir()} - set(known):
            shutil.rmtree(self.jobs / name)

    def free_bytes(self) -> int:
        """Room on the disk."""
        return shutil.disk_usage(self.root).free


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def safe_name(given: str) -> PurePosixPath:
    """A name that a request gives, as a relative path that cannot lead anywhere: no ``..``, no drive, no control characters."""
    parts = [_safe_part(part) for part in given.replace("\\", "/").split("/")]
    kept = [part for part in parts if part][-MAX_DEPTH:]
    return PurePosixPath(*kept) if kept else PurePosixPath("file")


def _safe_part(part: str) -> str:
    text = "".join(c if unicodedata.category(c)[0] != "C" else "_" for c in unicodedata.normalize("NFC", part)).strip(" ")
    text = "_" + text.lstrip(".") if text.startswith(".") and text.strip(".") else text.strip(".") and text
    if len(text.encode()) > MAX_PART:
        suffix = next((s for s in (*IMAGES, ".zip") if text.lower().endswith(s)), "")
        text = text.encode()[: MAX_PART - len(suffix)].decode("utf-8", "ignore") + suffix
    return text.replace(":", "_")


def below(root: Path, given: str) -> Path:
    """The file or folder ``given`` below ``root``; links are followed first, so none leads out."""
    try:
        found = (root / given).resolve()
        inside = found.is_relative_to(root.resolve()) and "\0" not in given and not Path(given).is_absolute()
        if not inside or any(part.startswith(".") for part in found.relative_to(root.resolve()).parts) or not found.exists():
            raise UserError(f"{given}: no such file or folder in the server's --data")
    except (OSError, ValueError, RuntimeError):
        raise UserError(f"{given}: no such file or folder in the server's --data") from None
    return found
