"""Who reads and writes pictures while the network looks at others: threads or, if it looks at thousands a second, processes.

Python lets one thread of a process compute at a time. Of the eight milliseconds that a picture takes to read and to write, two
are such, so that threads, however many, handle a few hundred pictures a second. A process has an interpreter of its own.
"""

import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO, Protocol, Self, TypeVar

from reshift.data.source import ahead
from reshift.errors import UserError
from reshift.predict import grouped
from reshift.score_helper import Desk, Outcome, Picture, ask_to_read, ask_to_write, outcomes, records, send_task
from reshift.score_picture import Seen, Task
from reshift.scores import Record

VARIABLE = "RESHIFT_HELPERS"
READ_AHEAD = 8  # images beyond the batch at hand; a scan may take hundreds of megabytes
MANY = 512  # pictures for which it pays to start processes
FEW = 4  # cores of which the network's own process leaves none to others
MOST = 16

Batch = list[tuple[Picture, Outcome]]
Written = tuple[list[Picture], "Future[list[Record]]"]
Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Hands(Protocol):
    """Reads ahead in batches, and writes behind."""

    def read(self, pictures: Sequence[Picture]) -> Iterator[Batch]:
        """All pictures, in order; those of a batch that have a network input must then be written."""

    def write(self, seen: Sequence[tuple[Picture, Seen]]) -> list[Written]:
        """Begin to write."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(self, *_: object) -> None:
        """Finish what was begun."""


def hands(task: Task, batch: int, pictures: int) -> Hands:
    """Processes for many pictures on a GPU with cores around it, or as many as the environment asks for; else threads."""
    count = _wanted()
    if count is None:
        cores = os.cpu_count() or 1
        count = min(MOST, cores) if batch > 1 and pictures >= MANY and cores > FEW else 0
    return Threads(task, batch) if count == 0 or task.dicom else Processes(task, batch, count)


def _wanted() -> int | None:
    text = os.environ.get(VARIABLE, "")
    if text and not text.isdigit():
        raise UserError(f"{VARIABLE}='{text}' is no number of processes; 0 means threads")
    return int(text) if text else None


class Threads:
    """In this process."""

    def __init__(self, task: Task, batch: int) -> None:
        self.desk, self.batch = Desk(task), batch
        threads = 1 if task.dicom else min(MOST, os.cpu_count() or 1)  # highdicom promises nothing of threads
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
        self.batch, self.where = batch, dict[str, int]()
        self.helpers = [Helper(task) for _ in range(count)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as all_of_them:
            for helper in self.helpers:
                all_of_them.callback(helper.close)

    def read(self, pictures: Sequence[Picture]) -> Iterator[Batch]:
        """One batch ahead, every process an equal part of it."""
        waiting: deque[Callable[[], Batch]] = deque()
        for batch in grouped(pictures, self.batch):
            waiting.append(self._ask(batch))
            if len(waiting) > 1:
                yield waiting.popleft()()
        while waiting:
            yield waiting.popleft()()

    def _ask(self, batch: list[Picture]) -> Callable[[], Batch]:
        """Deal out a batch; what this returns waits for it."""
        count = len(self.helpers)
        self.where |= {picture.stem: i % count for i, picture in enumerate(batch)}
        futures = [helper.read(part) for i, helper in enumerate(self.helpers) if (part := batch[i::count])]

        def answers() -> Batch:
            parts = [future.result() for future in futures]
            return [(picture, parts[i % count][i // count]) for i, picture in enumerate(batch)]

        return answers

    def write(self, seen: Sequence[tuple[Picture, Seen]]) -> list[Written]:
        """Each by the process that has read it."""
        parts: dict[int, list[tuple[Picture, Seen]]] = {}
        for picture, what in seen:
            parts.setdefault(self.where.pop(picture.stem), []).append((picture, what))
        return [([picture for picture, _ in part], self.helpers[i].write(part)) for i, part in parts.items()]


class Helper:
    """One process, and the thread that talks to it: one question at a time."""

    def __init__(self, task: Task) -> None:
        path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "reshift.score_helper"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, start_new_session=True,  # Ctrl-C is for us alone
        )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.questions: BinaryIO = self.process.stdin  # type: ignore[assignment]
        self.answers: BinaryIO = self.process.stdout  # type: ignore[assignment]
        self.thread = ThreadPoolExecutor(1)
        self.begun = self.thread.submit(self._alive, lambda: send_task(self.questions, task))

    def read(self, pictures: Sequence[Picture]) -> "Future[list[Outcome]]":
        """Ask for network inputs."""
        return self.thread.submit(self._asked, ask_to_read, pictures, outcomes)

    def write(self, items: Sequence[tuple[Picture, Seen]]) -> "Future[list[Record]]":
        """Have maps and overlays written."""
        return self.thread.submit(self._asked, ask_to_write, items, records)

    def close(self) -> None:
        """Finish what was asked for, and end the process."""
        self.thread.shutdown()
        for pipe in (self.questions, self.answers):
            with suppress(OSError):  # what a dead one was not told any more
                pipe.close()
        self.process.wait()

    def _asked(
        self, ask: Callable[[BinaryIO, Sequence[Item]], None], items: Sequence[Item], answer: Callable[[BinaryIO], Answer]
    ) -> Answer:
        self.begun.result()
        self._alive(lambda: ask(self.questions, items))
        return self._alive(lambda: answer(self.answers))

    def _alive(self, talk: Callable[[], Answer]) -> Answer:
        try:
            return talk()
        except (OSError, EOFError):
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
            code = self.process.returncode
            died = f"a process that reads and writes pictures has ended (exit {code}), perhaps for want of memory"
            raise UserError(f"{died}; run it again to go on, with {VARIABLE}=0 to do without them") from None
