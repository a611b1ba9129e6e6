"""The image that every reader returns: pixels as stored, with what is needed to interpret them; and percentiles of pixels."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

LARGEST_16_BIT = 65_535
MAX_PIXELS = 100_000_000  # a 10,000×10,000 image; more is a mistake or an attack
MIN_SIDE = 16  # pixels; a smaller image shows nothing
TOO_SMALL = f"too small; at least {MIN_SIDE}×{MIN_SIDE} is needed; remove it"


@dataclass(frozen=True)
class Image:
    """One 2-D image. ``bits`` is the stored depth (8, 16, or 32 for float), which decides how it is scaled."""

    pixels: NDArray[np.float32]  # (H, W, C), stored values
    bits: int
    source: Path
    window: tuple[float, float] | None = None  # grey range to scale by, from the volume it is a slice of
    spacing: tuple[float, float] = (1.0, 1.0)  # millimetres from row to row and from column to column


def percentiles(values: NDArray[np.float32], wanted: tuple[float, ...]) -> NDArray[np.float64]:
    """``np.percentile`` to the bit. Most images hold whole numbers, and counting those is faster than sorting them."""
    counts = _count_whole_numbers(values)
    if counts is None:
        return np.asarray(np.percentile(values, wanted), dtype=np.float64)
    rank = np.asarray(wanted) / 100.0 * (values.size - 1)
    below = np.floor(rank).astype(np.int64)
    cumulative = np.cumsum(counts)
    low, high = (np.searchsorted(cumulative, np.minimum(r, values.size - 1), side="right") for r in (below, below + 1))
    fraction, step = rank - below, (high - low).astype(np.float64)
    # The two forms round as NumPy's own interpolation does.
    return np.asarray(np.where(fraction >= 0.5, high - step * (1.0 - fraction), low + step * fraction))


def _count_whole_numbers(values: NDArray[np.float32]) -> NDArray[np.int64] | None:
    """How often each 16-bit whole number occurs; None when there are other values."""
    if not values.size or not (values.min() >= 0.0 and values.max() <= LARGEST_16_BIT):  # false for NaN too
        return None
    whole = values.astype(np.uint16)
    return np.bincount(whole.ravel()) if np.array_equal(whole, values) else None
