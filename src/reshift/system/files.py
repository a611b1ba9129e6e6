"""Files that are either whole or not there."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from threading import get_ident
from typing import Any

from reshift.errors import UserError


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """A full disk or a forbidden folder becomes one line that names ``path``; the system's own error often does not."""
    try:
        yield
    except OSError as err:
        reason = err.strerror or str(err)
        raise UserError(
            f"{path}: could not be written ({reason}); make room, or choose another folder, and run it again"
        ) from err


def atomic_bytes(path: Path, data: bytes, *, lasting: bool = True) -> None:
    """Write ``data`` so that a kill or a full disk leaves the old file, or none, but never half of one.

    Unless it is to be ``lasting``, a power cut within the next seconds may leave it empty: for thousands of files a second, and
    only where an empty one is noticed and made again.
    """
    temporary = path.with_name(f".{os.getpid()}-{get_ident()}.tmp")  # as short as can be: ``path`` may have the longest name
    with naming(path):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                if lasting:
                    file.flush()
                    os.fsync(file.fileno())  # before the rename, or a power cut may keep the name and lose the bytes
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def atomic_text(path: Path, text: str) -> None:
    """Write text atomically; a file name in it that is not valid UTF-8 keeps its bytes."""
    atomic_bytes(path, text.encode("utf-8", "surrogateescape"))


def atomic_json(path: Path, value: Any) -> None:
    """Write JSON atomically; NaN is refused, since no JSON reader has to take it."""
    atomic_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def json_line(value: Any) -> bytes:
    """One line of JSON; NaN is refused."""
    return (json.dumps(value, allow_nan=False) + "\n").encode()


def append_json(path: Path, value: Any) -> None:
    """Append one line of JSON; when the disk is full, what was there stays and nothing of the line does."""
    with naming(path), path.open("ab", buffering=0) as file:
        append_whole(file, json_line(value))


def append_whole(file: FileIO, data: bytes) -> int:
    """Append all or nothing to a file that is open for it; return where it begins."""
    before = file.seek(0, os.SEEK_END)
    try:
        while data:  # unbuffered: a nearly full disk takes a part, and complains about the rest
            data = data[file.write(data) :]
    except OSError:
        file.truncate(before)
        raise
    return before


def sweep(folder: Path) -> None:
    """Remove what a killed process left of a file it was writing. Only for a folder that nobody else writes to."""
    for left in folder.glob(".*-*.tmp"):
        left.unlink(missing_ok=True)


def writable_folder(path: Path) -> Path:
    """Create ``path`` and make sure, before any work is done, that results can be written there."""
    probe = path / f".probe.{os.getpid()}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as err:
        raise UserError(f"{path}: cannot write there ({err.strerror}); choose another output folder") from None
    return path
