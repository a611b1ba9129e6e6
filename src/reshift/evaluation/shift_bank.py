"""A fixed set of synthetic shifts for choosing between configurations on normals alone. No method may train with it.

Seven kinds, in regions with a random smooth contour; image, kind and seed decide the result. They are not lesions: a model that
finds more of them has learned more about normal images. docs/research.md compares that ranking with the one on real lesions.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import PIL.Image
from numpy.typing import NDArray

Plane = NDArray[np.float32]
Kind = Callable[[Plane, np.random.Generator], Plane]
VISIBLE = 0.05  # of the range of 2: a smaller change does not count


class Shifted(NamedTuple):
    """A shifted image ``(C, S, S)`` in [-1, 1] and where it visibly differs from the original, ``(S, S)``."""

    pixels: NDArray[np.float32]
    mask: NDArray[np.bool_]


def _smooth(rng: np.random.Generator, size: int, points: int) -> Plane:
    coarse = PIL.Image.fromarray(rng.standard_normal((points, points)).astype(np.float32))
    return np.asarray(coarse.resize((size, size), PIL.Image.Resampling.BICUBIC), dtype=np.float32)


def _blurred(x: Plane, sigma: float) -> Plane:
    radius = int(3 * sigma + 0.5)
    kernel = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    kernel /= kernel.sum()
    for axis in (0, 1):
        padded = np.pad(x, [(radius, radius) if a == axis else (0, 0) for a in (0, 1)], mode="reflect")
        x = np.apply_along_axis(np.convolve, axis, padded, kernel, "valid").astype(np.float32)
    return x


def _amount(rng: np.random.Generator) -> float:
    return float(np.exp(rng.uniform(np.log(0.1), np.log(0.6))))


def warp(x: Plane, rng: np.random.Generator) -> Plane:
    """Tissue displaced by up to a tenth of the side."""
    size = len(x)
    y, c = np.mgrid[:size, :size]
    dy, dc = (0.06 * size * _smooth(rng, size, 5) for _ in range(2))
    rows, columns = (np.clip(np.rint(v), 0, size - 1).astype(int) for v in (y + dy, c + dc))
    return np.asarray(x[rows, columns])


def bright(x: Plane, rng: np.random.Generator) -> Plane:
    """Brighter by a constant."""
    return x + np.float32(_amount(rng))


def dark(x: Plane, rng: np.random.Generator) -> Plane:
    """Darker by a constant."""
    return x - np.float32(_amount(rng))


def flat(x: Plane, rng: np.random.Generator) -> Plane:
    """One grey value, without texture."""
    return np.full_like(x, rng.uniform(-0.8, 0.8))


def speckle(x: Plane, rng: np.random.Generator) -> Plane:
    """White noise on top."""
    return x + np.float32(0.7 * _amount(rng)) * rng.standard_normal(x.shape).astype(np.float32)


def blurred(x: Plane, _rng: np.random.Generator) -> Plane:
    """Out of focus."""
    return _blurred(x, 2.5 * len(x) / 128)


def moved(x: Plane, rng: np.random.Generator) -> Plane:
    """The image's own tissue from elsewhere."""
    size = len(x)
    return np.roll(x, rng.integers(size // 6, size // 3, 2) * rng.choice([-1, 1], 2), axis=(0, 1))


KINDS: Mapping[str, Kind] = {f.__name__: f for f in (warp, bright, dark, flat, speckle, blurred, moved)}


def region(x: Plane, rng: np.random.Generator) -> Plane:
    """A soft-edged region around a random bright pixel: radius 4 to 20 % of the side, varying with the angle."""
    size = len(x)
    candidates = np.argwhere(x > -0.9) if (x > -0.9).any() else np.argwhere(np.isfinite(x))
    cy, cx = candidates[rng.integers(len(candidates))]
    y, c = np.mgrid[:size, :size].astype(np.float32)
    angle, distance = np.arctan2(y - cy, c - cx), np.hypot(y - cy, c - cx)
    radius = size * np.exp(rng.uniform(np.log(0.04), np.log(0.2)))
    wander = sum(rng.uniform(0, 0.5 / k) * np.cos(k * angle + rng.uniform(0, 2 * np.pi)) for k in range(1, 6))
    edge = (radius * (1.0 + wander) - distance) / (size / 128)
    return np.asarray(np.clip(0.5 + edge / 2.0, 0.0, 1.0), dtype=np.float32)


def apply_shift(pixels: NDArray[np.float32], kind: str, seed: tuple[int, ...]) -> Shifted:
    """Shift a region of ``pixels (C, S, S)``; all channels alike."""
    rng = np.random.default_rng([list(KINDS).index(kind), *seed])
    grey = pixels.mean(0)
    cover, change = region(grey, rng), np.clip(KINDS[kind](grey, rng), -1.0, 1.0) - grey
    shifted = np.clip(pixels + cover * change, -1.0, 1.0).astype(np.float32)
    visible = _blurred(np.abs(shifted - pixels).mean(0), len(grey) / 128) > VISIBLE
    return Shifted(shifted, (cover > 0.5) & visible)
