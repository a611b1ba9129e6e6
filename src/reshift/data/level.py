"""The grey level of an organ: its median, by which images of different gain can be made alike.

MR has no unit: the same tissue is 80 in one scan and 160 in the next. Where an image shows an organ on an empty background,
dividing by the organ's median removes that. Where the grey values do carry a meaning, it would remove what is looked for:
so a rule decides from the normals (training/level.py).
"""

import numpy as np
from numpy.typing import NDArray

DARK = 0.05  # of [0, 1]; darker pixels are no tissue
TARGET = 0.4  # the level that every organ's median is brought to
SHOULDER, SOFTNESS = 0.8, 0.4  # brighter values are compressed, so that nothing is cut off at white


def median_level(unit: NDArray[np.float32]) -> float | None:
    """The median of the pixels that are not dark, of an image in [0, 1]; None where all are."""
    tissue = unit[unit > DARK]
    return float(np.median(tissue)) if tissue.size else None


def divide_by_median(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    """Bring the median of ``(C, H, W)`` in [-1, 1] to one level; black stays black, and white is approached softly."""
    unit = (pixels + np.float32(1.0)) / np.float32(2.0)
    level = median_level(unit)
    if level is None:
        return pixels
    scaled = unit * np.float32(TARGET / max(level, DARK))
    over = SHOULDER + (1.0 - SHOULDER) * np.tanh((scaled - SHOULDER) / SOFTNESS)
    return (2.0 * np.where(scaled < SHOULDER, scaled, over) - 1.0).astype(np.float32)
