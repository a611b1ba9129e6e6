"""Percentiles of pictures. Most hold the whole numbers of a file, which are quicker counted than put in order."""

import numpy as np
from numpy.typing import NDArray

LARGEST = 65_535  # of 16 bits


def percentiles(values: NDArray[np.float32], wanted: tuple[float, ...]) -> NDArray[np.float64]:
    """``np.percentile``, to the bit."""
    counts = _counted(values)
    if counts is None:
        return np.asarray(np.percentile(values, wanted), dtype=np.float64)
    place = np.asarray(wanted) / 100.0 * (values.size - 1)
    below = np.floor(place).astype(np.int64)
    up_to = np.cumsum(counts)
    low, high = (np.searchsorted(up_to, np.minimum(rank, values.size - 1), side="right") for rank in (below, below + 1))
    share, step = place - below, (high - low).astype(np.float64)
    return np.asarray(np.where(share >= 0.5, high - step * (1.0 - share), low + step * share))  # numpy's own way to round


def _counted(values: NDArray[np.float32]) -> NDArray[np.int64] | None:
    """How often each whole number occurs, if there is nothing else."""
    if not values.size or not (values.min() >= 0.0 and values.max() <= LARGEST):  # NaN is neither
        return None
    whole = values.astype(np.uint16)
    return np.bincount(whole.ravel()) if np.array_equal(whole, values) else None
