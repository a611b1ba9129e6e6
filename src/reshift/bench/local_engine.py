"""Run tasks in worker processes on this machine: one per GPU, or some on the CPU. If a worker dies, only its cell is lost."""

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import Thread

from reshift.bench.cells import Event, Task, write_failed_cell
from reshift.errors import Stopped, UserError
from reshift.system.cores import cores
from reshift.system.imports import heavy_imports
from reshift.system.workers import spawning

STOP_SECONDS = 60.0  # workers that are stopped have this long, all together, to write their checkpoints and leave the GPU
Report = Callable[[Event], object]


def run_local(tasks: Sequence[Task], workers: int, device: str, report: Report) -> None:
    """Run every task and report events as they come; ``workers`` 0: one per GPU, or one on the CPU."""
    if not tasks:
        return
    places = devices(workers, device)[: len(tasks)]
    waiting = deque(_with_stages(tasks) if len(places) > 1 else tasks)
    threads = max(1, max_threads() // len(places))
    pool = list[_Worker]()
    try:
        pool += (_Worker(i, place, threads, Path(tasks[0].out) / "logs") for i, place in enumerate(places))
        while waiting or any(worker.task for worker in pool):
            for worker in pool:
                if worker.task is None and (task := next_task(waiting, [w.task for w in pool if w.task])) is not None:
                    worker.start_task(task)
            busy = {channel: worker for worker in pool if worker.task for channel in (worker.pipe, worker.process.sentinel)}
            for worker in dict.fromkeys(busy[channel] for channel in wait(list(busy))):  # type: ignore[index]
                waiting.extendleft(worker.receive(report))
    finally:  # no process is left behind, and one that is training writes its checkpoint first
        for worker in pool:
            worker.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for worker in pool:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            worker.process.kill()
            worker.process.join()


def _with_stages(tasks: Sequence[Task]) -> list[Task]:
    from reshift.bench.cost import shared_stages

    return [task._replace(stages=tuple(key for key in shared_stages(task.cells[0]) if key)) for task in tasks]


def next_task(waiting: deque[Task], running: Sequence[Task]) -> Task | None:
    """Take the first task that needs no stage which another is training just now: it would only train it a second time."""
    busy = {key for task in running if not task.trained for key in task.stages}
    for task in waiting:
        if task.trained or busy.isdisjoint(task.stages):
            waiting.remove(task)
            return task
    return None


def devices(workers: int, device: str) -> list[str]:
    """The device of each worker: the GPUs in turn, or the one GPU that was named, or the CPU."""
    import torch

    from reshift.system.device import pick_device

    chosen = pick_device(device)
    if chosen.type == "cuda" and device in ("auto", "cuda"):
        names = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        return [names[i % len(names)] for i in range(workers or len(names))]
    return [str(chosen)] * max(1, workers)


def max_threads() -> int:
    """The number of cores that we may use, or the lower number of threads that the user allows."""
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores(), int(allowed)) if allowed.isdigit() and int(allowed) else cores()


def fail_lost_cells(task: Task, finished: Collection[str], current: str, error: str, report: Report) -> list[Task]:
    """Record the cell whose worker died, or all cells if it died in training; return what is left to run of the task."""
    left = [spec for spec in task.cells if spec.name not in finished]
    lost = [spec for spec in left if spec.name == current or not task.trained] or left[:1]
    for spec in lost:
        write_failed_cell(Path(task.out), spec, error)
        report(Event("failed", spec.name, 0.0, error))
    rest = tuple(spec for spec in left if spec not in lost)
    return [task._replace(cells=rest)] if rest else []


class _Worker:
    """One process, which is started again when it has died."""

    def __init__(self, number: int, device: str, threads: int, logs: Path) -> None:
        self.log = logs / f"worker-{number}.log"
        self.device, self.threads = device, threads
        self.task: Task | None = None
        self.finished = set[str]()  # names of the task's cells that are written
        self.current = ""  # the cell that is being computed
        self._start_process()

    def start_task(self, task: Task) -> None:
        """Send a task to the process."""
        self.task, self.finished, self.current = task, set(), task.cells[0].name
        if not self.process.is_alive():
            self._start_process()
        with suppress(OSError):  # if it has died just now, ``receive`` notices
            self.pipe.send(task)

    def receive(self, report: Report) -> list[Task]:
        """Read all messages; if the process has died, return what is left of its task."""
        dead = not self.process.is_alive()  # checked first, so that all messages of a dead process are read
        try:
            while self.task is not None and self.pipe.poll():
                self._handle(self.pipe.recv(), report)
        except (EOFError, OSError):
            dead = True
        if self.task is None or not dead:
            return []
        task, self.task = self.task, None
        self.process.join()
        error = f"its worker {_how_it_ended(self.process.exitcode)}; see {self.log.relative_to(task.out)}"
        return fail_lost_cells(task, self.finished, self.current, error, report)

    def _handle(self, message: Event | str | None, report: Report) -> None:
        if message is None:
            self.task = None
        elif isinstance(message, str):
            raise UserError(message)
        else:
            self.current = message.cell
            if message.kind in ("done", "failed"):
                self.finished.add(message.cell)
            report(message)

    def _start_process(self) -> None:
        context = get_context("spawn")  # a forked process cannot use CUDA
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.device, self.threads, self.log), daemon=True)
        with spawning():
            self.process.start()
        theirs.close()  # so that the end of the process shows as an end of file


def _how_it_ended(code: int | None) -> str:
    if code is None or code >= 0:
        return f"ended with code {code}"
    return f"was ended by {signal.Signals(-code).name}{' (out of memory?)' if -code == signal.SIGKILL else ''}"


# ---- in the worker process -----------------------------------------------------------------------------------------


def _serve(pipe: Connection, device: str, threads: int, log: Path) -> None:
    """Run tasks as they come. A message is an event, None at the end of a task, or why nothing can be written any more."""
    for number in (signal.SIGINT, signal.SIGHUP):  # the parent gets Ctrl-C as well, and sends SIGTERM
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    Thread(target=_exit_with_parent, daemon=True).start()
    try:
        _redirect_output(log)
        os.environ["OMP_NUM_THREADS"] = str(threads)  # before numpy and torch are imported
        with heavy_imports():
            import torch

            from reshift.bench.compute import run_task
        torch.set_num_threads(threads)
        while True:
            run_task(pipe.recv(), device, pipe.send)
            pipe.send(None)
    except (Stopped, KeyboardInterrupt, EOFError):
        pass
    except UserError as err:
        pipe.send(str(err))


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _exit_with_parent() -> None:
    """End this process when its parent was killed, or it would disturb the next run."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _redirect_output(log: Path) -> None:
    """Write to a file what is printed here: the terminal shows the progress of the benchmark."""
    log.parent.mkdir(parents=True, exist_ok=True)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(target, stream.fileno())
