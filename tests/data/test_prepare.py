"""Preparing: range, geometry and scaling; the inverse returns every pixel to its place."""

from pathlib import Path

import numpy as np
import pytest
from helpers import noise
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from reshift.config import DataConfig
from reshift.data.image import Image
from reshift.data.prepare import Geometry, prepare, prepare_mask, resize, restore, square_region
from reshift.errors import UserError

SIDES = st.integers(16, 90)


def image(pixels: NDArray[np.generic], bits: int = 8) -> Image:
    planes = pixels if pixels.ndim == 3 else pixels[:, :, None]
    return Image(planes.astype(np.float32), bits, Path("a.png"))


@settings(max_examples=60, deadline=None)
@given(height=SIDES, width=SIDES, bits=st.sampled_from([8, 16, 32]), channels=st.sampled_from([1, 3]), size=st.integers(32, 80))
def test_shape_and_range(height: int, width: int, bits: int, channels: int, size: int) -> None:
    config = DataConfig.model_validate({"size": size, "channels": channels})
    stored = noise(height, height, width).astype(np.float32) * (200.0 if bits > 8 else 1.0)
    prepared = prepare(image(stored, bits), config)
    assert prepared.pixels.shape == (channels, size, size)
    assert prepared.pixels.dtype == np.float32
    assert prepared.pixels.min() >= -1.0
    assert prepared.pixels.max() <= 1.0
    np.testing.assert_array_equal(prepared.pixels, prepare(image(stored, bits), config).pixels)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((40, 60), (0, 10, 40)), ((60, 40), (10, 0, 40)), ((41, 60), (0, 9, 41)), ((61, 40), (10, 0, 40)), ((33, 33), (0, 0, 33))],
)
def test_the_crop_is_the_largest_centred_square(shape: tuple[int, int], expected: tuple[int, int, int]) -> None:
    top, left, side = expected
    assert square_region(*shape) == Geometry(*shape, top, left, side, side)


def test_pixels_outside_the_crop_have_no_effect() -> None:
    wide = np.zeros((32, 64), dtype=np.uint8)
    wide[:, :16] = wide[:, 48:] = 255
    wide[3, 20] = 10
    assert prepare(image(wide), DataConfig(size=32)).pixels.max() == pytest.approx(10 / 127.5 - 1)


def test_shrinking_is_antialiased() -> None:
    board = (np.indices((128, 128)).sum(0) % 2 * 255).astype(np.uint8)
    prepared = prepare(image(board), DataConfig(size=32)).pixels
    assert np.abs(prepared).max() < 0.02  # without antialiasing, black and white would remain


