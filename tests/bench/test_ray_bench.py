"""``bench --engine ray`` on a real Ray with two workers: the cells of a local run, also when a worker is killed in training."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench_suites import BRIGHTNESS, DAE, HEAD, IMPOSSIBLE, SWEEP, cells_in, results_in, write_suite
from helpers import Cli
from ray_local import local_ray, meanwhile, wait_until

from reshift.bench import ray_engine
from reshift.bench.cells import Spec, Task
from reshift.bench.plan import plan, tasks
from reshift.bench.suite import load_suite
from reshift.system.ray_cluster import NOTES

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes the way Linux shows them")
LONG = "updates = { epochs = 60 }"  # seconds of training, with a checkpoint after every step


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    with local_ray() as ray:
        yield ray


def begun_by(mark: Path) -> list[int]:
    """Process ids of the workers that began a task, as they noted them."""
    try:
        return [int(line.split()[1]) for line in mark.read_text().splitlines()]
    except FileNotFoundError:
        return []


def test_as_local_although_a_worker_is_killed(run_cli: Cli, tmp_path: Path) -> None:
    sweep = SWEEP.replace("updates = { epochs = 6 }", LONG)
    suite, out, local = write_suite(tmp_path, HEAD, BRIGHTNESS, sweep, IMPOSSIBLE), tmp_path / "out", tmp_path / "local"
    out.mkdir()
    [long] = [task for task in tasks(plan(load_suite(suite), None, out).specs, out) if len(task.cells) == 2]
    mark = out / NOTES / f"task-{long.cells[0].model}"

    def kill() -> None:
        wait_until((long.folder / "checkpoint.safetensors").exists)
        [worker] = begun_by(mark)
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: len(begun_by(mark)) == 2)  # another one goes on with it

    with meanwhile(kill):
        found = run_cli("bench", suite, "--out", out, "--engine", "ray", "--workers", "2", "--device", "cpu")
    assert found.code == 3, found  # for the impossible cell
    assert run_cli("bench", suite, "--out", local, "--device", "cpu").code == 3
    assert results_in(out) == results_in(local)
    cells = {name: cell["status"] for name, cell in cells_in(out).items()}
    assert sorted(cells.values()) == ["done", "done", "done", "failed"]
    assert {name: cell["error"] for name, cell in cells_in(out).items()} == {
        name: cell["error"] for name, cell in cells_in(local).items()
    }
    assert not (out / NOTES).exists()
    assert run_cli("bench", suite, "--out", out, "--engine", "ray", "--only", "*brightness*").code == 0


def test_a_task_that_kills_every_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its cells are recorded as failed when their model cannot be trained; other tasks are done."""
    suite, out = write_suite(tmp_path, HEAD, BRIGHTNESS, DAE), tmp_path / "out"
    out.mkdir()
    doomed, good = sorted(
        tasks(plan(load_suite(suite), None, out).specs, out), key=lambda task: task.cells[0].method, reverse=True
    )
    heard: list[tuple[str, str]] = []
    monkeypatch.setattr(ray_engine, "_work", _deadly)
    monkeypatch.setattr(ray_engine, "TRIES", 2)
    ray_engine.run_ray([doomed, good], 2, "cpu", lambda event: heard.append((event.kind, event.cell)))
    assert ("failed", doomed.cells[0].name) in heard
    assert ("done", good.cells[0].name) in heard
    cells = cells_in(out)
    assert {cell["method"]: cell["status"] for cell in cells.values()} == {"dae": "failed", "brightness": "done"}
    assert "its Ray worker died 2 times" in cells[doomed.cells[0].file]["error"]
    assert "died" not in "".join(capfd.readouterr())  # what is printed is up to whoever hears the events


_real = ray_engine._work


def _deadly(task: Task, *rest: Any) -> str:
    spec: Spec = task.cells[0]
    if spec.method == "dae":
        os.kill(os.getpid(), signal.SIGKILL)
    return _real(task, *rest)
