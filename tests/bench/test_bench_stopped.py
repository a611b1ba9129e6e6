"""Ctrl-C, a full disk and a second run in the same folder: one line, nothing lost, and a re-run goes on."""

import os
import signal
from pathlib import Path

import pytest
from bench_suites import BRIGHTNESS, DAE, HEAD, LONG, cells_in, until, write_suite
from helpers import Cli, refused, run_process, start

from reshift.bench.cells import read_cells
from reshift.bench.lock import locked


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_writes_a_checkpoint_and_a_second_run_continues(tmp_path: Path, number: signal.Signals, run_cli: Cli) -> None:
    never = HEAD.replace("checkpoint_seconds = 0.0", "checkpoint_seconds = 1000.0, log_every = 1")
    suite, out = write_suite(tmp_path, never, LONG), tmp_path / "out"
    process = start("bench", suite, "--out", out, "--device", "cpu")
    until(lambda: any(b"step" in path.read_bytes() for path in (out / "models").glob("*/log.jsonl")), process)
    process.send_signal(number)
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 130, err
    assert err.splitlines()[-1].startswith("reshift: stopped; finished work is kept")
    assert "Traceback" not in err
    assert not (out / "lock.json").exists()
    [log] = (out / "models").glob("*/log.jsonl")
    before = log.read_text()
    assert (log.parent / "checkpoint.safetensors").exists()
    assert run_cli("bench", suite, "--out", out, "--device", "cpu").code == 0
    assert log.read_text().startswith(before)  # with its seconds: those steps were not made again
    assert [cell["status"] for cell in cells_in(out).values()] == ["done"]


@pytest.mark.parametrize("largest", [400, 3500, 9000])  # the phantoms; the model; what is left of an evaluation
def test_a_full_disk_is_one_line_and_costs_nothing(tmp_path: Path, largest: int, run_cli: Cli) -> None:
    suite, out = write_suite(tmp_path, HEAD, BRIGHTNESS, DAE), tmp_path / "out"
    found = run_process("bench", suite, "--out", out, "--device", "cpu", largest_file=largest)
    assert (found.code, "Traceback" in found.err) == (2, False), found
    assert "could not be written" in found.err.splitlines()[-1]
    assert str(out) in found.err.splitlines()[-1]
    assert {cell["status"] for cell in cells_in(out).values()} <= {"done"}
    assert read_cells(out)[1] == []
    if largest == 3500:
        assert run_cli("bench", suite, "--out", out, "--device", "cpu").code == 0
        assert [cell["status"] for cell in cells_in(out).values()] == ["done", "done"]


def test_what_a_killed_run_left_is_cleared_away(tmp_path: Path, run_cli: Cli) -> None:
    gone, here, out = 2**22 + 1, os.getpid(), tmp_path / "out"  # no process has a number that large
    for left in (f"data/.brain-0-{gone}", f"data/.brain-0-{here}", "cells", "evaluations/x"):
        (out / left).mkdir(parents=True)
    for left in ("cells/.1-2.tmp", "evaluations/x/.1-2.tmp", f"data/.brain-0-{gone}/image.png"):
        (out / left).touch()
    assert run_cli("bench", write_suite(tmp_path, HEAD, BRIGHTNESS), "--out", out, "--device", "cpu").code == 0
    assert [path.name for path in out.rglob(".*")] == [f".brain-0-{here}"]  # of somebody who is still at it


def test_two_runs_at_once(tmp_path: Path, run_cli: Cli) -> None:
    suite = write_suite(tmp_path, HEAD, BRIGHTNESS)
    (tmp_path / "out").mkdir()
    with locked(tmp_path / "out"):
        refused(run_cli("bench", suite, "--out", tmp_path / "out"), tmp_path / "out", "another run (process", "at work there")
