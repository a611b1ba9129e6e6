"""Write files so that each is complete or absent, and report a write error in one line that names the file."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from threading import get_ident
from typing import Any, BinaryIO

from reshift.errors import UserError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` in the block, such as a full disk, into one line that names ``path``."""
    try:
        yield
    except OSError as err:
        reason = err.strerror or str(err)
        raise UserError(
            f"{path}: could not be written ({reason}); make room, or choose another folder, and run it again"
        ) from err


def atomic_bytes(path: Path, *data: bytes | memoryview, durable: bool = True) -> None:
    """Write all ``data`` so that a kill or a full disk leaves the old file, or none, but never a part of the new one.

    With ``durable=False`` a power cut in the next seconds may leave the file empty. Use it only for files that are written
    thousands of times a second and checked for being empty when they are read.
    """
    with atomic_file(path, durable=durable) as file:
        file.writelines(data)


@contextmanager
def atomic_file(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write in; it gets its name when the block ends without an error, and is removed otherwise."""
    temporary = path.with_name(f".{os.getpid()}-{get_ident()}.tmp")  # short, because ``path`` may have the longest allowed name
    with writing(path):
        try:
            with temporary.open("wb") as file:
                yield file
                if durable:
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
    """Write JSON atomically; NaN is refused, because it is not valid JSON."""
    atomic_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def json_line(value: Any) -> bytes:
    """Return one line of JSON; NaN is refused."""
    return (json.dumps(value, allow_nan=False) + "\n").encode()


def append_json(path: Path, value: Any) -> None:
    """Append one line of JSON; if the disk is full, the file stays as it was."""
    with writing(path), path.open("ab", buffering=0) as file:
        append_bytes(file, json_line(value))


def append_bytes(file: FileIO, data: bytes) -> int:
    """Append all of ``data`` or nothing to an open, unbuffered file; return the position where it begins."""
    before = file.seek(0, os.SEEK_END)
    try:
        while data:  # a nearly full disk accepts a part first and fails on the rest
            data = data[file.write(data) :]
    except OSError:
        file.truncate(before)
        raise
    return before


def remove_temporary_files(folder: Path) -> None:
    """Remove unfinished files of a killed process, here and below. Call it only if no other process writes to ``folder``."""
    for root, _, names in os.walk(folder):
        for name in names:
            if name.startswith(".") and (name.endswith(".tmp") or name.startswith(".probe.")):
                Path(root, name).unlink(missing_ok=True)


def create_output_folder(path: Path) -> Path:
    """Create ``path`` and check, before any work is done, that files can be written there."""
    probe = path / f".probe.{os.getpid()}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as err:
        raise UserError(f"{path}: cannot write there ({err.strerror}); choose another output folder") from None
    return path
