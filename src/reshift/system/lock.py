"""Let one process at a time write to a folder."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from reshift.errors import UserError
from reshift.system.files import writing

NAME = ".lock"  # the file stays in the folder; only the operating system's lock on it counts


@contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of ``folder``; if another process holds it, raise a ``UserError``, or ``wait`` until it is free.

    The operating system frees the lock when its process ends, also when that is killed.
    """
    from filelock import FileLock, Timeout

    path = folder / NAME
    lock = FileLock(path, timeout=-1 if wait else 0)
    with writing(path):
        try:
            lock.acquire()
        except Timeout:
            owner = path.read_text() or "another process"
            raise UserError(f"{folder}: {owner} is writing there; wait until it ends, or choose another folder") from None
    try:
        with writing(path):
            path.write_text(f"process {os.getpid()} on {platform.node()}")
        yield
    finally:
        with suppress(OSError):
            os.truncate(path, 0)
        lock.release()
