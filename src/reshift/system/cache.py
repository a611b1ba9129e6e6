"""Find the folder in which trained stages, prepared images and the like are kept between runs; say what it holds; clear it."""

import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from reshift.system.lock import NAME as LOCK

VARIABLE = "RESHIFT_CACHE"
STAGES = "stages"  # trained stages lie in the folder itself, everything else in a folder of its own
PINNED = frozenset({"weights"})  # not removed for their age alone: whoever downloaded them may be offline now


def cache_folder(setting: str) -> Path | None:
    """Return the folder that ``train.cache`` names; None if nothing is kept."""
    if setting == "auto":
        setting = os.environ.get(VARIABLE, "") or str(Path.home() / ".cache" / "reshift")
    return None if setting == "off" else Path(setting)


class CachedFile(NamedTuple):
    """One file of the cache."""

    path: Path
    kind: str  # "stages", or the name of its folder: "prepared", "weights", "converted"
    size: int
    used: float  # when it was last written or read, as far as the disk knows


class Usage(NamedTuple):
    """What one kind takes."""

    files: int
    size: int  # bytes
    used: float  # the latest use of any of them


def cached_files(folder: Path) -> Iterator[CachedFile]:
    """Every file that we put there. Links are not followed, and what is not ours is left alone."""
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        with suppress(OSError):  # another process was faster
            about, parts = path.lstat(), path.relative_to(folder).parts
            ours = path.name != LOCK if len(parts) > 1 else path.suffix in (".safetensors", ".tmp")  # a lock may be held
            if stat.S_ISREG(about.st_mode) and ours:
                yield CachedFile(path, parts[0] if len(parts) > 1 else STAGES, about.st_size, max(about.st_mtime, about.st_atime))


def cache_usage(folder: Path) -> dict[str, Usage]:
    """What each kind takes, by name."""
    found: dict[str, Usage] = {}
    for file in cached_files(folder):
        files, size, used = found.get(file.kind, Usage(0, 0, 0.0))
        found[file.kind] = Usage(files + 1, size + file.size, max(used, file.used))
    return dict(sorted(found.items()))


def prune(folder: Path, seconds: float, kind: str | None = None, *, dry_run: bool = False) -> Usage:
    """Remove what was not used for so long, of one kind or of all that can be made again; return what went."""
    files = size = 0
    latest, limit = 0.0, time.time() - seconds
    for file in list(cached_files(folder)):
        wanted = file.kind == kind if kind is not None else file.kind not in PINNED
        if not wanted or file.used > limit:
            continue
        if not dry_run:
            file.path.unlink(missing_ok=True)
            with suppress(OSError):  # not empty
                for parent in file.path.relative_to(folder).parents[:-1]:  # not the cache itself
                    (folder / parent).rmdir()
        files, size, latest = files + 1, size + file.size, max(latest, file.used)
    return Usage(files, size, latest)


def size_text(size: float) -> str:
    """Bytes for a reader."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit in ("bytes", "kB") else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError
