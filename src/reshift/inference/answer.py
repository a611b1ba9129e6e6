"""What a model says about one image. Needs no network, and no torch."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.data.prepare import Geometry, restore
from reshift.inference.acquisition import Judged
from reshift.inference.calibration import Calibration


@dataclass(frozen=True)
class Result:
    """One image's answer. ``heatmap`` lies on the image's own pixels; NaN where the centre-crop did not look."""

    score: float
    p_value: float | None  # share of calibration normals scoring at least as high; None without calibration
    flag: bool | None  # score above the calibrated threshold
    heatmap: NDArray[np.float32]
    shift: float | None = None  # p-value of "taken like the training images"; small: another scanner, protocol or preparation
    unlike: bool | None = None  # surely another kind of image
    shift_features: float | None = None  # as shift, by a network's features; a lesion can make it small, too
    differs: tuple[str, ...] | None = None  # in what it is unlike the training images: "grey", "features"


class Looked(NamedTuple):
    """One image's outcome in the network's own grid."""

    score: float
    heatmap: NDArray[np.float32]
    geometry: Geometry
    judged: Judged | None


def answer(seen: Looked, calibration: Calibration | None) -> Result:
    """The answer on the image's own pixels, with what the calibration says of it."""
    p_value = calibration.p_value(seen.score) if calibration else None
    flag = seen.score > calibration.reference.image_threshold if calibration else None
    result = Result(seen.score, p_value, flag, restore(seen.heatmap, seen.geometry))
    return replace(result, **seen.judged._asdict()) if seen.judged else result
