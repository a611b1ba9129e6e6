"""Volumes: one canonical orientation from any of 48, and the exact inverse; one grey range; which slices are used."""

from pathlib import Path

import nibabel
import numpy as np
import pytest
from volumes import SHAPE, SPACING, Orientation, canonical_affine, head, orientations, stored

from reshift.config import DataConfig
from reshift.data.prepare import prepare, prepare_mask, restore
from reshift.data.volume import MAX_SAMPLE, Volume, canonical
from reshift.errors import UserError

EVERY = pytest.mark.parametrize(
    "orientation", list(orientations()), ids=lambda o: "".join(str(a) for a in o[0]) + "".join("+-"[f] for f in o[1])
)
TILTED = np.array([[0.94, -0.34, 0.0, 3.0], [0.32, 0.88, -0.34, -5.0], [0.12, 0.32, 0.94, 7.0], [0.0, 0.0, 0.0, 1.0]])


def volume_of(array: np.ndarray, affine: np.ndarray | None = None, **options: float) -> Volume:
    return canonical(array, canonical_affine(array.shape) if affine is None else affine, source=Path("a.nii.gz"), **options)  # type: ignore[arg-type]


@EVERY
def test_any_orientation_becomes_the_same_volume_and_returns(orientation: Orientation) -> None:
    anatomy, world = head(), canonical_affine()
    array, affine = stored(anatomy, orientation, world)
    volume = volume_of(array, affine)
    np.testing.assert_array_equal(volume.voxels, anatomy)
    assert np.shares_memory(volume.voxels, anatomy)  # a view
    np.testing.assert_array_equal(volume.to_native(volume.voxels), array)
    np.testing.assert_array_equal(volume.from_native(array), anatomy)
    assert volume.native_shape == array.shape
    assert volume.spacing == pytest.approx(SPACING)
    np.testing.assert_allclose(volume.affine @ [5, 7, 3, 1], world @ [3, 7, 5, 1])  # (column, row, slice)
    for k in (0, 3, SHAPE[0] - 1):
        taken = np.take(array, volume.native_index(k), axis=volume.axes[0])
        assert sorted(taken.ravel()) == sorted(anatomy[k].ravel())


def test_the_canonical_orientation() -> None:
    """In nibabel's codes: slices start inferior, rows anterior, columns at the patient's right."""
    array = np.arange(4 * 5 * 6).reshape(4, 5, 6)
    volume = volume_of(array, np.eye(4))
    assert nibabel.aff2axcodes(volume.affine) == ("L", "P", "S")
    assert volume.voxels[0, 0, 0] == array[3, 4, 0]
    assert volume.voxels[1, 0, 0] == array[3, 4, 1]
    assert volume.voxels[0, 1, 0] == array[3, 3, 0]
    assert volume.voxels[0, 0, 1] == array[2, 4, 0]


@EVERY
def test_an_oblique_volume_keeps_its_affine(orientation: Orientation) -> None:
    array, affine = stored(head(), orientation, TILTED @ canonical_affine())
    volume = volume_of(array, affine)
    np.testing.assert_array_equal(volume.voxels, head())
    np.testing.assert_allclose(volume.affine @ [5, 7, 3, 1], TILTED @ canonical_affine() @ [3, 7, 5, 1])
    assert nibabel.aff2axcodes(volume.affine) == ("L", "P", "S")


@EVERY
@pytest.mark.parametrize("square", ["crop", "pad"])
def test_a_heat_map_returns_to_its_own_voxels(orientation: Orientation, square: str) -> None:
    """A map equal to the prepared image must match the volume: not mirrored, rotated, shifted or stretched."""
    array, affine = stored(head(), orientation, canonical_affine())
    volume = volume_of(array, affine)
    low, high = volume.window
    config = DataConfig.model_validate({"size": 64, "square": square})
    maps = np.empty(SHAPE, dtype=np.float32)
    for k in range(len(volume)):
        prepared = prepare(volume.image(k), config)
        maps[k] = restore(prepared.pixels[0], prepared.geometry)
    native = volume.to_native(maps)
    assert native.shape == array.shape
    inside = np.isfinite(native)
    assert inside.all() if square == "pad" else 0.9 < inside.mean() < 1.0  # 36 mm × 35 mm
    expected = np.clip((array - low) / (high - low), 0, 1) * 2 - 1
    np.testing.assert_allclose(native[inside], expected[inside], atol=0.12)  # fine detail is lost, anatomy is not
    peak = np.unravel_index(np.nanargmax(native), native.shape)
    there = np.unravel_index(np.argmax(array), array.shape)
    assert np.abs(np.subtract(peak, there)).max() <= 1


