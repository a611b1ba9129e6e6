"""Overlays: the same value is the same colour in every image."""

import io
import warnings

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshift.inference.overlay import OUTLINE, RAMP, colours, grey, heat_colours, outline, overlay, png

some = settings(deadline=None, max_examples=50)


def test_the_ramp_has_its_ends_and_clips_beyond() -> None:
    found = colours(np.array([[0.0, 1.0, -5.0, 7.0]], dtype=np.float32))
    assert found.shape == (1, 4, 3)
    assert found.dtype == np.uint8
    assert found[0].tolist() == [RAMP[0].tolist(), RAMP[-1].tolist(), RAMP[0].tolist(), RAMP[-1].tolist()]
    knots = np.linspace(0.0, 1.0, len(RAMP), dtype=np.float32)[None]
    np.testing.assert_array_equal(colours(knots)[0], RAMP)


def test_luminance_rises_all_the_way() -> None:
    rgb = colours(np.linspace(0.0, 1.0, 257, dtype=np.float32)[None])[0].astype(np.float64) / 255.0
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)  # sRGB
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(luminance[::8]) > 0).all()
    assert (np.diff(luminance) >= 0).all()


@given(st.floats(0.0, 4.0, width=32), st.floats(0.1, 3.0))
@some
def test_a_value_has_one_colour_whatever_else_is_in_the_image(value: float, scale: float) -> None:
    """A fixed scale: neither a hotter image around it nor a second image changes how a value is drawn, but for the outline."""
    pixels = np.linspace(0.0, 200.0, 64, dtype=np.float32).reshape(8, 8, 1)
    one, other = np.full((2, 8, 8), 50.0, dtype=np.float32)
    one[3:6, 3:6] = value
    other[4, 4] = value
    inside = 4, 4
    shown = [overlay(pixels, heatmap, scale / 2, scale) for heatmap in (one, other)]
    np.testing.assert_array_equal(shown[0][inside], shown[1][inside])


def test_the_image_is_clear_below_the_threshold_and_coloured_above_it() -> None:
    pixels = np.linspace(0, 90, 1024, dtype=np.float32).reshape(32, 32, 1)
    heatmap = np.full((32, 32), 0.69, dtype=np.float32)
    heatmap[10:20, 10:20] = 0.71
    heatmap[12:18, 12:18] = 1.4
    base, out = np.repeat(grey(pixels)[:, :, None], 3, axis=2), overlay(pixels, heatmap, 0.7, 1.4)
    above = heatmap > 0.7
    np.testing.assert_array_equal(out[~above], base[~above])
    rim = outline(above)
    assert rim.sum() == 36  # one pixel wide, along the inside of ten by ten
    assert not (rim & ~above).any()
    assert (out[rim] == OUTLINE).all()
    filled = above & ~rim
    assert (np.ptp(out[filled].astype(int), axis=-1) > 40).all()  # colour, not grey
    assert out[15, 15].sum() > out[11, 11].sum()  # hotter is brighter


def test_the_outline_of_a_large_image_is_thicker_and_of_a_speck_the_speck_itself() -> None:
    above = np.zeros((2048, 1024), dtype=bool)
    above[500:900, 300:700] = True
    assert outline(above)[500:510, 500].sum() == 4
    speck = np.zeros((64, 64), dtype=bool)
    speck[7, 9] = True
    np.testing.assert_array_equal(outline(speck), speck)


def test_at_the_threshold_is_not_above_it() -> None:
    pixels = np.arange(16, dtype=np.float32).reshape(4, 4, 1)
    out = overlay(pixels, np.full((4, 4), 0.5, dtype=np.float32), 0.5, 1.0)
    np.testing.assert_array_equal(out, np.repeat(grey(pixels)[:, :, None], 3, axis=2))


