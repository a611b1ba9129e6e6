"""Fixtures shared by the tests."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import Cli, Outcome, save_many

# Before torch is imported, and inherited by every process the tests start: the networks here are so small that a second
# thread only gets in the way, and two test workers with two threads each fight over two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["RESHIFT_CACHE"] = "off"  # a test that wants trained stages to be shared says where


@pytest.fixture
def run_cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """``run_cli("train", "--data", path, …)``: the real entry point, in this process for speed."""
    from reshift.cli.app import main

    def run(*args: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["reshift", *(str(a) for a in args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        shown = capsys.readouterr()
        return Outcome(int(stop.value.code or 0), shown.out, shown.err)

    before = signal.getsignal(signal.SIGTERM)  # main takes it over
    yield run
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def folder_of_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve pictures of 32×24 pixels; read only."""
    return save_many(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory, folder_of_images: Path) -> Path:
    """A bundle of the method that needs no training; copy it before damaging it."""
    from reshift.training.run import resolve, train_run

    config = resolve("brightness", "paper", [{"data": {"size": 32}, "calibrate": {"features": "off"}}])
    return train_run(config, folder_of_images, tmp_path_factory.mktemp("run"))


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run benchmarks without worker processes."""
    from bench_suites import run_in_process

    monkeypatch.setattr("reshift.bench.local_engine.run_local", run_in_process)