def test_an_image_of_the_right_size_is_not_resampled() -> None:
    stored = noise(0, 32, 32)
    np.testing.assert_allclose(prepare(image(stored), DataConfig(size=32)).pixels[0], stored / 127.5 - 1, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(height=st.integers(40, 200), width=st.integers(40, 200), size=st.sampled_from([32, 64, 128]), data=st.data())
def test_the_mask_follows_the_image(height: int, width: int, size: int, data: st.DataObject) -> None:
    """An L-shape, which no flip or rotation maps to itself, is drawn into both and must end up at one place."""
    geometry, arm = square_region(height, width), min(height, width) // 4
    top = geometry.top + data.draw(st.integers(0, geometry.rows - 2 * arm))
    left = geometry.left + data.draw(st.integers(0, geometry.rows - 2 * arm))
    mask = np.zeros((height, width), dtype=bool)
    mask[top : top + 2 * arm, left : left + arm // 2 + 1] = mask[top : top + arm // 2 + 1, left : left + 2 * arm] = True
    seen = prepare(image(mask * np.uint8(255)), DataConfig(size=size)).pixels[0] > 0
    taken = prepare_mask(mask, geometry, size)
    for axis in (0, 1):
        ours, theirs = (np.flatnonzero(found.any(axis)) for found in (seen, taken))
        assert abs(ours[0] - theirs[0]) <= 1
        assert abs(ours[-1] - theirs[-1]) <= 1
    assert (seen ^ taken).mean() < 0.08


def test_a_mask_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="mask is 20×30 pixels, its image 40×30"):
        prepare_mask(np.zeros((30, 20), dtype=bool), square_region(30, 40), 32)


@settings(max_examples=60, deadline=None)
@given(height=st.integers(32, 300), width=st.integers(32, 300), data=st.data())
def test_a_peak_returns_to_its_own_pixel(height: int, width: int, data: st.DataObject) -> None:
    geometry, size = square_region(height, width), 64
    row, col = (data.draw(st.integers(4, size - 5)) for _ in range(2))
    heatmap = np.zeros((size, size), dtype=np.float32)
    heatmap[row - 1 : row + 2, col - 1 : col + 2] = 0.5
    heatmap[row, col] = 1.0
    native = restore(heatmap, geometry)
    assert native.shape == (height, width)
    assert native.dtype == np.float32
    outside = np.isnan(native)
    assert outside.sum() == height * width - geometry.rows**2
    found = np.argwhere(native == np.nanmax(native)).mean(0)
    scale = geometry.rows / size
    expected = geometry.top + (row + 0.5) * scale - 0.5, geometry.left + (col + 0.5) * scale - 0.5
    np.testing.assert_allclose(found, expected, atol=max(1.0, scale))


def test_a_smooth_image_survives_the_round_trip() -> None:
    ramp = np.add.outer(np.linspace(0, 100, 90), np.linspace(0, 155, 120)).astype(np.float32)
    prepared = prepare(image(ramp), DataConfig(size=64))
    back = (restore(prepared.pixels[0], prepared.geometry) + 1) * 127.5
    inside = np.isfinite(back)
    assert np.abs(back - ramp)[inside].max() < 3


def test_8_bits_keep_their_range_and_16_bits_are_stretched() -> None:
    dim = noise(0, 32, 32) // 4
    assert prepare(image(dim), DataConfig(size=32)).pixels.max() < -0.4
    stretched = prepare(image(dim.astype(np.float32) * 100, 16), DataConfig(size=32)).pixels[0]
    low, high = np.percentile(dim * 100.0, (0.5, 99.5))
    np.testing.assert_allclose(stretched, np.clip((dim * 100.0 - low) / (high - low), 0, 1) * 2 - 1, atol=1e-6)


def test_a_hot_pixel_does_not_darken_a_16_bit_image() -> None:
    stored = noise(0, 64, 64).astype(np.float32)
    hot = stored.copy()
    hot[5, 5] = 60_000
    config = DataConfig(size=64)
    assert np.abs(prepare(image(hot, 16), config).pixels - prepare(image(stored, 16), config).pixels).mean() < 0.01


def test_the_rules_for_scaling() -> None:
    stored = noise(0, 32, 32).astype(np.float32)
    by_bits = prepare(image(stored, 16), DataConfig(size=32, scale="bits")).pixels[0]
    np.testing.assert_allclose(by_bits, stored / 32767.5 - 1, atol=1e-6)
    assert prepare(image(stored // 4), DataConfig(size=32, scale="percentile")).pixels.max() == 1.0
    with pytest.raises(UserError, match=r"a.png.*data.scale"):
        prepare(image(stored, 32), DataConfig(size=32, scale="bits"))


@pytest.mark.parametrize("unit", [1e-44, 1e-20, 1e30, 1.3e36])
def test_extreme_floats_stay_finite(unit: float) -> None:
    stored = (noise(0, 32, 32).astype(np.float64) * unit * np.where(np.arange(32) % 2, 1, -1)).astype(np.float32)
    prepared = prepare(image(stored, 32), DataConfig(size=32)).pixels
    assert np.isfinite(prepared).all()
    assert prepared.max() - prepared.min() > 1.9


def test_almost_constant_images_keep_their_content() -> None:
    stored = np.zeros((100, 100), dtype=np.float32)
    stored[50, 50] = 9.0  # both percentiles are zero
    assert prepare(image(stored, 16), DataConfig(size=100)).pixels[0, 50, 50] == 1.0


@pytest.mark.parametrize("bits", [16, 32])
def test_a_constant_image_is_refused(bits: int) -> None:
    with pytest.raises(UserError, match=r"a.png.*same grey"):
        prepare(image(np.full((32, 32), 5.0), bits), DataConfig(size=32))


def test_channels() -> None:
    colour = np.stack([noise(i, 32, 32) for i in range(3)], axis=-1)
    kept = prepare(image(colour), DataConfig(size=32, channels=3)).pixels
    np.testing.assert_allclose(kept, colour.transpose(2, 0, 1) / 127.5 - 1, atol=1e-6)
    grey = prepare(image(colour), DataConfig(size=32)).pixels
    np.testing.assert_allclose(grey[0], colour @ [0.299, 0.587, 0.114] / 127.5 - 1, atol=1e-5)
    repeated = prepare(image(colour[..., 0]), DataConfig(size=32, channels=3)).pixels
    np.testing.assert_array_equal(repeated[0], repeated[2])


def test_resize_keeps_a_constant() -> None:
    for size in (7, 40, 93):
        np.testing.assert_allclose(resize(np.full((40, 40), 0.3, dtype=np.float32), size), 0.3, rtol=1e-6)
