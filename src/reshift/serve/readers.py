"""Reader processes: they open what users send and draw what the page shows. A file that crashes a library ends one of them."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from reshift.errors import UserError
from reshift.system.cores import cores
from reshift.system.workers import WorkerEndedError, WorkerPool

Result = TypeVar("Result")
CRASHED = (
    "reading it ended the reader process; the file is damaged in a way that no reader survives, or too large for this machine"
)


class Readers:
    """A few processes; those of one job always go to the same one, which keeps its volume open."""

    def __init__(self, count: int | None = None) -> None:
        self.pools: list[WorkerPool | None] = [None] * (count or max(2, min(4, cores() // 4)))
        self.lock = threading.Lock()

    def start(self) -> None:
        """Start them now rather than at the first request."""
        for place in range(len(self.pools)):
            self._pool(place)

    def close(self) -> None:
        """End them."""
        for pool in self.pools:
            if pool is not None:
                pool.close()

    async def call(self, key: str, function: Callable[..., Result], *args: Any) -> Result:
        """Call ``function`` in the reader of ``key``; if it dies there twice, the file is to blame."""
        for _ in range(2):
            place = sum(key.encode()) % len(self.pools)
            pool = await asyncio.to_thread(self._pool, place)
            future: Future[Result] = pool.submit(0, function, *args)
            try:
                return await asyncio.wrap_future(future)
            except WorkerEndedError:
                self._drop(place, pool)
        raise UserError(CRASHED)

    async def all(self, function: Callable[..., object], *args: Any) -> None:
        """Call ``function`` in every reader."""
        pools = [pool for pool in self.pools if pool is not None and self._alive(pool)]
        await asyncio.gather(*(asyncio.wrap_future(pool.submit(0, function, *args)) for pool in pools), return_exceptions=True)

    def _pool(self, place: int) -> WorkerPool:
        with self.lock:
            pool = self.pools[place]
            if pool is None:
                self.pools[place] = pool = WorkerPool(processes=1)
            return pool

    def _drop(self, place: int, pool: WorkerPool) -> None:
        with self.lock:
            if self.pools[place] is pool:
                self.pools[place] = None
        pool.close()

    @staticmethod
    def _alive(pool: WorkerPool) -> bool:
        return all(worker.process.is_alive() for worker in pool.workers if hasattr(worker, "process"))
