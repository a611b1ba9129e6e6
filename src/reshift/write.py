"""Files that are either whole or not there."""

import json
import os
from pathlib import Path
from typing import Any

from reshift.errors import UserError


def atomic_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` so that a kill or a full disk leaves the old file, or none, but never half of one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # before the rename, or a power cut may keep the name and lose the bytes
        temporary.replace(path)
    except OSError as err:
        temporary.unlink(missing_ok=True)
        raise UserError(f"{path}: could not be written ({err.strerror}); nothing was left half-written") from err


def atomic_text(path: Path, text: str) -> None:
    """Write text atomically."""
    atomic_bytes(path, text.encode())


def atomic_json(path: Path, value: Any) -> None:
    """Write JSON atomically; NaN is refused, since no JSON reader has to take it."""
    atomic_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


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
