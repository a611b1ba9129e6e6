"""Worker threads and processes: the same results in order, one line when something is wrong, no process left behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reshift.errors import UserError
from reshift.system import workers
from reshift.system.workers import VARIABLE, WorkerPool, in_order, worker_processes

SPAWN = multiprocessing.get_context("spawn").Process


def test_results_come_in_order() -> None:
    with WorkerPool() as threads, WorkerPool(2) as processes:
        for pool in (threads, processes):
            assert list(pool.map(abs, range(-20, 0), 5)) == list(range(20, 0, -1))


def test_a_call_can_name_its_process() -> None:
    with WorkerPool(2) as pool:
        first, second, again = (pool.submit(worker, os.getpid).result() for worker in (0, 1, 0))
    assert first == again != second
    assert os.getpid() not in (first, second)


def test_no_more_calls_run_ahead_than_wanted() -> None:
    started = list[int]()

    def note(item: int) -> int:
        started.append(item)
        return item

    with WorkerPool(threads=1) as pool:
        results = in_order((pool.submit(0, note, i) for i in range(10)), lambda: 3)
        assert next(results) == 0
        assert max(started) <= 3


def test_a_process_that_dies_is_one_line() -> None:
    with WorkerPool(1) as pool:
        with pytest.raises(UserError, match=f"has ended, perhaps because memory ran out; run .* {VARIABLE}=0"):
            pool.submit(0, os._exit, 1).result()
        with pytest.raises(UserError, match="has ended"):
            pool.submit(0, os.getpid).result()


def test_where_no_process_can_be_started_threads_do_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(SPAWN, "start", full)
    with pytest.warns(UserWarning, match="no worker process could be started"), WorkerPool(2) as pool:
        assert (pool.processes, pool.submit(0, os.getpid).result()) == (0, os.getpid())


@pytest.mark.parametrize(
    ("images", "cores", "gpu", "expected"),
    [
        (10_000, 16, True, 16),
        (10_000, 64, True, 16),
        (10_000, 8, True, 8),
        (10_000, 4, True, 0),
        (100, 16, True, 0),
        (10_000, 16, False, 0),
    ],
)
def test_how_many(images: int, cores: int, gpu: bool, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(workers, "cores", lambda: cores)
    assert worker_processes(images, gpu=gpu) == expected


def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "cores", lambda: 16)
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert worker_processes(10_000, gpu=True) == 8
    monkeypatch.setenv(VARIABLE, "3")
    assert worker_processes(1, gpu=False) == 3
    monkeypatch.setenv(VARIABLE, "many")
    with pytest.raises(UserError, match="is not a number; 0 means threads"):
        worker_processes(1, gpu=False)


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:4]
    except OSError:
        return False


def _wait(pids: list[int]) -> None:
    deadline = time.monotonic() + 30
    while any(map(_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_alive, pids))


def test_processes_end_with_their_pool() -> None:
    pool = WorkerPool(2)
    pids = [pool.submit(worker, os.getpid).result() for worker in range(2)]
    del pool
    _wait(pids)


SCRIPT = """
import os, sys, time
from reshift.system.workers import WorkerPool
pool = WorkerPool(2)  # no "if __name__": a worker does not run this script again
print(*(pool.submit(worker, os.getpid).result() for worker in range(2)), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_processes_end_with_the_process_that_started_them(tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (tmp_path / "numpy.py").write_text("raise SystemExit('a file of the current folder was imported')")
    parent = subprocess.Popen([sys.executable, "-P", str(script)], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.send_signal(number)
    parent.wait()
    parent.stdout.close()
    _wait(pids)


def test_a_worker_starts_without_torch() -> None:
    for module in ("reshift.data.prepared_cache", "reshift.inference.images"):
        code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
