"""One slow file holds up no other: results come as they are ready, and what takes too long is a failed case."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from dicom_files import grey, series, values, write
from helpers import noise, save, save_many
from pydicom import dcmread
from pydicom.uid import JPEGLSLossless

from reshift.data.dicom import decode
from reshift.data.raster import read_raster
from reshift.errors import UserError
from reshift.inference.inputs import find_cases
from reshift.inference.model import Model, load_model
from reshift.inference.score import Run, score_cases
from reshift.system import workers
from reshift.system.workers import WorkerPool

pytest.importorskip("jpeg_ls", reason="pyjpegls is not installed")
LIMIT = 1.5


@pytest.fixture
def model(tiny_bundle: Path) -> Model:
    return load_model(tiny_bundle, "cpu")


@pytest.fixture(autouse=True)
def stopped_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next frame is given to a decoder that does not answer: as slow as a file can be, without the work."""
    monkeypatch.setattr(workers, "PATIENCE", 0.05)
    monkeypatch.setattr(decode, "SECONDS", LIMIT)
    monkeypatch.setattr(decode, "_idle", [decode.Worker()])
    os.kill(decode._idle[0].process.pid, signal.SIGSTOP)


def compressed(path: Path) -> Path:
    ds = grey(values(3), stored=12)
    ds.compress(JPEGLSLossless, np.asarray(values(3), np.uint16), generate_instance_uid=False)
    return write(ds, path)


@pytest.mark.parametrize("dicom", [False, True])
def test_images_behind_a_slow_one_are_scored_first(model: Model, tmp_path: Path, dicom: bool) -> None:
    compressed(tmp_path / "in" / "0.dcm")
    save_many(tmp_path / "in", 5)
    run = Run(model, tmp_path / "out", dicom, [])
    found = [(case.path.name, records) for case, records in score_cases(run, find_cases([tmp_path / "in"]))]
    assert [name for name, _ in found] == ["000.png", "001.png", "002.png", "003.png", "004.png", "0.dcm"]
    assert [records[0]["error"] for _, records in found[:-1]] == [None] * 5
    assert "takes too long to decode (JPEG-LS Lossless Image Compression); stopped, export" in found[-1][1][0]["error"]


def test_volumes_behind_a_slow_one_are_scored_first(model: Model, tmp_path: Path) -> None:
    series(tmp_path / "in" / "a", count=3)
    for path in (tmp_path / "in" / "a").iterdir():
        ds = dcmread(path)
        ds.compress(JPEGLSLossless, generate_instance_uid=False)
        ds.save_as(path)
    series(tmp_path / "in" / "b", count=3, SeriesInstanceUID="1.2.826.0.1.3680043.8.498.77")
    run = Run(model, tmp_path / "out", False, [])
    found = {case.path.name: records for case, records in score_cases(run, find_cases([tmp_path / "in"]))}
    assert list(found) == ["b", "a"]
    assert len(found["b"]) == 4
    assert "takes too long to decode" in found["a"][0]["error"]


def test_the_time_of_all_frames_together_is_limited() -> None:
    until = decode.time_limit(10)
    assert until - decode.time_limit(0) == pytest.approx(10 * decode.SECONDS_PER_FRAME, abs=0.1)
    with pytest.raises(TimeoutError):
        decode.decompress(b"any", {}, until - LIMIT - 10 * decode.SECONDS_PER_FRAME)


def test_a_worker_that_is_held_up_gets_no_more_work() -> None:
    with WorkerPool(2) as pool:
        held = pool.next_worker()
        future = pool.submit(held, time.sleep, 0.5)
        assert {pool.next_worker() for _ in range(5)} == {1 - held}
        future.result()
        assert {pool.next_worker() for _ in range(4)} == {0, 1}


def test_a_jpeg_of_too_many_scans_is_refused_unread(tmp_path: Path) -> None:
    path = save(noise(), tmp_path / "a.jpg", progressive=True)
    assert read_raster(path).bits == 8
    data = path.read_bytes()
    scan = data[data.rindex(b"\xff\xda") : -2]
    path.write_bytes(data[:-2] + scan * 200 + data[-2:])
    with pytest.raises(UserError, match="scans, over the limit of 100"):
        read_raster(path)
