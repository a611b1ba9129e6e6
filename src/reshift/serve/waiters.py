"""Whoever waits for the end of a job, in the event loop or in a thread."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress


class Waiters:
    """Woken from any thread."""

    def __init__(self) -> None:
        self.ended = threading.Condition()
        self.events: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self.loop: asyncio.AbstractEventLoop | None = None

    async def wait(self, identifier: str, seconds: float, is_over: Callable[[], bool]) -> None:
        """Wait until a job is woken, or so long; not at all if it is over already."""
        self.loop, event = asyncio.get_running_loop(), asyncio.Event()
        self.events[identifier].add(event)
        try:
            if not is_over():
                with suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), seconds)
        finally:
            self.events[identifier].discard(event)
            if not self.events[identifier]:
                del self.events[identifier]

    def wait_in_thread(self, is_over: Callable[[], bool], seconds: float) -> None:
        """Wait until something is over, or so long."""
        with self.ended:
            self.ended.wait_for(is_over, timeout=seconds)

    def wake(self, identifier: str) -> None:
        """A job has ended, or no longer runs."""
        with self.ended:
            self.ended.notify_all()
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._tell, identifier)

    def _tell(self, identifier: str) -> None:
        for event in self.events.get(identifier, ()):
            event.set()
