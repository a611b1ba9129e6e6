"""Prepared images on disk, for training that streams: the next epoch, and the next run, read 64 KB instead of the file.

An image is found by what decides its pixels: the bytes of its file, its slice, the data settings, and the code and libraries
that read it. ``RESHIFT_PREPARED_GB`` switches it on and bounds the folder: these are patients' images, and nobody should find
them where they were not put knowingly. ``RESHIFT_CACHE=off`` switches it off.
"""

import hashlib
import os
import shutil
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from reshift.config import DataConfig
from reshift.data.cases import Case, file_digest
from reshift.data.image import reading
from reshift.data.prepare import prepare
from reshift.data.read import read_image
from reshift.errors import UserError
from reshift.system.cache import cache_folder
from reshift.system.files import atomic_bytes

VARIABLE = "RESHIFT_PREPARED_GB"
SETTINGS = {"size", "channels", "scale", "square"}  # of DataConfig, those that prepare looks at
RECOUNTS = 16  # times that the folder is counted anew while it fills: other processes write there, too


def prepared_cache() -> "PreparedCache | None":
    """Return the cache beside the trained stages; None where it is switched off or cannot be made."""
    folder, given = cache_folder("auto"), os.environ.get(VARIABLE, "")
    try:
        limit = int(float(given or 0) * 2**30)
    except (ValueError, OverflowError):
        raise UserError(f"{VARIABLE}={given}: a number of gigabytes is needed; 0 is no cache") from None
    with suppress(OSError):
        return PreparedCache(folder / "prepared", limit) if folder is not None and limit > 0 else None
    return None


def reader(config: DataConfig, *, cached: bool) -> Callable[[Case], NDArray[np.float32]]:
    """A function that reads and prepares a case; with ``cached``, through the cache, if there is one."""
    cache = prepared_cache() if cached else None
    return (lambda case: _prepared(case, config)) if cache is None else (lambda case: cache.get(case, config, _prepared))


def load_images(cases: Sequence[Case], read: Callable[[Case], NDArray[np.float32]]) -> NDArray[np.float32]:
    """``(n, C, size, size)``; the first image that cannot be read is an error."""
    return np.stack([read(case) for case in cases])


def load_in_worker(cases: Sequence[Case], config: DataConfig, cached: bool) -> NDArray[np.float32]:
    """``load_images`` in a worker process, which opens the cache once."""
    return load_images(cases, _worker_reader(config, cached))


@lru_cache(1)
def _worker_reader(config: DataConfig, cached: bool) -> Callable[[Case], NDArray[np.float32]]:
    return reader(config, cached=cached)


def _prepared(case: Case, config: DataConfig) -> NDArray[np.float32]:
    with reading():
        return prepare(read_image(case.image, case.slice, config.max_pixels), config).pixels


class PreparedCache:
    """A folder of prepared images, for any number of threads and processes."""

    def __init__(self, folder: Path, limit: int) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # these are patients' images
        self.folder, self.limit, self.lock = folder, limit, Lock()
        self.begun = time.time() - 60.0  # a disk's clock may be behind ours
        self.digests: dict[Path, str] = {}  # a file is hashed once, and taken not to change while it is learned from
        self.unused: list[tuple[float, int, Path]] = []  # when last used, bytes, where; the longest unused last
        self.room = self.until_count = 0
        self._count()

    def get(self, case: Case, config: DataConfig, make: Callable[[Case, DataConfig], NDArray[np.float32]]) -> NDArray[np.float32]:
        """``(C, size, size)`` from the folder, or ``make`` it and keep it; what cannot be kept is made all the same."""
        try:
            path = self._path(case, config)
        except OSError:  # the reader has a better word for it
            return make(case, config)
        found = _read(path, (config.channels, config.size, config.size))
        if found is None:
            found = make(case, config)
            self._keep(path, np.ascontiguousarray(found, dtype="<f4").tobytes())
        return found

    def _path(self, case: Case, config: DataConfig) -> Path:
        if (content := self.digests.get(case.image)) is None:
            content = self.digests[case.image] = file_digest(case.image).hex()[:32]
        settings = sorted(config.model_dump(include=SETTINGS).items())
        key = hashlib.blake2b(f"{content} {case.slice} {settings} {_code()}".encode(), digest_size=16).hexdigest()
        return self.folder / key[:2] / key[2:]

    def _keep(self, path: Path, pixels: bytes) -> None:
        with self.lock:
            if not self._room_for(len(pixels) + 4):
                return
        try:
            path.parent.mkdir(exist_ok=True, mode=0o700)
            atomic_bytes(path, zlib.crc32(pixels).to_bytes(4, "little") + pixels, durable=False)
        except (UserError, OSError):  # a full disk costs time, never the training
            self.room, self.unused = 0, []

    def _room_for(self, size: int) -> bool:
        """Make room by removing what nobody has used since this run began, the longest unused first."""
        if self.until_count < size <= self.room:
            self._count()
        while self.room < size and self.unused:
            _, length, path = self.unused.pop()
            with suppress(OSError):  # another process was faster
                if path.stat().st_mtime < self.begun:
                    path.unlink()
                    self.room += length
        if self.room >= size:
            self.room, self.until_count = self.room - size, self.until_count - size
            return True
        return False

    def _count(self) -> None:
        """See what lies there; keep within the limit, and within half of what the disk has left."""
        self.unused, self.room, self.until_count = [], self.limit, self.limit // RECOUNTS
        for path in self.folder.glob("*/*"):
            with suppress(OSError):
                stat = path.stat()
                self.unused.append((stat.st_mtime, stat.st_size, path))
                self.room -= stat.st_size
        self.unused.sort(reverse=True)
        self.room = min(self.room, shutil.disk_usage(self.folder).free // 2)


def _read(path: Path, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
    """The image in a file, unless there is none, or half of one."""
    with suppress(OSError, ValueError):
        data = path.read_bytes()
        if zlib.crc32(data[4:]) == int.from_bytes(data[:4], "little"):
            with suppress(OSError):
                os.utime(path)  # in use: not to be removed
            return np.frombuffer(data, dtype="<f4", offset=4).reshape(shape)
    return None


@cache
def _code() -> str:
    """A hash of all that reads and prepares: this package's files, and the libraries' versions."""
    files = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    libraries = " ".join(version(name) for name in ("numpy", "pillow", "nibabel", "pydicom"))
    return hashlib.blake2b(b"".join(files) + libraries.encode(), digest_size=16).hexdigest()
