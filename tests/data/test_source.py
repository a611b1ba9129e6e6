"""Training images read by worker processes: the same numbers, in order, and a bad image is one line."""

from pathlib import Path

import pytest
import torch
from helpers import Cli, refused, save_many

from reshift.config import DataConfig
from reshift.data.manifest import load_cases
from reshift.data.source import Source
from reshift.errors import UserError
from reshift.system.workers import VARIABLE

CPU = torch.device("cpu")


@pytest.mark.parametrize("gigabytes", [1.0, 1e-9])  # in memory; streamed
def test_processes_read_the_same_as_threads(folder_of_images: Path, monkeypatch: pytest.MonkeyPatch, gigabytes: float) -> None:
    cases, config = load_cases(folder_of_images), DataConfig(size=32, memory_gb=gigabytes)
    batches = []
    for processes in ("0", "3"):
        monkeypatch.setenv(VARIABLE, processes)
        source = Source(cases, config, CPU)
        assert (source.images is None) == (gigabytes < 0.5)
        assert source.pool.processes == int(processes)
        streamed = source.stream([i, (i + 5) % 12] for i in range(12))
        batches.append([source.batch([7, 2, 2, 11]), *streamed, *source.batches()])
    assert len(batches[0]) == len(batches[1])
    assert all(torch.equal(a, b) for a, b in zip(*batches, strict=True))


def test_training_names_a_bad_image(run_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    images = save_many(tmp_path / "in", 12)
    (images / "004.png").write_bytes(b"not an image")
    settings = ("--method", "ae", "--profile", "quick", "--set", "model.epochs=1")
    refused(run_cli("train", "--data", images, "--out", tmp_path / "run", *settings), "004.png")


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_bad_image_shows_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: str) -> None:
    monkeypatch.setenv(VARIABLE, processes)
    images = save_many(tmp_path / "in", 6)
    cases, config = load_cases(images), DataConfig(size=32, memory_gb=1e-9)
    (images / "004.png").write_bytes(b"not an image")
    source = Source(cases, config, CPU)
    with pytest.raises(UserError, match=r"004\.png"):
        source.check()
    with pytest.raises(UserError, match=r"004\.png"):
        list(source.stream([[0], [4], [5]]))


def test_processes_fill_and_use_the_cache(folder_of_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    monkeypatch.setenv("RESHIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RESHIFT_PREPARED_GB", "1")
    cases, config = load_cases(folder_of_images), DataConfig(size=32, memory_gb=1e-9)
    expected = torch.cat(list(Source(cases, DataConfig(size=32), CPU).batches()))
    assert not (tmp_path / "cache").exists()
    source = Source(cases, config, CPU)
    source.check()
    kept = sorted(path for path in (tmp_path / "cache").rglob("*") if path.is_file())
    assert len(kept) == len(cases)
    for case in cases:
        case.image.write_bytes(case.image.read_bytes())  # the same content: still found
    assert torch.equal(torch.cat(list(source.stream([i] for i in range(12)))), expected)
    assert kept == sorted(path for path in (tmp_path / "cache").rglob("*") if path.is_file())
