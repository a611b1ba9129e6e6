"""Filters against scipy, the quantile against numpy, and the cosine schedule against a slow loop."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import ndimage  # type: ignore[import-untyped]
from torch import Tensor

from reshift.methods.ops.filters import (
    closing,
    dilate,
    erode,
    foreground,
    gaussian_blur,
    max_normalise,
    median_filter,
    opening,
    per_image_quantile,
)

SHAPE = (3, 2, 17, 22)


def per_channel(filtered: Callable[[np.ndarray], np.ndarray], x: Tensor) -> Tensor:
    """Apply a 2-D numpy filter to every channel of every image."""
    return torch.stack([torch.stack([torch.from_numpy(filtered(c.numpy())) for c in image]) for image in x])


@pytest.fixture
def x() -> Tensor:
    return torch.randn(*SHAPE, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("sigma", [0.0, 0.1, 0.5, 1.3, 2.0, 5.0, 12.0])  # 12: the kernel is wider than the mirrored image
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gaussian_blur_is_scipys(x: Tensor, sigma: float, dtype: torch.dtype) -> None:
    expected = per_channel(lambda c: ndimage.gaussian_filter(c, sigma), x.to(dtype))
    assert torch.allclose(gaussian_blur(x.to(dtype), sigma), expected, rtol=0.0, atol=1e-6 if dtype == torch.float32 else 1e-14)


@pytest.mark.parametrize("size", [1, 3, 5, 13])
def test_median_filter_is_scipys(x: Tensor, size: int) -> None:
    assert torch.equal(median_filter(x, size), per_channel(lambda c: ndimage.median_filter(c, size=size), x))


@pytest.mark.parametrize("size", [1, 3, 5, 13, 19])  # 19 exceeds the height
@pytest.mark.parametrize(
    ("ours", "scipys"),
    [
        (dilate, ndimage.grey_dilation),
        (erode, ndimage.grey_erosion),
        (opening, ndimage.grey_opening),
        (closing, ndimage.grey_closing),
    ],
)
def test_morphology_is_scipys(
    x: Tensor, ours: Callable[[Tensor, int], Tensor], scipys: Callable[..., np.ndarray], size: int
) -> None:
    assert torch.equal(ours(x, size), per_channel(lambda c: scipys(c, size=(size, size)), x))


def test_dilation_and_erosion_ignore_pixels_beyond_the_border() -> None:
    assert torch.equal(dilate(torch.full((1, 1, 4, 4), -5.0), 3), torch.full((1, 1, 4, 4), -5.0))
    assert torch.equal(erode(torch.full((1, 1, 4, 4), 5.0), 3), torch.full((1, 1, 4, 4), 5.0))


@pytest.mark.parametrize("window", [median_filter, dilate, erode, opening, closing])
@pytest.mark.parametrize("size", [0, 2, -3])
def test_window_sizes_must_be_odd(x: Tensor, window: Callable[[Tensor, int], Tensor], size: int) -> None:
    with pytest.raises(ValueError, match="odd"):
        window(x, size)


def test_blur_refuses_a_negative_sigma(x: Tensor) -> None:
    with pytest.raises(ValueError, match="sigma"):
        gaussian_blur(x, -1.0)


def test_foreground_is_above_the_floor_in_any_channel() -> None:
    x = torch.full((2, 3, 4, 4), -1.0)
    x[0, 2, 1, 1], x[1, 0, 2, 3], x[1, 1, 0, 0] = -0.97, 1.0, -0.98
    expected = torch.zeros(2, 1, 4, 4)
    expected[0, 0, 1, 1] = expected[1, 0, 2, 3] = 1.0  # exactly at the floor is background
    assert torch.equal(foreground(x), expected)
    assert foreground(x, floor=-2.0).all()


@pytest.mark.parametrize("q", [0.0, 0.05, 0.5, 0.9, 0.95, 0.999, 1.0])
@pytest.mark.parametrize("shape", [SHAPE, (2, 1, 1, 1), (1, 1, 2, 5)])
def test_quantile_is_numpys_per_image(q: float, shape: tuple[int, ...]) -> None:
    x = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = torch.from_numpy(np.quantile(x.flatten(1).numpy(), q, axis=1)).view(-1, 1, 1, 1)
    assert torch.allclose(per_image_quantile(x, q), expected, rtol=0.0, atol=1e-14)


@pytest.mark.parametrize("q", [-0.1, 1.1])
def test_quantile_must_be_between_0_and_1(x: Tensor, q: float) -> None:
    with pytest.raises(ValueError, match="q must"):
        per_image_quantile(x, q)


def test_max_normalise_is_per_image_and_leaves_zeros() -> None:
    x = torch.stack([torch.zeros(2, 3, 3), torch.full((2, 3, 3), 4.0), torch.full((2, 3, 3), 0.5)])
    x[1, 0, 0, 0], x[2, 1, 1, 1] = 8.0, 0.25
    out = max_normalise(x)
    assert torch.equal(out[0], x[0])
    assert torch.equal(out[1], x[1] / 8.0)
    assert torch.equal(out[2], x[2] / 0.5)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: gaussian_blur(x, 2.0),
        lambda x: median_filter(x, 5),
        lambda x: opening(closing(x, 5), 3),
        foreground,
        lambda x: per_image_quantile(x, 0.95),
        max_normalise,
    ],
    ids=["blur", "median", "morphology", "foreground", "quantile", "normalise"],
)
def test_bits_do_not_depend_on_the_batch(f: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(7, 1, 33, 31, generator=torch.Generator().manual_seed(2))
    before, together = x.clone(), f(x)
    assert torch.equal(x, before)
    assert torch.equal(together, torch.cat([f(image) for image in x.split(1)]))
    assert torch.equal(together.flip(0), f(x.flip(0)))
