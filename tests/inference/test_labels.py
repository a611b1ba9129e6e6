"""Words on overlays, montages, and what overlays are called."""

import shutil
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import PIL.Image
import pytest
from helpers import Cli, noise, read_records, save, save_many
from numpy.typing import NDArray
from volumes import save_head

from reshift.data.image import Image
from reshift.inference.calibration import Calibration, Reference
from reshift.inference.inputs import result_stem
from reshift.inference.labels import draw_overlay, montage, tile
from reshift.inference.overlay import grey, overlay
from reshift.inference.preview import preview_tile

PIXELS = np.linspace(0, 255, 128 * 160, dtype=np.float32).reshape(128, 160, 1)
HEAT = np.zeros((128, 160), dtype=np.float32)
HEAT[40:60, 40:60] = 0.9
NUMBERS = {"score": 3.25, "p_value": 0.012, "flag": True, "unlike": False, "differs": ()}


@pytest.fixture
def calibration() -> Calibration:
    held_out = Reference(images=2, image_threshold=1.0, pixel_threshold=0.5, scores=(0.5, 1.0))
    return Calibration(image_quantile=0.95, pixel_quantile=0.995, default="held-out", held_out=held_out, training=None)


def picture(path: Path) -> NDArray[np.uint8]:
    with PIL.Image.open(path) as found:
        return np.asarray(found)


def test_without_labels_an_overlay_has_the_pixels_of_the_image(calibration: Calibration) -> None:
    np.testing.assert_array_equal(draw_overlay(PIXELS, HEAT, NUMBERS, calibration), overlay(PIXELS, HEAT, 0.5, 1.0))


def test_labels_stand_at_the_edges_of_an_enlarged_image(calibration: Calibration) -> None:
    plain = draw_overlay(PIXELS, HEAT, NUMBERS, calibration).repeat(2, axis=0).repeat(2, axis=1)
    labelled = draw_overlay(PIXELS, HEAT, NUMBERS, calibration, labels=True)
    assert labelled.shape == (256, 320, 3)
    changed = (labelled != plain).any(axis=-1)
    assert changed[:20].any()  # score and p-value
    assert changed[-30:, 160:].any()  # the colour bar
    assert not changed[30:-40].any()  # nothing lies over the rest
    other = draw_overlay(PIXELS, HEAT, {**NUMBERS, "flag": False}, calibration, labels=True)
    assert ((labelled != other).any(axis=-1).nonzero()[0] < 20).all()  # only the words differ
    assert not (labelled == other).all()


def test_the_colour_bar_is_grey_up_to_the_threshold(calibration: Calibration) -> None:
    row = draw_overlay(PIXELS, HEAT, NUMBERS, calibration, labels=True)[-10].astype(int)
    coloured = (np.ptp(row, axis=-1) > 30).nonzero()[0]
    assert coloured.min() == pytest.approx(320 - 12 - 40, abs=3)  # 80 pixels long, the threshold in its middle
    assert coloured.max() == pytest.approx(320 - 12, abs=3)


def test_an_unlike_image_gets_a_notice_and_no_colour(calibration: Calibration) -> None:
    unlike = {**NUMBERS, "unlike": True, "differs": ("grey", "features")}
    found = draw_overlay(PIXELS, np.full_like(HEAT, 9.0), unlike, calibration)
    assert (np.ptp(found.astype(int), axis=-1) == 0).all()
    plain = grey(PIXELS).repeat(2, axis=0).repeat(2, axis=1)
    changed = found[:, :, 0] != plain
    assert changed[-30:].mean() > 0.5
    assert not changed[:150].any()


def test_a_preview_of_an_unlike_image_has_no_colour(calibration: Calibration) -> None:
    image = Image(PIXELS.astype(np.uint8), 8, Path("a.png"))
    seen = preview_tile(image, HEAT, NUMBERS, calibration)
    assert (np.ptp(seen.astype(int), axis=-1) > 30).any()
    unlike = preview_tile(image, HEAT, {**NUMBERS, "unlike": True}, calibration, 7)
    assert (np.ptp(unlike.astype(int), axis=-1) == 0).all()
    assert (unlike[-20:] != seen[-20:]).any()  # the notice


def test_tiles_keep_proportions_and_order() -> None:
    white = np.full((20, 40, 3), 255, dtype=np.uint8)
    seen = tile(white, (4.0, 1.0), 64)  # 80 mm × 40 mm
    assert seen.shape == (64, 64, 3)
    assert [int((seen > 0).any((axis, 2)).sum()) for axis in (1, 0)] == [64, 32]
    black = np.zeros((20, 20, 3), dtype=np.uint8)
    labelled, both = tile(black, (1.0, 1.0), 64, "12 *"), tile(black, (1.0, 1.0), 64, "12 *", "p = 0.01")
    assert (labelled[:16, :40] > 200).any()
    assert not labelled[32:].any()
    assert (both[48:, :60] > 200).any()
    tiles = [np.full((4, 4, 3), i + 1, dtype=np.uint8) for i in range(7)]
    laid = montage(tiles)
    assert laid[::4, ::4, 0].tolist() == [[1, 2, 3, 4], [5, 6, 7, 0]]
    assert montage(tiles[:1]).shape == (4, 4, 3)


