"""One run at a time in a folder. The lock names its process, so that a crash leaves no lock that anyone has to remove."""

import json
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from reshift.errors import UserError
from reshift.system.files import naming

NAME = "lock.json"
TRIES = 5


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, or say in one line who does."""
    path, mine = folder / NAME, identity(os.getpid())
    with _alone(folder):
        _take(path, mine)
    try:
        yield
    finally:
        if _read(path) == mine:
            path.unlink(missing_ok=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """While one looks at a dead process's lock and replaces it, no other does; the system ends this with the process."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(ImportError, OSError):  # not on every system, nor on every network drive
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def identity(pid: int) -> dict[str, Any]:
    """A process, told from any later one with its number by when it began: counted from the boot, by no clock one can set."""
    return {"host": platform.node(), "pid": pid, "began": _began(pid)}


def _began(pid: int) -> str | None:
    """Return None where there is no such process."""
    stat, boot = Path(f"/proc/{pid}/stat"), Path("/proc/sys/kernel/random/boot_id")
    if boot.exists():
        try:
            fields = stat.read_text().rpartition(")")[2].split()  # the name before it may hold anything
        except OSError:
            return None
        return None if fields[0] in "ZX" else f"{boot.read_text().strip()} {fields[19]}"
    shown = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout.strip()
    return shown or None


def _take(path: Path, mine: dict[str, Any]) -> None:
    written = path.with_name(f".{NAME}-{os.getpid()}")
    with naming(path):
        written.write_text(json.dumps(mine))
    try:
        for _ in range(TRIES):
            try:
                _create(path, written)
            except FileExistsError:
                _clear(path)
            else:
                return
        raise UserError(f"{path}: other runs keep taking it; try again")
    finally:
        written.unlink(missing_ok=True)


def _create(path: Path, written: Path) -> None:
    """Make the lock, whole, and only if there is none."""
    try:
        os.link(written, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        with path.open("x") as file:
            file.write(written.read_text())


def _clear(path: Path) -> None:
    """Put a dead process's lock away; a living one's is the end."""
    owner = _read(path)
    if owner is not None:
        _refuse_if_alive(path, owner)
    aside = path.with_name(f".{NAME}-{os.getpid()}-old")
    try:
        path.rename(aside)
    except FileNotFoundError:
        return
    if _read(aside) != owner:  # somebody else was faster and this is theirs
        with suppress(FileExistsError):
            _create(path, aside)
    aside.unlink()


def _refuse_if_alive(path: Path, owner: dict[str, Any]) -> None:
    host, pid = owner.get("host"), owner.get("pid")
    if host != platform.node():
        raise UserError(f"{path.parent}: in use by process {pid} on {host}; if that is gone, delete {path}")
    if isinstance(pid, int) and _began(pid) == owner.get("began"):
        raise UserError(f"{path.parent}: another run (process {pid}) is at work there; wait for it, or choose another --out")


def _read(path: Path) -> dict[str, Any] | None:
    """The owner; None where nothing can be made of the file, which only a crash of the machine leaves."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
