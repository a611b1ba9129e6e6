"""The image that every reader returns: pixels as stored, with what is needed to interpret them; and percentiles of pixels.

A pixel takes up to 40 bytes while it is decoded and prepared, so the largest image takes 4 GB. Threads share one allowance of
pixels: many small images are read at the same time, or one large one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, local

import numpy as np
from numpy.typing import NDArray

LARGEST_16_BIT = 65_535
MAX_PIXELS = 100_000_000  # a 10,000×10,000 image; more is a mistake or an attack
MAX_READING = MAX_PIXELS  # pixels that all threads of a process decode and prepare at the same time
MAX_WAIT = 60.0  # seconds for other threads to finish; then an image is read all the same
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


_changed = Condition()
_in_use = 0  # pixels
_thread = local()  # claimed: this thread's part of them


@contextmanager
def reading() -> Iterator[None]:
    """What a thread decodes in the block counts against ``MAX_READING`` until its end."""
    global _in_use  # noqa: PLW0603 (one allowance for all threads)
    _thread.claimed = 0
    try:
        yield
    finally:
        with _changed:
            _in_use -= _thread.claimed
            del _thread.claimed
            _changed.notify_all()


def claim_pixels(pixels: int) -> None:
    """Before decoding in a ``reading`` block: wait until there is room. A thread that has claimed some already never waits."""
    global _in_use  # noqa: PLW0603
    if not hasattr(_thread, "claimed"):
        return
    with _changed:
        if not _thread.claimed:
            _changed.wait_for(lambda: not _in_use or _in_use + pixels <= MAX_READING, MAX_WAIT)
        _in_use += pixels
        _thread.claimed += pixels


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
