"""Tasks on a Ray cluster: each on a card, or on the cores of a node. A task whose worker or node is lost is done again.

Results are files in the benchmark's folder, which all nodes share; what passes through Ray are tasks and events.
"""

import json
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reshift.bench.cells import Spec, Task, run_task
from reshift.bench.engine import PATIENCE, Report, fail
from reshift.bench.events import Event
from reshift.errors import Stopped, UserError
from reshift.system.ray_cluster import Share, Shared, alive, begin, check, cluster, share, shared_folder

TRIES = 3  # of a task whose worker dies
PULSE = 0.5  # seconds between looks at what the tasks say
GIVEN_UP, FINISHED = "given up", ""


def run_ray(tasks: Sequence[Task], workers: int, device: str, report: Report) -> None:
    """Run every task; ``workers`` 0: one per GPU of the cluster, or one per node. Events are reported as they come."""
    check(device)
    if not tasks:
        return
    with shared_folder(Path(tasks[0].out)) as shared, cluster(workers or None) as ray:
        nodes = alive(ray)
        cards = device != "cpu" and any(node.get("GPU") for node in nodes)
        each = share(nodes, workers or (None if cards else len(nodes)), device)
        _Run(ray, shared, each, device, report).all(tasks)


class _Run:
    """What is under way, and what was heard of it."""

    def __init__(self, ray: Any, shared: Shared, each: Share, device: str, report: Report) -> None:
        self.ray, self.shared, self.each, self.device, self.report = ray, shared, each, device, report
        self.running: dict[Any, Task] = {}
        self.finished = set[str]()  # names of cells that are written
        self.current: dict[str, str] = {}  # model → the cell that its task is at
        self.submit = ray.remote(num_cpus=each.cpus, num_gpus=each.gpus, max_retries=TRIES - 1, retry_exceptions=False)(_work)
        self.events = _queue(ray)

    def all(self, tasks: Sequence[Task]) -> None:
        """Keep as many under way as there are workers."""
        waiting = deque(tasks)
        try:
            while waiting or self.running:
                while waiting and len(self.running) < self.each.workers:
                    task = waiting.popleft()
                    self.running[self.submit.remote(task, self.device, self.shared, self.events)] = task
                ready, _ = self.ray.wait(list(self.running), timeout=PULSE)
                self._hear()
                for ref in ready:
                    waiting.extendleft(self._end(ref))
        finally:
            self._stop()

    def _hear(self) -> None:
        """Report what the tasks said since; one that is done again repeats itself."""
        for model, event in self.events.get_nowait_batch(self.events.qsize()):
            self.current[model] = event.cell
            if event.cell not in self.finished:
                self.report(event)
            if event.kind != "started":
                self.finished.add(event.cell)

    def _end(self, ref: Any) -> list[Task]:
        """Take the outcome of a task; return what is left of one whose worker died every time."""
        task, died = self.running.pop(ref), self.ray.exceptions
        try:
            outcome = self.ray.get(ref)
        except (died.WorkerCrashedError, died.NodeDiedError, died.OutOfMemoryError):
            outcome = GIVEN_UP
        except died.RayTaskError as err:
            raise RuntimeError(f"in a Ray worker:\n{err}") from None
        if outcome == GIVEN_UP:
            return self._bury(task)
        if outcome != FINISHED:
            raise UserError(outcome)
        return []

    def _bury(self, task: Task) -> list[Task]:
        """Record the cell that was being computed as failed; all of the task's if it was their model."""
        _mark(self.shared, task).unlink(missing_ok=True)
        left = [spec for spec in task.cells if spec.name not in self.finished and not _written(task, spec)]
        trained = (task.folder / "bundle" / "config.json").exists()
        at = self.current.get(task.cells[0].model)
        lost = [spec for spec in left if spec.name == at or not trained] or left[:1]
        for spec in lost:
            fail(task, spec, f"its Ray worker died {TRIES} times, perhaps for want of memory; see Ray's logs", self.report)
        rest = tuple(spec for spec in left if spec not in lost)
        return [task._replace(cells=rest)] if rest else []

    def _stop(self) -> None:
        """Let what is still running write its checkpoint."""
        for ref in self.running:
            self.ray.cancel(ref)
        if self.running:
            self.ray.wait(list(self.running), num_returns=len(self.running), timeout=PATIENCE)
        self.events.shutdown(force=True)


def _queue(ray: Any) -> Any:
    """Where tasks leave their events; on the driver's own node, so that it lives as long as there is anybody to read it."""
    from ray.util.queue import Queue
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})


def _work(task: Task, device: str, shared: Shared, events: Any) -> str:
    """In the worker: do what is not written yet. What a user can mend is handed back as a line."""
    model = task.cells[0].model
    tell: Callable[[Event], None] = lambda event: events.put((model, event))  # noqa: E731
    mark = _mark(shared, task)
    try:
        shared.verify()
        if begin(mark) > TRIES:
            return GIVEN_UP
        written = [spec for spec in task.cells if _written(task, spec)]  # by a worker that died later
        for spec in written:
            tell(Event("done", spec.name))
        left = tuple(spec for spec in task.cells if spec not in written)
        if left:
            run_task(task._replace(cells=left), device, tell)
        mark.unlink(missing_ok=True)
    except Stopped:
        raise
    except UserError as err:
        return str(err)
    return FINISHED


def _mark(shared: Shared, task: Task) -> Path:
    return shared.notes / f"task-{task.cells[0].model}"


def _written(task: Task, spec: Spec) -> bool:
    try:
        cell = json.loads((Path(task.out) / "cells" / spec.file).read_bytes())
    except (OSError, ValueError):
        return False
    return bool(cell.get("status") == "done" and cell.get("key") == spec.key)
