"""Worker threads and worker processes behind one interface.

Reading and writing an image takes a few milliseconds, and Python's global lock is held for a third of them. Threads therefore
end at a few hundred images a second, however many cores there are. Processes do not share that lock, but cost seconds to start.
So threads are the default, and processes do the work where a GPU waits for many images.
"""

import os
import pickle  # nosec B403
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from itertools import chain
from multiprocessing import get_context
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import finalize

from reshift.errors import UserError, reason
from reshift.system.allocator import worker_environment
from reshift.system.cores import cores

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

VARIABLE = "RESHIFT_WORKERS"
MIN_IMAGES = 512  # to read and write, before starting processes pays
MIN_CORES = 5  # with fewer, the main process needs all of them
MAX_WORKERS = 16
PATIENCE = 5.0  # seconds for the oldest result, before later ones go first
MAX_LATE = 8  # results that others have gone before; then all wait
ENVIRONMENT = {"OMP_NUM_THREADS": "1", **worker_environment()}

Result = TypeVar("Result")


class WorkerEndedError(UserError):
    """A worker process was killed, or a library ended it."""


_spawning = threading.RLock()  # what is changed while a process starts belongs to all threads


def worker_processes(images: int, *, gpu: bool) -> int:
    """How many processes to start: one per core where a GPU waits for many images; 0 means threads. The environment may say."""
    text = os.environ.get(VARIABLE, "")
    if text and not text.isdigit():
        raise UserError(f"{VARIABLE}='{text}' is not a number; 0 means threads")
    available = cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # the ranks of torchrun share this machine
    pays = gpu and images >= MIN_IMAGES and available >= MIN_CORES
    return int(text) if text else min(MAX_WORKERS, available) if pays else 0


class WorkerPool:
    """Runs functions in threads or, with ``processes``, in so many processes. Functions and arguments must then be picklable."""

    def __init__(self, processes: int = 0, threads: int | None = None) -> None:
        workers = _start(processes) if processes else []
        self.processes = len(workers)
        self.size = self.processes or threads or min(MAX_WORKERS, cores())
        self.workers: Sequence[ThreadPoolExecutor | _Process] = workers or [ThreadPoolExecutor(self.size)]
        self._calls = [0] * len(self.workers)  # that each has not finished
        self._turn, self._lock = 0, Lock()
        self.close = finalize(self, _shut_down, self.workers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def next_worker(self) -> int:
        """The number of a worker: they take turns, but one that is held up by a slow file is left alone."""
        self._turn += 1
        order = (worker % len(self.workers) for worker in range(self._turn, self._turn + len(self.workers)))
        return min(order, key=self._calls.__getitem__)

    def submit(self, worker: int, function: Callable[..., Result], *args: Any) -> "Future[Result]":
        """Call ``function`` in that worker. Calls of one process run one after another."""
        future = self.workers[worker].submit(function, *args)
        with self._lock:
            self._calls[worker] += 1
        future.add_done_callback(lambda _: self._ended(worker))
        return future

    def _ended(self, worker: int) -> None:
        with self._lock:
            self._calls[worker] -= 1

    def map(self, function: Callable[[Any], Result], items: Iterable[Any], ahead: int) -> Iterator[Result]:
        """Results in order, with ``ahead`` more calls always running or waiting."""
        return in_order((self.submit(self.next_worker(), function, item) for item in items), lambda: ahead)


class _Process:
    """One process, and the thread that talks to it through a pipe.

    Not ``ProcessPoolExecutor``: a call has to reach the process that holds its image, and its queues cost a tenth of the rate.
    """

    def __init__(self) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.thread = ThreadPoolExecutor(1)

    def submit(self, function: Callable[..., Result], *args: Any) -> "Future[Result]":
        """Call ``function`` there, after what was submitted before."""
        return self.thread.submit(self._call, function, args)

    def _call(self, function: Callable[..., Result], args: tuple[Any, ...]) -> Result:
        try:
            _send(self.pipe, (function, args))
            value, error = _receive(self.pipe)
        except (OSError, EOFError):
            line = "a worker process that reads and writes images has ended, perhaps because memory ran out"
            raise WorkerEndedError(f"{line}; run the command again to continue, with {VARIABLE}=0 to use threads") from None
        if error is not None:
            raise error
        answer: Result = value
        return answer

    def shutdown(self, *, cancel_futures: bool) -> None:
        """Finish the call at hand, and end the process."""
        self.thread.shutdown(cancel_futures=cancel_futures)
        self.pipe.close()
        self.process.join()


def _serve(pipe: "Connection[Any, Any]") -> None:
    """A worker process: answer calls until the pipe ends, which it also does when the main process is killed."""
    for number in (signal.SIGINT, signal.SIGHUP):  # Ctrl-C and a closed terminal are for the main process
        signal.signal(number, signal.SIG_IGN)
    os.dup2(2, 1)  # what a library prints must not get into our output
    with suppress(EOFError, OSError):
        while True:
            function, args = _receive(pipe)
            value, error = None, None
            try:
                value = function(*args)
            except Exception as err:
                error = err if isinstance(err, UserError) else UserError(reason(err))
            _send(pipe, (value, error))


def _send(pipe: "Connection[Any, Any]", value: Any) -> None:
    """Like ``pipe.send``, but arrays go as they are: pickling them takes three copies, and several times as long."""
    arrays: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=arrays.append)
    pipe.send_bytes(len(arrays).to_bytes(4, "little") + head)
    for array in arrays:
        pipe.send_bytes(array.raw())


