"""A benchmark that is killed at any point, for real: nothing damaged, nothing lost, and a re-run ends with the same bits."""

import os
import signal
import time
from pathlib import Path

import pytest
from bench_suites import BRIGHTNESS, HEAD, LONG, LONG_SWEEP, cells_in, children, results_in, until, write_suite
from helpers import Cli, assert_nothing_half_written, start

from reshift.bench.cells import read_cells


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same suite, left alone, in two processes."""
    from reshift.bench.run import Options, bench

    folder = tmp_path_factory.mktemp("whole")
    options = Options(write_suite(folder, HEAD, BRIGHTNESS, LONG, LONG_SWEEP), folder / "out", workers=2, device="cpu")
    assert bench(options, print, print) == 0
    return folder / "out"


def test_killed_at_several_points(whole: Path, tmp_path: Path, run_cli: Cli) -> None:
    suite, out = write_suite(tmp_path, HEAD, BRIGHTNESS, LONG, LONG_SWEEP), tmp_path / "out"
    points = (
        lambda: any((out / "models").glob("*/checkpoint.safetensors")),
        lambda: len(list((out / "models").glob("*/bundle/config.json"))) == 2,
        lambda: any((out / "cells").glob("brain-dae-0-*.json")),
    )
    for point in points:
        process = start("bench", suite, "--out", out, "--device", "cpu")
        until(point, process)
        workers = children(process.pid)
        process.kill()
        process.communicate()
        deadline = time.monotonic() + 30
        while any(map(alive, workers)):  # they notice, and end by themselves
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert read_cells(out)[1] == []
        assert {cell["status"] for cell in cells_in(out).values()} <= {"done"}
    assert run_cli("bench", suite, "--out", out, "--device", "cpu").code == 0
    assert results_in(out) == results_in(whole)
    assert_nothing_half_written(out)


def test_a_worker_that_is_killed_costs_its_cells_and_no_others(whole: Path, tmp_path: Path, run_cli: Cli) -> None:
    suite, out = write_suite(tmp_path, HEAD, LONG, LONG_SWEEP, BRIGHTNESS), tmp_path / "out"
    process = start("bench", suite, "--out", out, "--device", "cpu")
    until(lambda: any((out / "models").glob("*/checkpoint.safetensors")), process)
    [worker] = children(process.pid)
    os.kill(worker, signal.SIGKILL)
    printed, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    by_row = {cell["row"]: cell for cell in cells_in(out).values()}
    assert by_row["brightness"]["status"] == "done"
    assert by_row["dae"]["status"] == by_row["DAE map=squared"]["status"] == "failed"  # it was at their common model
    assert by_row["dae"]["error"].startswith("its process was ended by SIGKILL, perhaps for want of memory")
    assert "1 of 4 cells finished" in printed
    assert run_cli("bench", suite, "--out", out, "--device", "cpu").code == 0
    assert results_in(out) == results_in(whole)
