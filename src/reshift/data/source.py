"""Prepared images by index: in memory (on the GPU if there is one) while they fit, read ahead from disk beyond that.

Beyond that they may also go to a cache on disk (``prepared_cache``): decoding takes ten times as long as reading what it gave,
and of a compressed volume a thousand times.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reshift.config import DataConfig
from reshift.data.manifest import Case, deal
from reshift.data.prepared_cache import reader
from reshift.data.read_helper import Readers
from reshift.system.cores import cores
from reshift.system.device import pinned_copy
from reshift.system.workers import helpers, in_turn, started

CHUNK = 64  # images per batch when walking over all of them
LIGHTER = 8  # reading an image, than reading, describing and writing one: so many more pay for other processes


class Source:
    """``len``, ``batch(indices)``, ``batches()`` and ``stream()``; a batch is ``(B, C, size, size)`` on ``device``."""

    def __init__(self, cases: Sequence[Case], config: DataConfig, device: torch.device) -> None:
        self.cases, self.config, self.device = list(cases), config, device
        self.pool = ThreadPoolExecutor(min(16, cores()))  # decoding and resizing release the GIL
        self.reader = ThreadPoolExecutor(1)  # waits for the pool, so it cannot be of the pool
        self.resident = _fits(cases, config)
        self.read = _reader(cases, config)
        self.readers = _readers(cases, config, device)
        self.images = self._load(range(len(self.cases))).to(device) if self.resident else None
        if self.readers is not None and self.resident:
            self.readers.close()  # all is read

    def __len__(self) -> int:
        return len(self.cases)

    def batch(self, indices: Sequence[int]) -> Tensor:
        """Return the images at ``indices``."""
        if self.images is None:
            return self._load(indices).to(self.device)
        chosen = torch.as_tensor(indices)
        if self.images.is_cuda:  # from pinned memory, or the next step would not be launched before this one is done
            chosen = chosen.pin_memory().to(self.device, non_blocking=True)
        return self.images[chosen]

    def stream(self, chosen: Iterable[Sequence[int]]) -> Iterator[Tensor]:
        """Batch after batch; what has to be read is read ahead: by threads the next batch, by other processes one for each."""
        if self.images is not None:
            yield from (self.batch(indices) for indices in chosen)
            return
        ahead = 1 if self.readers is None else len(self.readers.helpers)
        for images in in_turn(map(self._ask, chosen), ahead):
            yield images.to(self.device, non_blocking=True)

    def batches(self, indices: Sequence[int] | None = None) -> Iterator[Tensor]:
        """All images, or those at ``indices``, once, in order."""
        chosen = range(len(self)) if indices is None else indices
        for start in range(0, len(chosen), CHUNK):
            yield self.batch(chosen[start : start + CHUNK])

    def _ask(self, indices: Sequence[int]) -> "Future[Tensor]":
        if self.readers is not None:
            return self.readers.ask([self.cases[i] for i in indices], lambda pixels: pinned_copy(pixels, self.device))
        return self.reader.submit(lambda: pinned_copy(self._load(indices).numpy(), self.device))

    def _load(self, indices: Sequence[int]) -> Tensor:
        if self.readers is not None:
            return torch.from_numpy(self.readers.load([self.cases[i] for i in indices]))
        pixels = self.pool.map(lambda i: self.read(self.cases[i]), indices)
        return torch.from_numpy(np.stack(list(pixels)))


def folds(cases: Sequence[Case], count: int, seed: int) -> list[list[int]]:
    """The places of ``cases`` in each of ``count`` folds; a subject is in one. The same for the same cases and seed."""
    of = deal(cases, count, lambda n: np.random.default_rng([seed, count]).permutation(n).tolist())
    return [[i for i, fold in enumerate(of) if fold == k] for k in range(count)]


def check_images(cases: Sequence[Case], config: DataConfig, readers: Readers | None = None) -> None:
    """Read and drop every image: a damaged one shows now, and not after hours of training."""
    if readers is not None:
        readers.check(cases)
        return
    for _, future in ahead(_reader(cases, config), cases):
        future.result()


def _readers(cases: Sequence[Case], config: DataConfig, device: torch.device) -> Readers | None:
    """Other processes, where there is much to read for a GPU."""
    count = helpers(len(cases) // LIGHTER, gpu=device.type == "cuda")
    return started(lambda: Readers(config, count, kept=not _fits(cases, config))) if count else None


def _fits(cases: Sequence[Case], config: DataConfig) -> bool:
    return len(cases) * config.channels * config.size**2 * 4 <= config.memory_gb * 2**30


def _reader(cases: Sequence[Case], config: DataConfig) -> Callable[[Case], NDArray[np.float32]]:
    """How to come by one of ``cases``: by way of the cache, where they will be asked for again and again."""
    return reader(config, kept=not _fits(cases, config))


Item = TypeVar("Item")
Loaded = TypeVar("Loaded")


def ahead(load: Callable[[Item], Loaded], items: Iterable[Item], depth: int = 32) -> Iterator[tuple[Item, Future[Loaded]]]:
    """Yield every item with its loading under way, ``depth`` of them at a time; a failure waits in its own future."""
    waiting: deque[tuple[Item, Future[Loaded]]] = deque()
    with ThreadPoolExecutor(min(16, cores())) as pool:
        for item in items:
            waiting.append((item, pool.submit(load, item)))
            if len(waiting) >= depth:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()
