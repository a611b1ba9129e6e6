"""A benchmark whose processes are really killed: no file is damaged, nothing is lost, and a re-run gives the same bits."""

import os
import signal
from pathlib import Path

import pytest
from bench_suites import BRIGHTNESS, HEAD, LONG, LONG_SWEEP, cells_in, results_in, run_in_process, write_suite
from helpers import Cli, assert_nothing_half_written, start
from processes import alive, meanwhile, wait_until, worker_processes

from reshift.bench.cells import read_cells

ENGINE = "reshift.bench.local_engine.run_local"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same suite, run without interruption."""
    from reshift.bench.run import Options, bench

    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ENGINE, run_in_process)
        assert bench(Options(write_suite(folder, HEAD, BRIGHTNESS, LONG, LONG_SWEEP), folder / "out"), print, print) == 0
    return folder / "out"


def checkpointed(out: Path) -> bool:
    return any((out / "models").glob("*/checkpoint.safetensors"))


def test_killed_at_several_points(whole: Path, tmp_path: Path, run_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    suite, out = write_suite(tmp_path, HEAD, BRIGHTNESS, LONG, LONG_SWEEP), tmp_path / "out"
    for point in (lambda: checkpointed(out), lambda: any((out / "cells").glob("brain-dae-0-*.json"))):
        process = start("bench", suite, "--out", out, "--device", "cpu")
        wait_until(point, process)
        workers = worker_processes(process.pid)
        process.kill()
        process.communicate()
        wait_until(lambda workers=workers: not any(map(alive, workers)))  # type: ignore[misc]  # they end with their parent
        assert read_cells(out)[1] == []
        assert {cell["status"] for cell in cells_in(out).values()} <= {"done"}
    monkeypatch.setattr(ENGINE, run_in_process)
    assert run_cli("bench", suite, "--out", out).code == 0
    assert results_in(out) == results_in(whole)
    assert_nothing_half_written(out)


def test_a_killed_worker_fails_its_cells_and_no_others(
    whole: Path, tmp_path: Path, run_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite, out = write_suite(tmp_path, HEAD, LONG, LONG_SWEEP, BRIGHTNESS), tmp_path / "out"

    def kill() -> None:
        wait_until(lambda: checkpointed(out))
        [worker] = worker_processes(os.getpid())
        os.kill(worker, signal.SIGKILL)

    with meanwhile(kill):
        found = run_cli("bench", suite, "--out", out, "--device", "cpu")
    assert found.code == 3, found.err
    assert "1 of 4 cells finished" in found.out
    by_row = {cell["row"]: cell for cell in cells_in(out).values()}
    assert by_row["brightness"]["status"] == "done"
    assert by_row["dae"]["status"] == by_row["DAE map=squared"]["status"] == "failed"  # it was training their common model
    assert by_row["dae"]["error"].startswith("its worker was ended by SIGKILL (out of memory?)")
    monkeypatch.setattr(ENGINE, run_in_process)
    assert run_cli("bench", suite, "--out", out).code == 0
    assert results_in(out) == results_in(whole)
