"""Who reads and writes pictures while the network looks at others: threads or, if it looks at thousands a second, processes."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain, cycle
from typing import Protocol, Self

import numpy as np

from reshift.data.source import ahead
from reshift.inference.model import grouped
from reshift.inference.records import Record
from reshift.inference.score_helper import Desk, Outcome, Picture, first, outcomes, records, to_read, to_write
from reshift.inference.score_picture import Seen, Task
from reshift.system.cores import cores
from reshift.system.workers import MOST, Helper, helpers, started

READ_AHEAD = 8  # images beyond the batch at hand; a scan may take hundreds of megabytes
PART = 8  # pictures of a message: each message has threads of this process wait for one another
ROOM = 2**30  # bytes of pictures that may lie about while they wait to be looked at, and as many to be written

Batch = list[tuple[Picture, Outcome]]
Written = tuple[list[Picture], "Future[list[Record]]"]


class Hands(Protocol):
    """Reads ahead in batches, and writes behind."""

    deep: int  # batches that may be under way to be written

    def read(self, pictures: Sequence[Picture]) -> Iterator[Batch]:
        """All pictures, in order; those of a batch that have a network input must then be written."""

    def write(self, seen: Sequence[tuple[Picture, Seen]]) -> list[Written]:
        """Begin to write."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(self, *_: object) -> None:
        """Finish what was begun."""


def hands(task: Task, batch: int, pictures: int) -> Hands:
    """Processes where ``helpers`` says so, else threads."""
    count = 0 if task.dicom else helpers(pictures, gpu=batch > 1)
    others = started(lambda: Processes(task, batch, count)) if count else None
    return others or Threads(task, batch)


class Threads:
    """In this process."""

    deep = 1

    def __init__(self, task: Task, batch: int) -> None:
        self.desk, self.batch = Desk(task), batch
        threads = 1 if task.dicom else min(MOST, cores())  # highdicom promises nothing of threads
        self.pool = ThreadPoolExecutor(threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown()

    def read(self, pictures: Sequence[Picture]) -> Iterator[Batch]:
        """As many threads as there are cores."""
        for group in grouped(ahead(self.desk.read, pictures, self.batch + READ_AHEAD), self.batch):
            yield [(picture, future.result()) for picture, future in group]

    def write(self, seen: Sequence[tuple[Picture, Seen]]) -> list[Written]:
        """A picture a thread."""
        return [([picture], self.pool.submit(lambda item: [self.desk.write(*item)], (picture, what))) for picture, what in seen]


class Processes:
    """Each picture in one of ``count`` others, where it stays between reading and writing."""

    def __init__(self, task: Task, batch: int, count: int) -> None:
        self.batch, self.part, self.where = batch, min(PART, batch), dict[str, Helper]()
        self.helpers = [Helper("reshift.inference.score_helper", first(task)) for _ in range(count)]
        self.turns = cycle(self.helpers)
        self.enough = max(1, 2 * count * self.part // batch)  # batches: one part for each to work on, and one that waits
        self.deep = 1  # until it is known how large pictures are

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as all_of_them:
            for helper in self.helpers:
                all_of_them.callback(helper.close)

    def read(self, pictures: Sequence[Picture]) -> Iterator[Batch]:
        """Some batches ahead, one process a part of a batch."""
        waiting: deque[Callable[[], Batch]] = deque()
        for batch in grouped(pictures, self.batch):
            waiting.append(self._ask(batch))
            while len(waiting) > self.deep:
                yield waiting.popleft()()
        while waiting:
            yield waiting.popleft()()

    def _ask(self, batch: list[Picture]) -> Callable[[], Batch]:
        """Deal out a batch; what this returns waits for it."""
        futures = []
        for part in grouped(batch, self.part):
            helper = next(self.turns)
            self.where |= {picture.stem: helper for picture in part}
            futures.append(helper.ask(*to_read(part), outcomes))

        def answers() -> Batch:
            parts, held = zip(*(future.result() for future in futures), strict=True)
            self.deep = min(self.enough, max(1, ROOM // max(1, sum(held))))
            found = list(zip(batch, chain.from_iterable(parts), strict=True))
            for picture in (picture for picture, outcome in found if not isinstance(outcome, np.ndarray)):
                del self.where[picture.stem]  # it will not be written
            return found

        return answers

    def write(self, seen: Sequence[tuple[Picture, Seen]]) -> list[Written]:
        """Each by the process that has read it."""
        parts: dict[Helper, list[tuple[Picture, Seen]]] = {}
        for picture, what in seen:
            parts.setdefault(self.where.pop(picture.stem), []).append((picture, what))
        return [([picture for picture, _ in part], helper.ask(*to_write(part), records)) for helper, part in parts.items()]