def test_a_montage_begins_with_the_most_suspicious_slice(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    scan, out = save_head(tmp_path / "scan.nii.gz"), tmp_path / "out"
    assert run_cli("score", tiny_bundle, scan, "--out", out, "--labels").code == 0
    *slices, _ = read_records(out)
    assert len(slices) > 4
    volume: Any = nibabel.load(scan)
    axis = [code in "SI" for code in nibabel.aff2axcodes(volume.affine)].index(True)
    order = sorted(slices, key=lambda record: -record["score"])
    shown = picture(out / "overlays" / "scan.png")
    columns = shown.shape[1] // 160
    assert (shown.shape[0] - 44) % 160 == 0  # the legend
    light = [np.take(volume.get_fdata(), record["slice"], axis).mean() for record in order]
    tiles = [shown[160 * (i // columns) :, 160 * (i % columns) :][24:136, :160].mean() for i in range(len(order))]
    assert np.corrcoef(light, tiles)[0, 1] > 0.9
    assert light != sorted(light, reverse=True)


def test_unlike_images_are_drawn_with_a_notice(run_cli: Cli, tmp_path: Path) -> None:
    normals, out = tmp_path / "normals", tmp_path / "out"
    save_many(normals, 40)
    options = ("--method", "brightness", "--set", "data.size=32", "--set", "calibrate.features=off")
    assert run_cli("train", "--data", normals, "--out", tmp_path / "run", *options).code == 0
    far = np.zeros((24, 32), dtype=np.uint8)
    far[8:16, 8:16] = 255
    save(far, tmp_path / "in" / "far.png")
    save(noise(99), tmp_path / "in" / "near.png")
    assert run_cli("score", tmp_path / "run" / "bundle", tmp_path / "in", "--out", out).code == 0
    assert [record["unlike"] for record in read_records(out)] == [True, False]
    found = picture(out / "overlays" / "in" / "far.png")
    assert found.shape == (264, 352, 3)  # enlarged, so that the notice can be read
    assert (np.ptp(found.astype(int), axis=-1) == 0).all()
    assert picture(out / "overlays" / "in" / "near.png").shape == (24, 32, 3)


def test_names_have_one_ending_and_are_unique(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    for i, name in enumerate(("a.jpg", "a.png", "a~2.png", "b.PNG", "c.png.tif", "1.2.840.png")):
        save(noise(i), folder / name)
    save_head(folder / "a.nii.gz")
    save_head(folder / "d.nii")
    assert run_cli("score", tiny_bundle, folder, "--out", out).code == 0
    records = {Path(r["input"]).name: r["map"] for r in read_records(out) if r["slice"] is None}
    overlays = {name: result_stem(place.removeprefix("maps/")) + ".png" for name, place in records.items()}
    assert sorted(overlays.values()) == sorted(
        path.relative_to(out / "overlays").as_posix() for path in (out / "overlays").rglob("*.png")
    )
    assert len(set(overlays.values())) == 8
    assert {overlays[name] for name in ("1.2.840.png", "b.PNG", "d.nii")} == {"in/1.2.840.png", "in/b.png", "in/d.png"}


def test_a_later_file_of_the_same_stem_leaves_the_first_overlay(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    save(noise(1), folder / "scan.png")
    assert run_cli("score", tiny_bundle, folder, "--out", out).code == 0
    before = (out / "overlays" / "in" / "scan.png").read_bytes()
    save(noise(2), folder / "scan.jpg")  # comes first in the folder
    assert run_cli("score", tiny_bundle, folder, "--out", out).code == 0
    assert (out / "overlays" / "in" / "scan.png").read_bytes() == before
    assert sorted(path.name for path in (out / "overlays" / "in").iterdir()) == ["scan.png", "scan~2.png"]


def test_a_changed_file_takes_its_overlay_of_an_earlier_version_along(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    save(noise(1), folder / "scan.png")
    assert run_cli("score", tiny_bundle, folder, "--out", out).code == 0
    shutil.move(out / "overlays" / "in" / "scan.png", out / "overlays" / "in" / "scan.png.png")  # as it was called
    save(noise(2), folder / "scan.png")
    assert run_cli("score", tiny_bundle, folder, "--out", out).code == 0
    assert [path.name for path in (out / "overlays" / "in").iterdir()] == ["scan.png"]


def test_stems() -> None:
    names = {"a/scan.png.npy": "a/scan", "a/b.nii.gz": "a/b", "film.dcm.nii.gz": "film", "IM.0001.npy": "IM.0001", "x": "x"}
    assert {name: result_stem(name) for name in names} == names
