"""A full disk, a kill and Ctrl-C, all for real in another process: one line, nothing half-written, and the work goes on."""

import fcntl
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from forked import Forked
from helpers import BRIGHTNESS, Cli, assert_nothing_half_written, labelled, read_records, refused, run_process, save_many, start

from reshift.system.workers import VARIABLE

TINY_DMD = ("--method", "dmd", "--profile", "quick", "--set", "data.size=32", "--set", "model.widths=[8,8]",
            "--set", "model.unet_widths=[8,8]", "--set", "model.classifier_widths=[8]", "--set", "model.mask_side=2",
            "--set", "model.stage1_epochs=1", "--set", "model.stage2_epochs=1")  # fmt: skip
SLOWLY = """
import itertools, time, reshift.inference.images as module
write, count = module.write_case, itertools.count()
module.write_case = lambda *args: (time.sleep(0.02 if next(count) < 12 else 60), write(*args))[1]
"""


def wait_for(records: Path, lines: int, process: "subprocess.Popen[str] | Forked") -> None:
    """Return once that many cases are on record and the process is still at work."""
    deadline = time.monotonic() + 60
    while not records.exists() or records.read_bytes().count(b"\n") < lines:
        assert process.poll() is None, "ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize("largest", [200, 800])  # at the first file; at the last ones of the bundle
def test_a_full_disk_while_training(run_cli: Cli, folder_of_images: Path, tmp_path: Path, largest: int) -> None:
    train = ("train", "--data", folder_of_images, "--out", tmp_path / "run", *BRIGHTNESS)
    done = run_process(*train, largest_file=largest)
    last = done.err.splitlines()[-1]
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert f"reshift: {tmp_path / 'run'}" in last
    assert "could not be written (File too large); make room" in last
    assert_nothing_half_written(tmp_path / "run")
    assert not (tmp_path / "run" / "bundle" / "config.json").exists()
    assert run_cli(*train, "--resume").code == 0
    assert run_cli("info", tmp_path / "run" / "bundle").code == 0


def test_a_full_disk_at_a_checkpoint(folder_of_images: Path, tmp_path: Path) -> None:
    train = ("train", "--data", folder_of_images, "--out", tmp_path / "run", *TINY_DMD)
    done = run_process(*train, largest_file=5000)
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert f"{tmp_path / 'run' / 'checkpoint.safetensors'}: could not be written" in done.err.splitlines()[-1]
    assert_nothing_half_written(tmp_path / "run")


@pytest.mark.parametrize(("largest", "file"), [(1000, "000.png.npy"), (1600, "scores.jsonl")])
def test_a_full_disk_while_scoring(run_cli: Cli, tiny_bundle: Path, tmp_path: Path, largest: int, file: str) -> None:
    score = ("score", tiny_bundle, save_many(tmp_path / "in", 20, 16, 16), "--overlays", "none", "--out")
    done = run_process(*score, tmp_path / "out", largest_file=largest)
    refused(done, file, "could not be written (File too large); make room")
    assert_nothing_half_written(tmp_path / "out")
    assert run_cli(*score, tmp_path / "out").code == 0
    assert run_cli(*score, tmp_path / "at-once").code == 0
    assert read_records(tmp_path / "out") == read_records(tmp_path / "at-once")


def test_a_full_disk_keeps_the_old_file(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "copy"))
    before = (bundle / "calibration.json").read_bytes()
    done = run_process("calibrate", bundle, "--data", save_many(tmp_path / "in", 10), largest_file=100)
    assert (done.code, "could not be written" in done.err) == (2, True)
    assert (bundle / "calibration.json").read_bytes() == before
    assert_nothing_half_written(bundle)


