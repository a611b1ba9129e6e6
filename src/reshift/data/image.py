"""The image that every reader returns: pixels as stored, with what is needed to interpret them; and percentiles of pixels.

Pixels stay 8 or 16 bits wide, as stored, until the few rows at hand are scaled (docs/security.md has what that takes). Threads
share one allowance of pixels: many small images are read at the same time, or one large one.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, get_ident, local
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshift.config import DataConfig

LARGEST_16_BIT = 65_535
MAX_PIXELS = DataConfig().max_pixels  # a 10,000×10,000 image; more is a mistake or an attack
MAX_READING = MAX_PIXELS  # pixels that all threads of a process decode and prepare at the same time
MAX_WAIT = 10.0  # seconds that an image counts: one that takes longer may be slow to decode, and must not stop the others
BLOCK = 2**21  # values that are computed with at the same time
MIN_SIDE = 16  # pixels; a smaller image shows nothing
TOO_SMALL = f"too small; at least {MIN_SIDE}×{MIN_SIDE} is needed; remove it"


@dataclass(frozen=True)
class Image:
    """One 2-D image. ``bits`` is the stored depth (8, 16, or 32 for float), which decides how it is scaled."""

    pixels: NDArray[Any]  # (H, W, C), stored values: uint8, uint16 or float32
    bits: int
    source: Path
    window: tuple[float, float] | None = None  # grey range to scale by, from the volume it is a slice of
    spacing: tuple[float, float] = (1.0, 1.0)  # millimetres from row to row and from column to column


_changed = Condition()
_claims: dict[int, tuple[int, float]] = {}  # thread → pixels, and since when
_thread = local()  # reading: whether it is in a ``reading`` block


@contextmanager
def reading() -> Iterator[None]:
    """What a thread decodes in the block counts against ``MAX_READING`` until its end, or for ``MAX_WAIT`` seconds."""
    _thread.reading = True
    try:
        yield
    finally:
        with _changed:
            _thread.reading = False
            _claims.pop(get_ident(), None)
            _changed.notify_all()


def claim_pixels(pixels: int) -> None:
    """Before decoding in a ``reading`` block: wait until there is room. A thread that has claimed some already never waits."""
    if not getattr(_thread, "reading", False):
        return
    with _changed:
        before, since = _claims.get(get_ident(), (0, time.monotonic()))
        while not before and (left := _seconds_to_wait(pixels)) > 0:
            _changed.wait(left)
        _claims[get_ident()] = before + pixels, since if before else time.monotonic()


def _seconds_to_wait(pixels: int) -> float:
    """0 where there is room, else the time until the oldest claim no longer counts."""
    now = time.monotonic()
    counted = [(claimed, since) for claimed, since in _claims.values() if now - since < MAX_WAIT]
    if not counted or sum(claimed for claimed, _ in counted) + pixels <= MAX_READING:
        return 0.0
    return max(1e-3, min(since for _, since in counted) + MAX_WAIT - now)


def percentiles(values: NDArray[Any], wanted: tuple[float, ...]) -> NDArray[np.float64]:
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


def _count_whole_numbers(values: NDArray[Any]) -> NDArray[np.int64] | None:
    """How often each 16-bit whole number occurs; None when there are other values."""
    if not values.size or not (values.min() >= 0.0 and values.max() <= LARGEST_16_BIT):  # false for NaN too
        return None
    length, counts = int(values.max()) + 1, np.zeros(1, np.int64)
    for rows in row_blocks(values):  # counting takes eight bytes for every value
        whole = rows.astype(np.uint16)
        if not np.array_equal(whole, rows):
            return None
        counts = counts + np.bincount(whole.ravel(), minlength=length)
    return counts


def row_blocks(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Rows that follow each other, some ``BLOCK`` values at a time: what is computed from them takes little memory."""
    step = max(1, BLOCK * len(values) // max(1, values.size))
    return (values[at : at + step] for at in range(0, len(values), step))
