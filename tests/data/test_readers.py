"""Images read by other processes for training: the same numbers, in order, and a bad one is one line."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import Cli, refused, save_many

from reshift.config import DataConfig
from reshift.data import source
from reshift.data.manifest import load_cases
from reshift.data.read_helper import Readers
from reshift.data.source import Source, check_images
from reshift.errors import UserError
from reshift.system.workers import VARIABLE

CPU = torch.device("cpu")


@pytest.mark.parametrize("gigabytes", [1.0, 1e-9])  # in memory; streamed
def test_a_source_is_the_same_by_other_processes(
    folder_of_images: Path, monkeypatch: pytest.MonkeyPatch, gigabytes: float
) -> None:
    cases, config = load_cases(folder_of_images), DataConfig(size=32, memory_gb=gigabytes)
    batches = []
    for helpers in ("0", "3"):
        monkeypatch.setenv(VARIABLE, helpers)
        source = Source(cases, config, CPU)
        assert (source.images is None) == (gigabytes < 0.5)
        assert (source.readers is not None) == (helpers == "3")
        streamed = source.stream([i, (i + 5) % 12] for i in range(12))
        batches.append([source.batch([7, 2, 2, 11]), *streamed, *source.batches()])
    assert len(batches[0]) == len(batches[1])
    assert all(torch.equal(a, b) for a, b in zip(*batches, strict=True))


def test_fewer_images_than_processes(folder_of_images: Path) -> None:
    config = DataConfig(size=32)
    with Readers(config, 3) as readers:
        cases = load_cases(folder_of_images)
        alone, all_of_them = readers.load(cases[:1]), readers.load(cases)
    assert alone.shape == (1, 1, 32, 32)
    np.testing.assert_array_equal(alone[0], all_of_them[0])


def test_a_bad_image_is_named(tmp_path: Path) -> None:
    images = save_many(tmp_path / "in", 6)
    cases = load_cases(images)
    (images / "004.png").write_bytes(b"no picture")
    with Readers(DataConfig(size=32), 2) as readers, pytest.raises(UserError, match=r"004\.png"):
        readers.load(cases)


def test_training_says_so_in_one_line(run_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    images = save_many(tmp_path / "in", 12)
    (images / "004.png").write_bytes(b"no picture")
    settings = ("--method", "ae", "--profile", "quick", "--set", "model.epochs=1")
    refused(run_cli("train", "--data", images, "--out", tmp_path / "run", *settings), "004.png")


def test_the_processes_end_with_their_source(folder_of_images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    for gigabytes in (1.0, 1e-9):
        source = Source(load_cases(folder_of_images), DataConfig(size=32, memory_gb=gigabytes), CPU)
        assert source.readers is not None
        processes = [helper.process for helper in source.readers.helpers]
        del source
        assert [process.wait(20) for process in processes] == [0, 0]


def test_reading_alone_pays_for_processes_later_than_scoring(folder_of_images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[int, bool]]()

    def none(pictures: int, *, gpu: bool) -> int:
        asked.append((pictures, gpu))
        return 0

    monkeypatch.setattr(source, "helpers", none)
    Source(load_cases(folder_of_images), DataConfig(size=32), CPU)
    assert asked == [(12 // source.LIGHTER, False)]


def test_other_processes_fill_and_use_the_cache(folder_of_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    monkeypatch.setenv("RESHIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RESHIFT_PREPARED_GB", "1")
    cases, config = load_cases(folder_of_images), DataConfig(size=32, memory_gb=1e-9)
    expected = torch.cat(list(Source(cases, DataConfig(size=32), CPU).batches()))
    assert not (tmp_path / "cache").exists()
    source = Source(cases, config, CPU)
    check_images(cases, config, source.readers)
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert len(kept) == len(cases)
    for case in cases:
        case.image.write_bytes(case.image.read_bytes())  # the same content: still found
    assert torch.equal(torch.cat(list(source.stream([i] for i in range(12)))), expected)
    np.testing.assert_array_equal(sorted(kept), sorted(path for path in (tmp_path / "cache").rglob("*") if path.is_file()))


def test_a_bad_image_shows_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    images = save_many(tmp_path / "in", 6)
    cases, config = load_cases(images), DataConfig(size=32, memory_gb=1e-9)
    (images / "004.png").write_bytes(b"no picture")
    source = Source(cases, config, CPU)
    with pytest.raises(UserError, match=r"004\.png"):
        check_images(cases, config, source.readers)
    with pytest.raises(UserError, match=r"004\.png"):
        list(source.stream([[0], [4], [5]]))


def test_helpers_begin_without_torch() -> None:
    for module in ("reshift.data.read_helper", "reshift.inference.score_helper"):
        code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
