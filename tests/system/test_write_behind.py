"""Maps and overlays are written by other threads while the next batch is computed; nobody can tell from the results."""

from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from helpers import noise, read_records, save_many
from numpy.typing import NDArray

from reshift.data.read import Scan
from reshift.errors import UserError
from reshift.inference.model import Model, load_model
from reshift.inference.model import Run as Launched
from reshift.inference.overlay import overlay
from reshift.inference.score import Job, Run, score, score_jobs


@pytest.fixture
def batched(tiny_bundle: Path) -> Model:
    """A model that takes four images at a time, as on a GPU."""
    model = load_model(tiny_bundle, "cpu")
    model.batch = 4
    return model


def jobs(folder: Path) -> list[Job]:
    return [Job(Scan(path), path.name) for path in sorted(folder.iterdir())]


def test_the_results_are_those_of_one_by_one(batched: Model, tiny_bundle: Path, tmp_path: Path) -> None:
    images = save_many(tmp_path / "in", 11)
    (images / "005.png").write_bytes(b"no picture")
    score(batched, [images], tmp_path / "many")
    score(load_model(tiny_bundle, "cpu"), [images], tmp_path / "one")
    many, one = (read_records(tmp_path / name) for name in ("many", "one"))
    assert [{**r, "seconds": 0} for r in many] == [{**r, "seconds": 0} for r in one]
    written = [path for kind in ("maps", "overlays") for path in (tmp_path / "one" / kind).rglob("*.*")]
    names = [path.relative_to(tmp_path / "one") for path in written]
    assert len(names) == 20
    for name in names:
        assert (tmp_path / "many" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


def test_records_come_in_order_and_only_when_their_files_are_there(batched: Model, tmp_path: Path) -> None:
    images = save_many(tmp_path / "in", 11)
    (images / "006.png").write_bytes(b"no picture")
    seen = []
    for job, [record] in score_jobs(Run(batched, tmp_path / "out", False, []), jobs(images)):
        seen.append(job.stem)
        if record["error"] is None:
            assert np.load(tmp_path / "out" / record["map"]).shape == (24, 32)
            assert (tmp_path / "out" / "overlays" / f"{job.stem}.png").is_file()
    first, second, third = (sorted(seen[at : at + 4]) for at in (0, 4, 8))
    assert [first, second, third] == [[f"{i:03d}.png" for i in range(at, min(at + 4, 11))] for at in (0, 4, 8)]
    assert seen[:4] == first
    assert seen[4:8] == ["006.png", "004.png", "005.png", "007.png"]  # what failed is known first


def test_overlays_hold_the_pixels_of_overlay(batched: Model, tmp_path: Path) -> None:
    images = save_many(tmp_path / "in", 3)
    score(batched, [images], tmp_path / "out")
    calibration = batched.bundle.calibration
    assert calibration is not None
    for i, record in enumerate(read_records(tmp_path / "out")):
        heatmap = np.load(tmp_path / "out" / record["map"])
        wanted = overlay(noise(i).astype(np.float32)[:, :, None], heatmap, calibration.heat_scale)
        with PIL.Image.open(tmp_path / "out" / "overlays" / "in" / f"{i:03d}.png.png") as found:
            np.testing.assert_array_equal(np.asarray(found), wanted)


def test_what_cannot_be_written_stops_the_run_and_what_was_written_stays(batched: Model, tmp_path: Path) -> None:
    images, out = save_many(tmp_path / "in", 9), tmp_path / "out"
    (out / "maps" / "in" / "006.png.npy").mkdir(parents=True)  # a folder where the map should go
    with pytest.raises(UserError, match=r"006\.png\.npy"):
        score(batched, [images], out)
    assert [Path(record["input"]).name for record in read_records(out)] == [f"{i:03d}.png" for i in range(6)]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_what_was_written_is_recorded_when_the_next_batch_fails(
    stop: type[BaseException], batched: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, out, whole = save_many(tmp_path / "in", 11), tmp_path / "out", batched.launch
    calls = []

    def launch(pixels: NDArray[np.float32]) -> Launched:
        calls.append(len(pixels))
        if len(calls) == 2:
            raise stop
        return whole(pixels)

    monkeypatch.setattr(batched, "launch", launch)
    with pytest.raises(stop):
        score(batched, [images], out)
    assert [Path(record["input"]).name for record in read_records(out)] == [f"{i:03d}.png" for i in range(4)]
