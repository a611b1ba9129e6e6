"""Images read and written by threads or worker processes while the model predicts others: the same files, nothing lost."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from helpers import Cli, assert_nothing_half_written, noise, read_records, refused, save_many
from numpy.typing import NDArray
from pydicom.data import get_testdata_file

from reshift.config import DataConfig
from reshift.data.read import Input
from reshift.errors import UserError
from reshift.inference import images as module
from reshift.inference.images import ImagePool, Task
from reshift.inference.inputs import ScoreCase
from reshift.inference.model import Model, load_model
from reshift.inference.overlay import overlay
from reshift.inference.score import Run, score, score_cases
from reshift.system.workers import VARIABLE


@pytest.fixture
def batched(tiny_bundle: Path) -> Model:
    """A model that takes four images at a time, as on a GPU."""
    model = load_model(tiny_bundle, "cpu")
    model.batch = 4
    return model


def task(out: Path) -> Task:
    return Task(DataConfig(size=32), out, None, dicom=False)


def cases(folder: Path) -> list[ScoreCase]:
    return [ScoreCase(Input(path), path.name, str(path)) for path in sorted(folder.iterdir())]


def results(out: Path) -> tuple[list[dict[str, object]], dict[str, bytes]]:
    records = [{name: value for name, value in record.items() if name != "seconds"} for record in read_records(out)]
    return records, {
        str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*.*")) if path.suffix != ".jsonl"
    }


def test_processes_write_the_same_files_as_threads(
    run_cli: Cli, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = save_many(tmp_path / "in", 12)
    (images / "003.png").write_bytes(b"not an image")
    for i, name in enumerate(("CT_small.dcm", "MR_small_jp2klossless.dcm")):  # a process of its own decompresses the second
        (images / f"{i}.dcm").write_bytes(Path(str(get_testdata_file(name))).read_bytes())
    for processes in ("0", "3"):
        monkeypatch.setenv(VARIABLE, processes)
        assert run_cli("score", tiny_bundle, images, "--out", tmp_path / processes).code == 3
    assert results(tmp_path / "3") == results(tmp_path / "0")
    errors = {Path(str(record["input"])).name: record["error"] for record in read_records(tmp_path / "3")}
    assert len(errors) == 14
    assert [name for name, error in errors.items() if error is not None] == ["003.png"]


def test_batches_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = save_many(tmp_path / "in", 7)
    (images / "002.png").write_bytes(b"")
    found = []
    for processes in ("0", "2"):
        monkeypatch.setenv(VARIABLE, processes)
        with ImagePool(task(tmp_path), 3, 7) as pool:
            found.append([sample for batch in pool.read(cases(images)) for sample in batch])
    for mine, theirs in zip(*found, strict=True):
        assert (mine.case, str(mine.error)) == (theirs.case, str(theirs.error))
        np.testing.assert_array_equal(mine.prepared.pixels, theirs.prepared.pixels)
    assert [sample.case._replace(content=None) for sample in found[0]] == cases(images)


def test_large_images_wait_in_smaller_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = save_many(tmp_path / "in", 9)
    monkeypatch.setattr(module, "MAX_BYTES", 3 * 24 * 32)
    with ImagePool(task(tmp_path), 2, 9) as pool:
        before = pool.max_pending
        assert sum(len(batch) for batch in pool.read(cases(images))) == 9
        assert (before > 3, pool.max_pending) == (True, 3)


def test_where_nothing_can_be_written(
    run_cli: Cli, tiny_bundle: Path, folder_of_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    out = tmp_path / "out"
    out.mkdir()
    (out / "maps").write_text("a file where a folder should be")
    assert "could not be written" in refused(run_cli("score", tiny_bundle, folder_of_images, "--out", out))


def test_a_process_that_dies_is_one_line_and_a_second_run_continues(
    run_cli: Cli, tiny_bundle: Path, folder_of_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    whole, calls = ImagePool.write, list[int]()

    def dying(self: ImagePool, samples: Any) -> Any:
        calls.append(len(samples))
        if len(calls) == 4:
            os.kill(self.pool.submit(0, os.getpid).result(), signal.SIGKILL)
        return whole(self, samples)

    monkeypatch.setattr(ImagePool, "write", dying)
    line = refused(run_cli("score", tiny_bundle, folder_of_images, "--out", tmp_path / "out"))
    assert f"run the command again to continue, with {VARIABLE}=0 to use threads" in line
    monkeypatch.setattr(ImagePool, "write", whole)
    assert run_cli("score", tiny_bundle, folder_of_images, "--out", tmp_path / "out").code == 0
    assert len(read_records(tmp_path / "out")) == 12
    assert_nothing_half_written(tmp_path / "out")


def test_batches_give_the_results_of_single_images(batched: Model, tiny_bundle: Path, tmp_path: Path) -> None:
    images = save_many(tmp_path / "in", 11)
    (images / "005.png").write_bytes(b"not an image")
    score(batched, [images], tmp_path / "many")
    score(load_model(tiny_bundle, "cpu"), [images], tmp_path / "one")
    assert results(tmp_path / "many") == results(tmp_path / "one")


def test_records_come_in_order_and_only_when_their_files_are_there(batched: Model, tmp_path: Path) -> None:
    images = save_many(tmp_path / "in", 11)
    (images / "006.png").write_bytes(b"not an image")
    seen = []
    for case, [record] in score_cases(Run(batched, tmp_path / "out", False, []), cases(images)):
        seen.append(case.name)
        if record["error"] is None:
            assert np.load(tmp_path / "out" / record["map"]).shape == (24, 32)
            assert (tmp_path / "out" / "overlays" / case.name).is_file()
    assert sorted(seen) == [f"{i:03d}.png" for i in range(11)]
    assert seen[4:8] == ["004.png", "005.png", "007.png", "006.png"]  # what failed comes last of its batch


def test_overlays_hold_the_pixels_of_overlay(batched: Model, tmp_path: Path) -> None:
    images = save_many(tmp_path / "in", 3)
    score(batched, [images], tmp_path / "out")
    calibration = batched.bundle.calibration
    assert calibration is not None
    for i, record in enumerate(read_records(tmp_path / "out")):
        heatmap = np.load(tmp_path / "out" / record["map"])
        wanted = overlay(
            noise(i).astype(np.float32)[:, :, None], heatmap, calibration.reference.pixel_threshold, calibration.heat_scale
        )
        with PIL.Image.open(tmp_path / "out" / "overlays" / "in" / f"{i:03d}.png") as found:
            np.testing.assert_array_equal(np.asarray(found), wanted)


def test_a_file_that_cannot_be_written_stops_the_run_and_the_others_stay(batched: Model, tmp_path: Path) -> None:
    images, out = save_many(tmp_path / "in", 9), tmp_path / "out"
    (out / "maps" / "in" / "006.png.npy").mkdir(parents=True)  # a folder where the map should go
    with pytest.raises(UserError, match=r"006\.png\.npy"):
        score(batched, [images], out)
    assert [Path(record["input"]).name for record in read_records(out)] == [f"{i:03d}.png" for i in range(6)]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_what_was_predicted_is_recorded_when_the_next_batch_fails(
    stop: type[BaseException], batched: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, out, whole, calls = save_many(tmp_path / "in", 11), tmp_path / "out", batched.launch, list[int]()

    def launch(pixels: NDArray[np.float32], without: int | None = None) -> Any:
        calls.append(len(pixels))
        if len(calls) == 2:
            raise stop
        return whole(pixels, without)

    monkeypatch.setattr(batched, "launch", launch)
    with pytest.raises(stop):
        score(batched, [images], out)
    assert [Path(record["input"]).name for record in read_records(out)] == [f"{i:03d}.png" for i in range(4)]