def test_pixels_that_are_not_square_show_in_their_true_proportions() -> None:
    """A circle in millimetres stays a circle, and a mask is prepared like its image."""
    row, column = np.meshgrid((np.arange(60) - 29.5) * 1.0, (np.arange(30) - 14.5) * 2.5, indexing="ij")
    disc = (np.hypot(row, column) < 20).astype(np.float32)
    volume = volume_of(disc[None], canonical_affine((1, 60, 30), (3.0, 1.0, 2.5)))
    for square, side in (("crop", 60.0), ("pad", 75.0)):
        prepared = prepare(volume.image(0), DataConfig.model_validate({"size": 96, "square": square}))
        seen = prepared.pixels[0] > 0
        tall, wide = (int(seen.any(axis).sum()) for axis in (1, 0))
        assert tall == pytest.approx(40 * 96 / side, abs=3)
        assert wide == pytest.approx(40 * 96 / side, abs=4)
        mask = prepare_mask(disc > 0, prepared.geometry, 96)
        assert (mask ^ seen).sum() < 0.15 * seen.sum()
        back = restore(prepared.pixels[0], prepared.geometry)
        assert back.shape == (60, 30)
        assert ((back > 0) ^ (disc > 0)).mean() < 0.02


def test_padding_is_black_and_no_pixel_is_lost() -> None:
    wide = np.full((32, 64), 200.0, dtype=np.float32)
    wide[3, 2], wide[:, 63] = 50.0, 255.0
    volume = volume_of(wide[None], canonical_affine((1, 32, 64), (1.0, 1.0, 1.0)))
    prepared = prepare(volume.image(0), DataConfig(size=64, square="pad"))
    assert (prepared.pixels[0, :16] == -1).all()
    assert (prepared.pixels[0, 48:] == -1).all()
    assert prepared.pixels[0, 19, 2] == -1.0
    assert prepared.pixels[0, 20:40, 63].min() == 1.0
    assert np.isfinite(restore(prepared.pixels[0], prepared.geometry)).all()


def test_very_long_pixels_are_refused() -> None:
    volume = volume_of(head(), canonical_affine(SHAPE, (1.0, 0.001, 1.0)))
    with pytest.raises(UserError, match=r"a\.nii\.gz: its pixels are 0.001×1 mm, far from square"):
        prepare(volume.image(3), DataConfig())


def test_the_grey_range_is_that_of_the_whole_volume() -> None:
    volume = volume_of(head())
    assert len({volume.image(k).window for k in range(len(volume))}) == 1
    dark = volume.voxels.mean((1, 2)).argmin()
    assert prepare(volume.image(int(dark)), DataConfig()).pixels.max() < 0.9  # by its own range it would reach 1


def test_air_around_the_head_does_not_change_its_greys() -> None:
    anatomy = np.where(head() > 60, head(), 0)
    roomy = np.pad(anatomy, ((10, 10), (30, 30), (30, 30)))
    assert volume_of(roomy).window == pytest.approx(volume_of(anatomy).window, rel=0.03)


def test_slope_and_intercept_are_applied() -> None:
    anatomy = head().astype(np.int16)
    plain, scaled = volume_of(anatomy), volume_of(anatomy, slope=2.5, intercept=-100.0)
    np.testing.assert_allclose(scaled.plane(3), anatomy[3] * 2.5 - 100)
    assert scaled.window == pytest.approx([2.5 * v - 100 for v in plain.window])
    np.testing.assert_array_equal(scaled.foreground_sizes, plain.foreground_sizes)
    assert scaled.plane(0).dtype == np.float32


def test_large_volumes_are_sampled() -> None:
    large = np.broadcast_to(np.linspace(0, 1000, 300, dtype=np.float32), (300, 300, 300))
    volume = volume_of(large)
    assert volume._sample.size <= 1.3 * MAX_SAMPLE
    assert volume.window == pytest.approx((5, 997.5), abs=5)  # 0.5 % of all, 99.5 % of the upper half


def test_slices_are_chosen_by_their_foreground() -> None:
    anatomy = np.zeros((10, 40, 40), dtype=np.float32)
    for k, area in enumerate((0, 1, 9, 10, 50, 100, 80, 10, 0, 3)):
        anatomy[k].flat[:area] = 500.0
    volume = volume_of(anatomy)
    assert volume.foreground_sizes.tolist() == [0, 1, 9, 10, 50, 100, 80, 10, 0, 3]
    assert volume.foreground_slices(0.1) == [3, 4, 5, 6, 7]
    assert volume.foreground_slices(1.0) == [5]
    assert volume.foreground_slices(0.0) == [1, 2, 3, 4, 5, 6, 7, 9]  # an empty slice is never used


def test_a_constant_volume_is_refused() -> None:
    with pytest.raises(UserError, match=r"a\.nii\.gz: every voxel has the value 7"):
        _ = volume_of(np.full(SHAPE, 7, dtype=np.int16)).window
    spot = np.zeros((8, 40, 40), dtype=np.int16)
    spot[4, 20, 20] = 900
    assert volume_of(spot).window[1] > 0
    assert volume_of(spot).foreground_slices(0.1) == [4]


@pytest.mark.parametrize("column", [[0.0, 0.0, 0.0], [np.nan, 0.0, 0.0], [0.0, 1.0, 0.0], [np.inf, 0.0, 0.0]])
def test_an_invalid_affine_is_refused(column: list[float]) -> None:
    affine = np.eye(4)
    affine[:3, 0] = column
    with pytest.raises(UserError, match=r"a\.nii\.gz: its orientation is not valid"):
        volume_of(head(), affine)
