"""Float32 values as integers: the bins of every pixel histogram, by leading bits, so that the range of values need not be known.

A *raw* bin is the float's bits without the last ``drop``: one shift per pixel. Negatives then run backwards and after the
rest; ``ordered`` corrects this once, when a histogram is read.
"""

import numpy as np
from numpy.typing import NDArray

SIGN = np.uint32(1 << 31)
LOWEST, HIGHEST = np.uint32(0x007FFFFF), np.uint32(0xFF800000)  # keys of -inf and inf; NaNs lie beyond


def bits(values: NDArray[np.floating]) -> NDArray[np.uint32]:
    """Return the bits of each value as float32; -0 becomes 0, its equal."""
    same: NDArray[np.float32] = np.add(values, np.float32(0.0), dtype=np.float32, casting="same_kind")
    return same.view(np.uint32)


def ordered(raw: NDArray[np.integer], drop: int) -> NDArray[np.uint32]:
    """Raw bins → keys in the order of the values: flip all bits of negatives, only the sign of the others."""
    whole = raw.astype(np.uint32) << np.uint32(drop)
    return np.where(whole & SIGN, ~whole, whole | SIGN) >> np.uint32(drop)


def edges(keys: NDArray[np.uint32], drop: int, *, top: bool) -> NDArray[np.float32]:
    """Return the largest (``top``) or smallest float32 of each bin, given by its key."""
    key = (keys << np.uint32(drop)) | np.uint32((1 << drop) - 1 if top else 0)
    key = np.clip(key, LOWEST, HIGHEST)  # an infinity shares its bin with NaNs only
    found: NDArray[np.float32] = np.where(key & SIGN, key ^ SIGN, ~key).view(np.float32)
    return found


def ascending(raw: NDArray[np.integer], drop: int) -> NDArray[np.intp]:
    """Return the order that puts ascending raw bins in the order of their values: negatives first, reversed."""
    positive = int(np.searchsorted(raw, 1 << (31 - drop)))
    return np.concatenate([np.arange(positive, len(raw))[::-1], np.arange(positive)])


def grouped(keys: NDArray[np.integer], *columns: NDArray[np.integer]) -> list[NDArray[np.int64]]:
    """Add up the counts in ``columns`` over runs of equal ``keys``; the distinct keys come first."""
    starts = np.flatnonzero(np.diff(keys, prepend=-1)) if len(keys) else np.zeros(0, np.intp)
    sums = [np.add.reduceat(column, starts) if len(starts) else column[:0] for column in columns]
    return [part.astype(np.int64) for part in (keys[starts], *sums)]