def test_a_full_disk_while_evaluating(tiny_bundle: Path, tmp_path: Path) -> None:
    done = run_process("evaluate", tiny_bundle, "--data", labelled(tmp_path), "--out", tmp_path / "e", largest_file=4000)
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert done.err.splitlines()[-1].startswith(f"reshift: {tmp_path / 'e'}")
    assert "could not be written" in done.err.splitlines()[-1]
    assert_nothing_half_written(tmp_path / "e")
    assert not (tmp_path / "e" / "report.html").exists()


def test_a_killed_run_is_taken_up(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    images, out = save_many(tmp_path / "in", 40), tmp_path / "out"
    (images / "002.png").write_bytes(b"damaged")
    process = start("score", tiny_bundle, images, "--out", out, prelude=SLOWLY)
    wait_for(out / "scores.jsonl", 6, process)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert 6 <= (out / "scores.jsonl").read_bytes().count(b"\n") < 40
    assert run_cli("score", tiny_bundle, images, "--out", out).code == 3
    assert run_cli("score", tiny_bundle, images, "--out", tmp_path / "at-once").code == 3
    assert read_records(out) == read_records(tmp_path / "at-once")
    for path in (tmp_path / "at-once" / "maps").rglob("*.npy"):
        assert path.read_bytes() == (out / path.relative_to(tmp_path / "at-once")).read_bytes()


def test_stopping_with_helpers_loses_nothing(
    run_cli: Cli, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    images, out = save_many(tmp_path / "in", 600, 64, 64), tmp_path / "out"
    process = start("score", tiny_bundle, images, "--out", out)
    wait_for(out / "scores.jsonl", 5, process)
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert err.splitlines()[-1].startswith("reshift: stopped; finished work is kept")
    assert "Traceback" not in err
    assert 5 <= len(read_records(out)) <= len(list((out / "maps").rglob("*.npy"))) < 600
    assert_nothing_half_written(out)
    assert run_cli("score", tiny_bundle, images, "--out", out).code == 0
    assert len(read_records(out)) == 600


LONG = ("--method", "ae", "--profile", "quick", "--set", "data.size=32", "--set", "model.epochs=100000")


def test_a_closed_terminal_saves_a_checkpoint(folder_of_images: Path, tmp_path: Path) -> None:
    """The terminal is a real one: the system sends SIGHUP when it is closed, and every later write to it fails."""
    own, theirs = pty.openpty()
    program = "from reshift.cli.app import main; main()"
    args = ("train", "--data", folder_of_images, "--out", tmp_path, *LONG)
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, args)], stdin=theirs, stdout=theirs, stderr=theirs, text=True,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 (no other way to a terminal of its own)
    )  # fmt: skip
    os.close(theirs)
    try:
        wait_for(tmp_path / "log.jsonl", 2, process)
        assert not (tmp_path / "checkpoint.safetensors").exists()
        os.close(own)
        process.wait(60)
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "checkpoint.safetensors").exists()
    assert_nothing_half_written(tmp_path)


def test_nohup_keeps_its_meaning(folder_of_images: Path, tmp_path: Path) -> None:
    process = start("train", "--data", folder_of_images, "--out", tmp_path, *LONG,
                    prelude="signal.signal(signal.SIGHUP, signal.SIG_IGN)")  # fmt: skip
    try:
        wait_for(tmp_path / "log.jsonl", 2, process)
        process.send_signal(signal.SIGHUP)
        lines = (tmp_path / "log.jsonl").read_bytes().count(b"\n")
        wait_for(tmp_path / "log.jsonl", lines + 3, process)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopping_is_one_line(tiny_bundle: Path, tmp_path: Path, number: signal.Signals) -> None:
    process = start("score", tiny_bundle, save_many(tmp_path / "in", 40), "--out", tmp_path / "out", prelude=SLOWLY)
    wait_for(tmp_path / "out" / "scores.jsonl", 1, process)
    process.send_signal(number)
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert err.splitlines()[-1].startswith("reshift: stopped; finished work is kept")
    assert "Traceback" not in err
    assert_nothing_half_written(tmp_path / "out")
