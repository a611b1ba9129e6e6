"""Run tasks on a Ray cluster, each on one GPU or on the cores of a node. A task whose worker or node dies is run again.

Results are files in the benchmark's folder, which all nodes share. Only tasks and events pass through Ray.
"""

import json
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reshift.bench.cells import Event, Spec, Task
from reshift.bench.local_engine import STOP_SECONDS, Report, fail_lost_cells
from reshift.errors import Stopped, UserError
from reshift.system.ray_cluster import Share, SharedFolder, check, cluster, count_attempt, node_resources, share, shared_folder

ATTEMPTS = 3  # of a task whose worker dies
POLL_SECONDS = 0.5
GIVEN_UP, FINISHED = "given up", ""


def run_ray(tasks: Sequence[Task], workers: int, device: str, report: Report) -> None:
    """Run every task and report events as they come; ``workers`` 0: one per GPU of the cluster, or one per node."""
    check(device)
    if not tasks:
        return
    with shared_folder(Path(tasks[0].out)) as shared, cluster(workers or None) as ray:
        nodes = node_resources(ray)
        gpus = device != "cpu" and any(node.get("GPU") for node in nodes)
        each = share(nodes, workers or (None if gpus else len(nodes)), device)
        _Run(ray, shared, each, device, report).run(tasks)


class _Run:
    """The tasks that are running, and what they have reported."""

    def __init__(self, ray: Any, shared: SharedFolder, each: Share, device: str, report: Report) -> None:
        self.ray, self.shared, self.each, self.device, self.report = ray, shared, each, device, report
        self.running: dict[Any, Task] = {}
        self.finished = set[str]()  # names of cells that are written
        self.current: dict[str, str] = {}  # model → the cell that its task computes
        options = {"num_cpus": each.cpus, "num_gpus": each.gpus, "max_retries": ATTEMPTS - 1, "retry_exceptions": False}
        self.submit = ray.remote(**options)(_work)
        self.events = _queue(ray)

    def run(self, tasks: Sequence[Task]) -> None:
        """Keep as many tasks running as there are workers."""
        waiting = deque(tasks)
        try:
            while waiting or self.running:
                while waiting and len(self.running) < self.each.workers:
                    task = waiting.popleft()
                    self.running[self.submit.remote(task, self.device, self.shared, self.events)] = task
                ready, _ = self.ray.wait(list(self.running), timeout=POLL_SECONDS)
                self._receive()
                for ref in ready:
                    waiting.extendleft(self._end(ref))
        finally:
            self._stop()

    def _receive(self) -> None:
        """Report new events. A task that is run again repeats its events, and each is reported once."""
        for model, event in self.events.get_nowait_batch(self.events.qsize()):
            self.current[model] = event.cell
            if event.cell not in self.finished:
                self.report(event)
            if event.kind != "started":
                self.finished.add(event.cell)

    def _end(self, ref: Any) -> list[Task]:
        """Take the outcome of a task; if its worker died every time, return what is left of it."""
        task, errors = self.running.pop(ref), self.ray.exceptions
        try:
            outcome = self.ray.get(ref)
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError):
            outcome = GIVEN_UP
        except errors.RayTaskError as err:
            raise RuntimeError(f"in a Ray worker:\n{err}") from None
        if outcome == GIVEN_UP:
            _attempts_file(self.shared, task).unlink(missing_ok=True)
            finished = self.finished | {spec.name for spec in task.cells if _written(task, spec)}
            current = self.current.get(task.cells[0].model, "")
            error = f"its Ray worker died {ATTEMPTS} times (out of memory?); see Ray's logs"
            return fail_lost_cells(task, finished, current, error, self.report)
        if outcome != FINISHED:
            raise UserError(outcome)
        return []

    def _stop(self) -> None:
        """Let running tasks write their checkpoints."""
        for ref in self.running:
            self.ray.cancel(ref)
        if self.running:
            self.ray.wait(list(self.running), num_returns=len(self.running), timeout=STOP_SECONDS)
        self.events.shutdown(force=True)


def _queue(ray: Any) -> Any:
    """A queue for the tasks' events, on the driver's own node, so that the loss of another node does not end it."""
    from ray.util.queue import Queue
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})


def _work(task: Task, device: str, shared: SharedFolder, events: Any) -> str:
    """In the worker: run the cells that are not written yet. A user's mistake is returned as one line."""
    from reshift.bench.compute import run_task

    model = task.cells[0].model
    report: Callable[[Event], None] = lambda event: events.put((model, event))  # noqa: E731
    attempts = _attempts_file(shared, task)
    try:
        shared.enter(relative=not Path(task.out).is_absolute())
        if count_attempt(attempts) > ATTEMPTS:
            return GIVEN_UP
        written = [spec for spec in task.cells if _written(task, spec)]  # by a worker that died later
        for spec in written:
            report(Event("done", spec.name))
        left = tuple(spec for spec in task.cells if spec not in written)
        if left:
            run_task(task._replace(cells=left), device, report)
        attempts.unlink(missing_ok=True)
    except Stopped:
        raise
    except UserError as err:
        return str(err)
    return FINISHED


def _attempts_file(shared: SharedFolder, task: Task) -> Path:
    return shared.notes / f"task-{task.cells[0].model}"


def _written(task: Task, spec: Spec) -> bool:
    try:
        cell = json.loads((Path(task.out) / "cells" / spec.file).read_bytes())
    except (OSError, ValueError):
        return False
    return bool(cell.get("status") == "done" and cell.get("key") == spec.key)
