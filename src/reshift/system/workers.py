"""Other processes that read and write for this one.

Python lets one thread of a process compute at a time. Of the milliseconds that a picture takes to read and to write, a third are
such, so that threads, however many, handle a few hundred pictures a second. A process has an interpreter of its own.

A helper is ``python -m MODULE``, asked through a pipe (frames.py). So it does not run the caller's script again, imports only
what it needs, and ends by itself when the one who asks does, whatever became of that.
"""

import os
import subprocess
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from numpy.typing import NDArray

from reshift.errors import UserError, reason
from reshift.system.cores import cores
from reshift.system.messages import receive, send

VARIABLE = "RESHIFT_HELPERS"
MANY = 512  # pictures, to be read and written, for which it pays to start processes
FEW = 4  # cores of which this process leaves none to others
MOST = 16
# Memory of a picture is used again for the next one: to give it back and ask for it anew costs a fault for every page of it.
KEEP = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**28)}  # of glibc, in bytes

Answer = TypeVar("Answer")
Said = tuple[Any, list[NDArray[Any]]]  # a message: plain values and arrays


def helpers(pictures: int, *, gpu: bool) -> int:
    """How many: a core each where a GPU waits for many pictures, or as the environment says; 0 means threads."""
    text = os.environ.get(VARIABLE, "")
    if text and not text.isdigit():
        raise UserError(f"{VARIABLE}='{text}' is no number of processes; 0 means threads")
    mine = cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # torchrun's processes on this machine share them
    return int(text) if text else min(MOST, mine) if gpu and pictures >= MANY and mine > FEW else 0


class Helper:
    """One process, and the thread that talks to it: one question at a time."""

    def __init__(self, module: str, first: Any) -> None:
        path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, **KEEP, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is for us alone
        )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.questions: BinaryIO = self.process.stdin  # type: ignore[assignment]
        self.answers: BinaryIO = self.process.stdout  # type: ignore[assignment]
        self.thread = ThreadPoolExecutor(1)
        self.begun = self.thread.submit(self._told, first, [])

    def ask(self, value: Any, arrays: list[NDArray[Any]], answer: Callable[[Said], Answer]) -> "Future[Answer]":
        """Have something done; ``answer`` makes something of what comes back."""
        return self.thread.submit(self._asked, value, arrays, answer)

    def close(self) -> None:
        """Finish what was asked for, and end the process."""
        self.thread.shutdown()
        for pipe in (self.questions, self.answers):
            with suppress(OSError):  # what a dead one was not told any more
                pipe.close()
        self.process.wait()

    def _told(self, value: Any, arrays: list[NDArray[Any]]) -> None:
        self._alive(lambda: send(self.questions, value, arrays))

    def _asked(self, value: Any, arrays: list[NDArray[Any]], answer: Callable[[Said], Answer]) -> Answer:
        self.begun.result()
        self._told(value, arrays)
        said = self._alive(lambda: receive(self.answers))
        if isinstance(said[0], str):
            raise UserError(said[0])
        return answer(said)

    def _alive(self, talk: Callable[[], Answer]) -> Answer:
        try:
            return talk()
        except (OSError, EOFError):
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
            code = self.process.returncode
            died = f"a process that reads and writes pictures has ended (exit {code}), perhaps for want of memory"
            raise UserError(f"{died}; run it again to go on, with {VARIABLE}=0 to do without them") from None


def in_turn(asked: "Iterable[Future[Answer]]", ahead: int) -> Iterator[Answer]:
    """The answers, in order, with ``ahead`` more always under way."""
    waiting: deque[Future[Answer]] = deque()
    for future in asked:
        waiting.append(future)
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def started(make: Callable[[], Answer]) -> Answer | None:
    """What ``make`` makes of helpers; where the system has no room for them a line says so, and threads must do."""
    try:
        return make()
    except OSError as err:
        warnings.warn(f"no helper processes could be started ({err.strerror}); threads do their work, slower", stacklevel=2)
        return None


def serve(begin: Callable[[Any], Callable[[Any, list[NDArray[Any]]], Said]]) -> None:
    """Be a helper: ``begin`` gets the first message and returns what answers all others, until nobody asks any more."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not get among the answers
    try:
        work = begin(receive(requests)[0])
        while True:
            asked = receive(requests)
            try:
                answer = work(*asked)
            except Exception as err:  # a full disk: for the one who asked to deal with
                answer = reason(err), []
            send(answers, *answer)
    except (EOFError, BrokenPipeError):
        os._exit(0)  # nobody is there to flush for
