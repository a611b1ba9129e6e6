"""Threads that read large images take turns, so that memory does not grow with the number of threads."""

import time
from pathlib import Path
from threading import Lock

import pytest
from helpers import noise, save

from reshift.data import image
from reshift.data.raster import read_raster, read_raster_mask
from reshift.inference.stream import Sample, read_sample
from reshift.system.workers import WorkerPool

SIDE = 64
FILES = 12


def most_at_once(folder: Path, allowance: int, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.02) -> int:
    """Read images and masks by eight threads; return how many had an image in memory at the same time."""
    monkeypatch.setattr(image, "MAX_READING", allowance)
    paths = [save(noise(i, SIDE, SIDE), folder / f"{i}.png") for i in range(FILES)]
    lock, now, most = Lock(), 0, 0

    def read(path: Path) -> Sample[Path]:
        nonlocal now, most
        read_raster(path)
        with lock:
            now, most = now + 1, max(most, now + 1)
        time.sleep(seconds)
        read_raster_mask(path)
        with lock:
            now -= 1
        return Sample(path)

    with WorkerPool(threads=8) as pool:
        samples = list(pool.map(lambda path: read_sample(path, read), paths, FILES))
    assert [sample.error for sample in samples] == [None] * FILES
    return most


def test_small_images_are_read_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert most_at_once(tmp_path, 100 * SIDE * SIDE, monkeypatch) > 4


@pytest.mark.parametrize(("allowance", "most"), [(2 * SIDE * SIDE, 2), (SIDE * SIDE, 1), (1, 1)])
def test_large_images_wait_for_each_other(allowance: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert most_at_once(tmp_path, allowance, monkeypatch) <= most


def test_a_slow_image_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "MAX_WAIT", 0.05)
    assert most_at_once(tmp_path, 1, monkeypatch, seconds=0.5) > 1


def test_a_file_that_fails_gives_its_allowance_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "MAX_READING", 1)
    path = save(noise(0, SIDE, SIDE), tmp_path / "a.png")
    path.write_bytes(path.read_bytes()[:-200])
    for _ in range(3):
        begun = time.monotonic()
        assert read_sample(path, lambda path: Sample(path, read_raster(path))).error is not None
        assert time.monotonic() - begun < 10