def _receive(pipe: "Connection[Any, Any]") -> Any:
    head = pipe.recv_bytes()
    arrays = [pipe.recv_bytes() for _ in range(int.from_bytes(head[:4], "little"))]
    return pickle.loads(head[4:], buffers=arrays)  # nosec B301


def in_order(futures: "Iterable[Future[Result]]", ahead: Callable[[], int]) -> Iterator[Result]:
    """Results in order; the next ``ahead()`` futures are taken from the iterable before the first one is waited for."""
    waiting: deque[Future[Result]] = deque()
    for future in futures:
        waiting.append(future)
        while len(waiting) > ahead():
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def as_ready(futures: "Iterable[Future[Result]]", ahead: Callable[[], int], max_late: int = MAX_LATE) -> Iterator[Result]:
    """Like ``in_order``, but a result that takes longer than ``PATIENCE`` lets up to ``max_late`` others go first."""
    waiting, late = deque[Future[Result]](), set[Future[Result]]()
    for future in chain(futures, [None]):
        if future is not None:
            waiting.append(future)
        while len(waiting) > (0 if future is None else ahead()):
            oldest = waiting.popleft()
            if wait([oldest], PATIENCE).done:
                yield oldest.result()
            else:
                late.add(oldest)
            while len(late) > max_late:
                yield from _take_done(late)
            yield from _take_done(late, 0)
    while late:
        yield from _take_done(late)


def _take_done(futures: "set[Future[Result]]", seconds: float | None = None) -> list[Result]:
    """Remove those that are done, after waiting for the first of them."""
    done = wait(futures, seconds, FIRST_COMPLETED).done if futures else set[Future[Result]]()
    futures -= done
    return [future.result() for future in done]


def _start(count: int) -> list[_Process]:
    """Start processes; where there is no room for them, none, and a warning."""
    started: list[_Process] = []
    try:
        with spawning(ENVIRONMENT):
            started.extend(_Process() for _ in range(count))
    except OSError as err:
        _shut_down(started)
        warnings.warn(f"no worker process could be started ({err.strerror}); threads do the work, slower", stacklevel=4)
        return []
    return started


@contextmanager
def spawning(environment: Mapping[str, str] = {}) -> Iterator[None]:
    """Start processes that import no file of the current folder in place of a module, and do not run the caller's script."""
    wanted = {**environment, "PYTHONSAFEPATH": "1"}
    with _spawning:
        main, before = sys.modules["__main__"], {name: os.environ.get(name) for name in wanted}
        sys.modules["__main__"] = ModuleType("__main__")
        os.environ.update(wanted)
        try:
            yield
        finally:
            sys.modules["__main__"] = main
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def _shut_down(workers: Sequence[ThreadPoolExecutor | _Process]) -> None:
    for worker in workers:
        worker.shutdown(cancel_futures=True)
