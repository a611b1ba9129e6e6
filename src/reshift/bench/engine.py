"""Tasks in processes of this machine: one per GPU, or some on the CPU. A process that dies costs the cell it was at."""

import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Thread
from typing import Any

from reshift.bench.cells import DiskFullError, Spec, Task, disk_full, failed, write_cell
from reshift.bench.events import Event
from reshift.errors import Stopped, UserError
from reshift.system.cores import cores as allotted

PATIENCE = 60.0  # seconds that a process gets for its checkpoint when all is stopped
Report = Callable[[Event], object]


def run_local(tasks: Sequence[Task], workers: int, device: str, report: Report) -> None:
    """Run every task; ``workers`` 0: one process per GPU, or one in all. Events are reported as they come."""
    if not tasks:
        return
    waiting = deque(tasks)
    places = devices(workers, device)[: len(tasks)]
    threads = max(1, cores() // len(places))
    team = [_Worker(i, place, threads, Path(tasks[0].out) / "logs") for i, place in enumerate(places)]
    with _stopped_at_last(team):
        while waiting or any(worker.task for worker in team):
            for worker in team:
                if worker.task is None and waiting:
                    worker.begin(waiting.popleft())
            ready = wait([channel for worker in team if worker.task for channel in worker.channels()])
            for worker in team:
                if worker.task and any(channel in ready for channel in worker.channels()):
                    left = worker.listen(report)
                    if left is not None:
                        waiting.appendleft(left)


def devices(workers: int, device: str) -> list[str]:
    """Where each process computes: in turn on the GPUs, or all on the one that was named, or on the CPU."""
    import torch

    from reshift.system.device import pick_device

    chosen = pick_device(device)
    if chosen.type == "cuda" and device in ("auto", "cuda"):
        names = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        return [names[i % len(names)] for i in range(workers or len(names))]
    return [str(chosen)] * max(1, workers)


def cores() -> int:
    """Processor cores that we may use, or threads that the user allows."""
    here = allotted()
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    return min(here, int(allowed)) if allowed.isdigit() and int(allowed) else here


class _Worker:
    """One process, started when it is first needed, and again when it has died."""

    def __init__(self, number: int, device: str, threads: int, logs: Path) -> None:
        self.number, self.device, self.threads, self.logs = number, device, threads, logs
        self.process: SpawnProcess | None = None
        self.pipe: Connection | None = None
        self.task: Task | None = None
        self.finished = set[str]()  # names of the task's cells that are written
        self.cell = ""  # the one it is at

    def begin(self, task: Task) -> None:
        """Hand over a task."""
        self.task, self.finished, self.cell = task, set(), task.cells[0].name
        if self.process is None or not self.process.is_alive():
            self._start()
        with suppress(OSError):  # it may have died just now; ``listen`` will find out
            self._pipe().send(task)

    def channels(self) -> list[Any]:
        """What becomes ready when there is news: a message, or its death."""
        return [self._pipe(), self._process().sentinel]

    def listen(self, report: Report) -> Task | None:
        """Take all messages; return what is left of the task if the process has died."""
        dead = not self._process().is_alive()  # asked before the messages: what it said before dying is then all there
        try:
            while self.task is not None and self._pipe().poll():
                self._hear(self._pipe().recv(), report)
        except (EOFError, OSError):
            dead = True
        return self._bury(report) if dead and self.task is not None else None

    def stop(self) -> None:
        """Ask the process to end: at its next training step, or at once."""
        if self.process is not None and self.process.is_alive():
            self.process.terminate()

    def leave(self) -> None:
        """Wait for the end, and enforce it."""
        if self.process is not None:
            self.process.join(PATIENCE)
            self.process.kill()
            self.process.join()

    def _hear(self, message: Event | str | None, report: Report) -> None:
        if message is None:
            self.task = None
        elif isinstance(message, str):
            raise DiskFullError(message)
        else:
            self.cell = message.cell
            if message.kind in ("done", "failed"):
                self.finished.add(message.cell)
            report(message)

    def _bury(self, report: Report) -> Task | None:
        """Record the cell that was being computed as failed; all of the task's if it was their model."""
        task, process = self.task, self._process()
        process.join()
        self.task = None
        if task is None:
            return None
        left = [spec for spec in task.cells if spec.name not in self.finished]
        trained = (task.folder / "bundle" / "config.json").exists()
        lost = [spec for spec in left if spec.name == self.cell or not trained] or left[:1]
        for spec in lost:
            fail(task, spec, _death(process.exitcode, self._log().relative_to(task.out)), report)
        rest = tuple(spec for spec in left if spec not in lost)
        return task._replace(cells=rest) if rest else None

    def _start(self) -> None:
        context = get_context("spawn")  # a forked process could not use CUDA, nor trust torch's threads
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, self.device, self.threads, str(self._log())), daemon=True)
        self.process.start()
        theirs.close()  # so that its end shows as an end of file

    def _log(self) -> Path:
        return self.logs / f"worker-{self.number}.log"

    def _process(self) -> SpawnProcess:
        if self.process is None:
            raise RuntimeError("not started")
        return self.process

    def _pipe(self) -> Connection:
        if self.pipe is None:
            raise RuntimeError("not started")
        return self.pipe


def fail(task: Task, spec: Spec, error: str, report: Report) -> None:
    """Record and report a cell whose process could not do it itself."""
    try:
        write_cell(Path(task.out), spec.file, failed(spec, error))
    except UserError as err:
        raise (DiskFullError(str(err)) if disk_full(err) else err) from err
    report(Event("failed", spec.name, 0.0, error))


def _death(code: int | None, log: Path) -> str:
    if code is not None and code < 0:
        hint = ", perhaps for want of memory" if -code == signal.SIGKILL else ""
        return f"its process was ended by {signal.Signals(-code).name}{hint}; see {log}"
    return f"its process ended with code {code}; see {log}"


@contextmanager
def _stopped_at_last(team: Sequence[_Worker]) -> Iterator[None]:
    """However the work ends, no process is left behind; one at a training step writes its checkpoint first."""
    try:
        yield
    finally:
        for worker in team:
            worker.stop()
        for worker in team:
            worker.leave()


# ---- in the process ------------------------------------------------------------------------------------------------


def _work(pipe: Connection, device: str, threads: int, log: str) -> None:
    """Do tasks as they come, until nobody wants more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C as well, and passes it on in its own way
    signal.signal(signal.SIGTERM, _interrupt)
    Thread(target=_die_with_parent, daemon=True).start()
    try:
        _redirect(Path(log))
        os.environ["OMP_NUM_THREADS"] = str(threads)  # before numpy and torch are imported
        import torch

        from reshift.bench.cells import run_task

        torch.set_num_threads(threads)
        while True:
            run_task(pipe.recv(), device, pipe.send)
            pipe.send(None)
    except (Stopped, KeyboardInterrupt, EOFError):
        pass
    except UserError as err:  # what is written could not be written: no other cell could be, either
        pipe.send(str(err))


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _die_with_parent() -> None:
    """Without this, a process whose parent was killed would go on beside the next run."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _redirect(log: Path) -> None:
    """What a process prints goes into a file: the terminal belongs to the view."""
    log.parent.mkdir(parents=True, exist_ok=True)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(target, 1)
    os.dup2(target, 2)
