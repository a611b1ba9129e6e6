"""Suspect burned-in text and marks by counting thin bright strokes that are close together.

A letter or a caliper cross has lines one or two pixels wide that are much brighter than their left and right neighbours.
Anatomy has some too, and how many depends on the kind of image. So an image is suspected when it has more of them in one
place than almost all normal images.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reshift.data.prepare import resize

STEP = 0.2  # share of the grey range by which a stroke is brighter than its two neighbours
WINDOW = (7, 15)  # rows and columns in which strokes are counted: a short word of small type
MIN_STROKES = 4  # stroke pixels in one window
SIDES = (128, 256)  # image sizes at which strokes are counted: text may be large or small
MIN_NORMALS, QUANTILE = 20, 0.95  # normals needed for a limit, and the share of them below it


def stroke_count(plane: NDArray[np.float32]) -> int:
    """Return the most stroke pixels in any window of a grey image ``(H, W)``."""
    low, high = float(plane.min()), float(plane.max())
    if not high > low:
        return 0
    unit = ((plane.astype(np.float64) - low) / (high - low)).astype(np.float32)
    height, width = unit.shape
    counts: list[int] = []
    for side in SIDES:
        if counts and min(height, width) < side:  # enlarging adds nothing
            break
        scale = min(1.0, side / min(height, width))
        counts.append(_max_in_window(resize(unit, max(1, round(height * scale)), max(1, round(width * scale)))))
    return max(counts)


def suspected(counts: Sequence[int], usual: Sequence[int]) -> NDArray[np.bool_]:
    """Which images may have marks, given the counts of normal images; none if there are too few normals to compare with."""
    if len(usual) < MIN_NORMALS:
        return np.zeros(len(counts), dtype=bool)
    limit = max(float(np.quantile(usual, QUANTILE)), MIN_STROKES - 1)
    return np.asarray(np.asarray(counts) > limit)


def _max_in_window(unit: NDArray[np.float32]) -> int:
    strokes = unit[:, 1:-1] - np.maximum(unit[:, :-2], unit[:, 2:]) > STEP  # (H, W - 2)
    rows, columns = (min(size, length) for size, length in zip(WINDOW, strokes.shape, strict=True))
    if columns < 1:
        return 0
    sums = np.pad(strokes.astype(np.int64).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    within = sums[rows:, columns:] - sums[:-rows, columns:] - sums[rows:, :-columns] + sums[:-rows, :-columns]
    return int(within.max())