def test_nan_leaves_the_scan_as_it_is() -> None:
    pixels = np.arange(64, dtype=np.float32).reshape(8, 8, 1)
    heatmap = np.full((8, 8), np.nan, dtype=np.float32)
    heatmap[:, 4:] = 2.0
    base = np.repeat(grey(pixels)[:, :, None], 3, axis=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(overlay(pixels, heatmap, 1.0, 2.0)[:, :4], base[:, :4])


def test_infinite_heat_is_full_colour_without_a_warning() -> None:
    pixels = np.arange(16, dtype=np.float32).reshape(4, 4, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hot = overlay(pixels, np.full((4, 4), np.inf, dtype=np.float32), 0.25, 0.5)
        cold = overlay(pixels, np.full((4, 4), -np.inf, dtype=np.float32), 0.25, 0.5)
    np.testing.assert_array_equal(hot, overlay(pixels, np.full((4, 4), 0.5, dtype=np.float32), 0.25, 0.5))
    np.testing.assert_array_equal(cold, overlay(pixels, np.zeros((4, 4), dtype=np.float32), 0.25, 0.5))


@pytest.mark.parametrize("channels", [1, 3])
def test_grey_uses_the_whole_range_and_survives_a_flat_image(channels: int) -> None:
    ramp = np.repeat(np.linspace(-1000.0, 3000.0, 4096, dtype=np.float32).reshape(64, 64, 1), channels, axis=2)
    shown = grey(ramp)
    assert (shown.min(), shown.max()) == (0, 255)
    assert (np.diff(shown.ravel().astype(int)) >= 0).all()
    assert (grey(np.full((8, 8, channels), 7.0, dtype=np.float32)) == 0).all()


def test_a_window_keeps_slices_comparable() -> None:
    dim = np.linspace(0, 100, 64, dtype=np.float32).reshape(8, 8, 1)
    assert grey(dim).max() == 255
    assert grey(dim, (0.0, 200.0)).max() == 127
    blank = np.zeros((8, 8), dtype=np.float32)
    np.testing.assert_array_equal(overlay(dim, blank, 1.0, 2.0, (0.0, 200.0))[..., 0], grey(dim, (0.0, 200.0)))


def test_a_ramp_is_interpolated_and_nan_is_its_beginning() -> None:
    between = 0.5 * (RAMP[2] + RAMP[3])
    found = colours(np.array([[2.5 / (len(RAMP) - 1), np.nan]], dtype=np.float32))[0]
    np.testing.assert_allclose(found[0], between, atol=0.51)
    assert found[1].tolist() == RAMP[0].tolist()


@pytest.mark.parametrize("channels", [1, 3])
def test_blending_gives_the_pixels_of_the_plain_formula(channels: int) -> None:
    """To one step of 256: the table's levels of heat are less than one apart, and what it holds is rounded."""
    rng = np.random.default_rng(channels)
    pixels = rng.uniform(-1000.0, 3000.0, (397, 331, channels)).astype(np.float32)
    heatmap = rng.normal(0.9, 0.2, (397, 331)).astype(np.float32)
    heatmap[:4, :4] = np.nan
    heat = np.clip((heatmap - 0.35) / 0.35, 0.0, 1.0)
    alpha = (0.45 + 0.3 * heat)[:, :, None]
    wanted = np.rint((1.0 - alpha) * grey(pixels)[:, :, None] + alpha * heat_colours(heat))
    above = heatmap > 0.35
    filled = above & ~outline(above)
    found = overlay(pixels, heatmap, 0.35, 0.7).astype(np.float64)
    assert filled.mean() > 0.9
    assert np.abs(found - wanted)[filled].max() <= 1.0
    assert (found == wanted)[filled].mean() > 0.9


def test_a_picture_at_the_ends_of_float32_is_shown_without_a_warning() -> None:
    ends = np.linspace(-3e38, 3e38, 64, dtype=np.float64).astype(np.float32).reshape(8, 8, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown = grey(ends)
    assert (np.diff(shown.ravel().astype(int)) >= 0).all()
    assert (shown.min(), shown.max()) == (0, 255)


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (16, 1), (61, 83)])
@pytest.mark.parametrize("kind", ["noise", "flat", "ramp"])
@pytest.mark.parametrize("quick", [True, False])
def test_a_png_holds_the_pixels_it_was_given(
    shape: tuple[int, int], kind: str, quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not quick:
        monkeypatch.setattr("reshift.inference.overlay.isal_zlib", None)
    height, width = shape
    flat = np.full((height, width, 3), 200, dtype=np.uint8)
    ramp = (np.add.outer(3 * np.arange(height), 5 * np.arange(width))[:, :, None] + [0, 70, 140]).astype(np.uint8)
    picture = {"noise": np.random.default_rng(0).integers(0, 256, flat.shape, dtype=np.uint8), "flat": flat, "ramp": ramp}[kind]
    for shown in (picture, picture[::-1, ::-1]):  # the latter does not lie in memory as it reads
        with PIL.Image.open(io.BytesIO(png(shown))) as found:
            assert (found.format, found.mode) == ("PNG", "RGB")
            np.testing.assert_array_equal(np.asarray(found), shown)
