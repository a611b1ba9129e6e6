"""``bench --engine ray`` on a real Ray cluster with two workers: the same cells as a local run, also if a worker is killed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench_suites import BRIGHTNESS, DAE, HEAD, IMPOSSIBLE, SWEEP, cells_in, results_in, write_suite
from helpers import Cli
from processes import meanwhile, wait_until
from ray_local import local_ray

from reshift.bench import ray_engine
from reshift.bench.cells import Spec, Task
from reshift.bench.plan import group_tasks, plan
from reshift.bench.suite import load_suite
from reshift.system.ray_cluster import NOTES

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs the /proc of Linux")
LONG = "updates = { epochs = 60 }"  # with a checkpoint after every step


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    with local_ray() as ray:
        yield ray


def started_by(attempts: Path) -> list[int]:
    """Process ids of the workers that started a task."""
    try:
        return [int(line.split()[1]) for line in attempts.read_text().splitlines()]
    except FileNotFoundError:
        return []


@pytest.mark.usefixtures("in_process")  # the local run
def test_same_cells_as_a_local_run_although_a_worker_is_killed(run_cli: Cli, tmp_path: Path) -> None:
    sweep = SWEEP.replace("updates = { epochs = 6 }", LONG)
    suite, out, local = write_suite(tmp_path, HEAD, sweep, IMPOSSIBLE), tmp_path / "out", tmp_path / "local"
    out.mkdir()
    [long] = [task for task in group_tasks(plan(load_suite(suite), None, out).specs, out) if len(task.cells) == 2]
    attempts = out / NOTES / f"task-{long.cells[0].model}"

    def kill() -> None:
        wait_until((long.folder / "checkpoint.safetensors").exists)
        [worker] = started_by(attempts)
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: len(started_by(attempts)) == 2)  # another worker continues

    with meanwhile(kill):
        found = run_cli("bench", suite, "--out", out, "--engine", "ray", "--workers", "2", "--device", "cpu")
    assert found.code == 3, found  # for the impossible cell
    assert run_cli("bench", suite, "--out", local, "--device", "cpu").code == 3
    assert results_in(out) == results_in(local)
    cells = {name: cell["status"] for name, cell in cells_in(out).items()}
    assert sorted(cells.values()) == ["done", "done", "failed"]
    assert {name: cell["error"] for name, cell in cells_in(out).items()} == {
        name: cell["error"] for name, cell in cells_in(local).items()
    }
    assert not (out / NOTES).exists()


def test_a_task_that_kills_every_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """If it dies in training, all its cells are recorded as failed; other tasks are run."""
    suite, out = write_suite(tmp_path, HEAD, BRIGHTNESS, DAE), tmp_path / "out"
    out.mkdir()
    doomed, good = sorted(
        group_tasks(plan(load_suite(suite), None, out).specs, out), key=lambda task: task.cells[0].method, reverse=True
    )
    heard: list[tuple[str, str]] = []
    monkeypatch.setattr(ray_engine, "_work", _deadly)
    monkeypatch.setattr(ray_engine, "ATTEMPTS", 2)
    ray_engine.run_ray([doomed, good], 2, "cpu", lambda event: heard.append((event.kind, event.cell)))
    assert ("failed", doomed.cells[0].name) in heard
    assert ("done", good.cells[0].name) in heard
    cells = cells_in(out)
    assert {cell["method"]: cell["status"] for cell in cells.values()} == {"dae": "failed", "brightness": "done"}
    assert "its Ray worker died 2 times" in cells[doomed.cells[0].file]["error"]
    assert "died" not in "".join(capfd.readouterr())  # Ray prints nothing


_real = ray_engine._work


def _deadly(task: Task, *rest: Any) -> str:
    spec: Spec = task.cells[0]
    if spec.method == "dae":
        os.kill(os.getpid(), signal.SIGKILL)
    return _real(task, *rest)
