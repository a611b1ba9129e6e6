"""Let one process at a time write to a folder."""

import os
import platform
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import ENOLCK, ENOTSUP
from pathlib import Path

from reshift.errors import UserError
from reshift.system.files import create_output_folder, writing

NAME = ".lock"  # the file stays in the folder; only the operating system's lock on it counts


class _Held(threading.local):
    """The folders that this thread has locked."""

    def __init__(self) -> None:
        self.folders = set[Path]()


_held = _Held()


@contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of ``folder``; if another process holds it, raise a ``UserError``, or ``wait`` until it is free.

    The operating system frees the lock when its process ends, also when that is killed. A thread that holds the lock may ask
    for it again.
    """
    real = folder.resolve()
    if real in _held.folders:
        yield
        return
    with _file_lock(folder, wait=wait):
        _held.folders.add(real)
        try:
            yield
        finally:
            _held.folders.discard(real)


@contextmanager
def output_folder(path: Path) -> Iterator[Path]:
    """Create the output folder of a command, check that files can be written there, and lock it."""
    with locked(create_output_folder(path)):
        yield path


@contextmanager
def _file_lock(folder: Path, *, wait: bool) -> Iterator[None]:
    from filelock import FileLock, SoftFileLock, Timeout

    path = folder / NAME
    lock = FileLock(path, timeout=-1 if wait else 0)
    with writing(path):
        try:
            lock.acquire()
        except Timeout:
            owner = path.read_text() or "another process"
            raise UserError(f"{folder}: {owner} is writing there; wait until it ends, or choose another folder") from None
        except (NotImplementedError, OSError) as err:
            if isinstance(err, OSError) and err.errno not in (ENOLCK, ENOTSUP):
                raise
            warnings.warn(f"{folder}: its file system has no locks; let no other process write there", stacklevel=2)
    named = lock.is_locked and not isinstance(lock, SoftFileLock)  # a soft lock has a content of its own
    try:
        if named:
            with writing(path):
                path.write_text(f"process {os.getpid()} on {platform.node()}")
        yield
    finally:
        if named:
            with suppress(OSError):
                os.truncate(path, 0)
        lock.release()
