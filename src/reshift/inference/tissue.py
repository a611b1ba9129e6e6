"""Slices with less tissue than any normal had, such as the top and bottom of a head: nothing is known of them.

Where the background of the normals is empty, the smallest share of tissue among them is stored with the thresholds. An image
with less is not judged: its score is cut off at the threshold, its heat-map at 0, and its record says so.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshift.inference.acquisition import tissue_share
from reshift.inference.calibration import Calibration
from reshift.inference.stream import Sample, has_little_tissue

BLACK = -0.97  # of [-1, 1]
MOST = 0.95  # of the pixels at the border, and of the normals


def has_empty_border(pixels: NDArray[np.float32]) -> bool:
    """Whether the outermost pixels of a prepared image ``(C, H, W)`` are black."""
    dark = pixels.max(0) <= BLACK
    border = np.concatenate([dark[0], dark[-1], dark[1:-1, 0], dark[1:-1, -1]])
    return bool(border.mean() >= MOST)


def smallest_tissue(shares: Sequence[float], empty: Sequence[bool]) -> float | None:
    """The smallest share of tissue among normals; None where the background is not empty, and area says little."""
    return min(shares) if shares and np.mean(empty) >= MOST else None


def withhold(sample: Sample[Any], calibration: Calibration | None) -> None:
    """Cut off the score and the heat-map of an image that is not judged, once."""
    if calibration is None or sample.not_judged is not None or not has_little_tissue(sample, calibration.smallest_tissue):
        return
    reference, share = calibration.reference, tissue_share(sample.descriptor)
    why = f"too little tissue: {share:.1%} of the image, normals have at least {calibration.smallest_tissue:.1%}"
    if sample.score > reference.image_threshold:
        why += f"; its score was {sample.score:.6g}"
    sample.not_judged, sample.score = why, min(sample.score, reference.image_threshold)
    sample.heatmap = np.minimum(sample.heatmap, np.float32(min(0.0, reference.pixel_threshold)))
