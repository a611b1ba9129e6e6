"""Text and marks burned into an image: a suspicion, by counting thin bright strokes that stand close together.

A letter or a caliper cross is made of lines a pixel or two wide that are much brighter than what lies left and right of them.
Anatomy has some of those too, how many depends on the kind of image; so an image is suspected when it has more of them in one
place than almost all normals have.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reshift.data.prepare import resize

STEP = 0.2  # of the image's grey range, that a stroke is brighter than its two neighbours
WINDOW = (7, 15)  # rows and columns in which strokes are counted: a short word of small type
FEWEST = 4  # stroke pixels in one window; less is never a suspicion
SIDES = (128, 256)  # sizes looked at: type may be large or small
ENOUGH, QUANTILE = 20, 0.95  # normals needed to know what is usual, and the share of them that is


def stroke_count(plane: NDArray[np.float32]) -> int:
    """Return the most stroke pixels in any window of a grey picture ``(H, W)``."""
    low, high = float(plane.min()), float(plane.max())
    if not high > low:
        return 0
    unit = ((plane.astype(np.float64) - low) / (high - low)).astype(np.float32)
    height, width = unit.shape
    counts: list[int] = []
    for side in SIDES:
        if counts and min(height, width) < side:  # enlarging shows nothing new
            break
        scale = min(1.0, side / min(height, width))
        counts.append(_most(resize(unit, max(1, round(height * scale)), max(1, round(width * scale)))))
    return max(counts)


def suspected(counts: Sequence[int], usual: Sequence[int]) -> NDArray[np.bool_]:
    """Which images may carry marks, given the counts of normals; with too few of those, none: brains alone have that many."""
    if len(usual) < ENOUGH:
        return np.zeros(len(counts), dtype=bool)
    limit = max(float(np.quantile(usual, QUANTILE)), FEWEST - 1)
    return np.asarray(np.asarray(counts) > limit)


def _most(unit: NDArray[np.float32]) -> int:
    strokes = unit[:, 1:-1] - np.maximum(unit[:, :-2], unit[:, 2:]) > STEP  # (H, W - 2)
    rows, columns = (min(size, length) for size, length in zip(WINDOW, strokes.shape, strict=True))
    if columns < 1:
        return 0
    sums = np.pad(strokes.astype(np.int64).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    within = sums[rows:, columns:] - sums[:-rows, columns:] - sums[rows:, :-columns] + sums[:-rows, :-columns]
    return int(within.max())
