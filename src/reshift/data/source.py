"""Prepared images by index: in memory (on the GPU if there is one) while they fit, read ahead from disk beyond that.

Images that do not fit may also go to a cache on disk (``prepared_cache``): decoding takes ten times as long as reading a prepared
image, and for a compressed volume a thousand times.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reshift.config import DataConfig
from reshift.data.cases import Case, assign_folds
from reshift.data.prepared_cache import load_images, load_in_worker, reader
from reshift.system.device import pinned_copy
from reshift.system.workers import WorkerPool, in_order, worker_processes

CHUNK = 64  # images per batch when walking over all of them, and per message to a worker process
READ_ONLY = 8  # reading alone takes an eighth of reading and writing: processes pay for so many times more images


class Source:
    """``len``, ``batch(indices)``, ``batches()`` and ``stream()``; a batch is ``(B, C, size, size)`` on ``device``."""

    def __init__(self, cases: Sequence[Case], config: DataConfig, device: torch.device) -> None:
        self.cases, self.config, self.device = list(cases), config, device
        self.resident = len(cases) * config.channels * config.size**2 * 4 <= config.memory_gb * 2**30
        self.read = reader(config, cached=not self.resident)
        self.pool = WorkerPool(worker_processes(len(cases) // READ_ONLY, gpu=device.type == "cuda"))
        self.copier = ThreadPoolExecutor(1)  # waits for the pool, so it cannot be of the pool
        self.images = self._load(range(len(self.cases))).to(device) if self.resident else None

    def __len__(self) -> int:
        return len(self.cases)

    def batch(self, indices: Sequence[int]) -> Tensor:
        """Return the images at ``indices``."""
        if self.images is None:
            return self._load(indices).to(self.device)
        chosen = torch.as_tensor(indices)
        if self.images.is_cuda:  # from pinned memory: the next step is launched before this one is done
            chosen = chosen.pin_memory().to(self.device, non_blocking=True)
        return self.images[chosen]

    def stream(self, chosen: Iterable[Sequence[int]]) -> Iterator[Tensor]:
        """Batch after batch; images that are not in memory are read ahead: the next batch, or one for each worker process."""
        if self.images is not None:
            yield from (self.batch(indices) for indices in chosen)
            return
        ahead = max(1, self.pool.processes)
        for images in in_order(map(self._start, chosen), lambda: ahead):
            yield images.to(self.device, non_blocking=True)

    def batches(self, indices: Sequence[int] | None = None) -> Iterator[Tensor]:
        """All images, or those at ``indices``, once, in order."""
        chosen = range(len(self)) if indices is None else indices
        for start in range(0, len(chosen), CHUNK):
            yield self.batch(chosen[start : start + CHUNK])

    def check(self, others: Sequence[Case] = ()) -> None:
        """Read every image that is not in memory, and ``others``, once: a damaged one shows before hours of training."""
        unread = [*([] if self.resident else self.cases), *others]
        for _ in in_order(self._parts(unread), lambda: 2 * self.pool.size):
            pass

    def _start(self, indices: Sequence[int]) -> "Future[Tensor]":
        """Read a batch by one process, or all threads, into memory that the device can copy from by itself."""
        parts = list(self._parts([self.cases[i] for i in indices]))

        def joined() -> Tensor:
            images = [part.result() for part in parts]
            return pinned_copy(images[0] if len(images) == 1 else np.concatenate(images), self.device)

        return self.copier.submit(joined)

    def _load(self, indices: Sequence[int]) -> Tensor:
        shape = (len(indices), self.config.channels, self.config.size, self.config.size)
        out, filled = np.empty(shape, dtype=np.float32), 0
        parts = self._parts([self.cases[i] for i in indices])
        for images in in_order(parts, lambda: 2 * self.pool.size):
            out[filled : filled + len(images)] = images
            filled += len(images)
        return torch.from_numpy(out)

    def _parts(self, cases: Sequence[Case]) -> "Iterator[Future[NDArray[np.float32]]]":
        """Ask for some images at a time: many of a process, since neighbours may be slices of one volume, one of a thread."""
        size = CHUNK if self.pool.processes else 1
        for start in range(0, len(cases), size):
            part, worker = cases[start : start + size], self.pool.next_worker()
            if self.pool.processes:
                yield self.pool.submit(worker, load_in_worker, part, self.config, not self.resident)
            else:
                yield self.pool.submit(worker, load_images, part, self.read)

    def close(self) -> None:
        """End the workers; images in memory stay."""
        self.pool.close()
        self.copier.shutdown()


def folds(cases: Sequence[Case], count: int, seed: int) -> list[list[int]]:
    """The places of ``cases`` in each of ``count`` folds; a subject is in one. The same for the same cases and seed."""
    of = assign_folds(cases, count, lambda n: np.random.default_rng([seed, count]).permutation(n).tolist())
    return [[i for i, fold in enumerate(of) if fold == k] for k in range(count)]
