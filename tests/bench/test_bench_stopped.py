"""Ctrl-C, a full disk, a second run in the same folder: one line, nothing is lost, and a re-run continues."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from bench_suites import BRIGHTNESS, DAE, HEAD, LONG, cells_in, run_in_process, write_suite
from helpers import Cli, refused, run_process, start
from processes import meanwhile, wait_until

from reshift.bench.cells import read_cells
from reshift.system.lock import NAME, output_folder

NO_CHECKPOINTS = HEAD.replace("checkpoint_seconds = 0.0", "checkpoint_seconds = 1000.0, log_every = 1")


def test_a_stopped_run_writes_a_checkpoint_and_the_next_one_continues(
    tmp_path: Path, run_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite, out = write_suite(tmp_path, NO_CHECKPOINTS, LONG), tmp_path / "out"
    process = start("bench", suite, "--out", out, "--device", "cpu")
    wait_until(lambda: logged(out), process)
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=60)[1]
    first = assert_stopped(out, process.wait(), err)

    def stop() -> None:
        wait_until(lambda: len(logged(out)) > len(first))
        os.kill(os.getpid(), signal.SIGTERM)

    with meanwhile(stop):
        found = run_cli("bench", suite, "--out", out, "--device", "cpu")
    second = assert_stopped(out, found.code, found.err)
    monkeypatch.setattr("reshift.bench.local_engine.run_local", run_in_process)
    assert run_cli("bench", suite, "--out", out).code == 0
    assert second.startswith(first)  # with its seconds: those steps were not repeated
    assert logged(out).startswith(second)
    assert [cell["status"] for cell in cells_in(out).values()] == ["done"]


def logged(out: Path) -> str:
    """The training log, once it has a step."""
    text = "".join(path.read_text() for path in (out / "models").glob("*/log.jsonl"))
    return text if "step" in text else ""


def assert_stopped(out: Path, code: int, err: str) -> str:
    """Check the end of a stopped run; return its training log."""
    assert code == 130, err
    assert err.splitlines()[-1].startswith("reshift: stopped; finished work is kept")
    assert "Traceback" not in err
    assert list((out / "models").glob("*/checkpoint.safetensors"))
    return logged(out)


@pytest.mark.usefixtures("in_process")  # the second run
@pytest.mark.parametrize("largest", [400, 3500])  # while writing the phantoms; while writing the model
def test_a_full_disk_is_one_line_and_nothing_is_lost(tmp_path: Path, largest: int, run_cli: Cli) -> None:
    suite, out = write_suite(tmp_path, HEAD, BRIGHTNESS, DAE), tmp_path / "out"
    found = run_process("bench", suite, "--out", out, "--device", "cpu", largest_file=largest)
    assert (found.code, "Traceback" in found.err) == (2, False), found
    assert "could not be written" in found.err.splitlines()[-1]
    assert str(out) in found.err.splitlines()[-1]
    assert {cell["status"] for cell in cells_in(out).values()} <= {"done"}
    assert read_cells(out)[1] == []
    if largest == 3500:
        assert run_cli("bench", suite, "--out", out).code == 0
        assert [cell["status"] for cell in cells_in(out).values()] == ["done", "done"]


@pytest.mark.usefixtures("in_process")
def test_unfinished_files_of_a_killed_run_are_removed(tmp_path: Path, run_cli: Cli) -> None:
    suite, out = write_suite(tmp_path, HEAD, BRIGHTNESS), tmp_path / "out"
    assert run_cli("bench", suite, "--out", out, "--dry-run").code == 0
    [drawn] = (path for path in (out / "data").iterdir() if path.is_dir())
    drawn.rename(drawn.with_name(f".{drawn.name}"))  # as if it had been killed while drawing
    for left in ("cells/.1-2.tmp", "evaluations/x/.1-2.tmp"):
        (out / left).parent.mkdir(parents=True)
        (out / left).touch()
    assert run_cli("bench", suite, "--out", out).code == 0
    assert {path.name for path in out.rglob(".*")} == {NAME}


def test_a_second_run_in_the_same_folder_is_refused(tmp_path: Path, run_cli: Cli) -> None:
    suite = write_suite(tmp_path, HEAD, BRIGHTNESS)
    with ThreadPoolExecutor(1) as other, ExitStack() as stack:  # the lock is of the thread that took it
        other.submit(stack.enter_context, output_folder(tmp_path / "out")).result()
        refused(run_cli("bench", suite, "--out", tmp_path / "out"), tmp_path / "out", "process", "is writing there")
        other.submit(stack.close).result()
