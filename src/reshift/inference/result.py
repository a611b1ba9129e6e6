"""What a calibrated model says of one image: p-value, flag, and whether the image is of the kind it was trained on."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.data.prepare import restore
from reshift.inference.acquisition import check_acquisition
from reshift.inference.calibration import Calibration
from reshift.inference.stream import Sample
from reshift.inference.tissue import withhold


class Assessment(NamedTuple):
    """What the calibration says of an image; all None without one."""

    p_value: float | None = None  # share of calibration normals that score at least as high
    flag: bool | None = None  # the score exceeds the calibrated threshold
    shift: float | None = None  # p-value of "acquired like the training images"; small: another scanner, protocol or preparation
    unlike: bool | None = None  # surely another kind of image
    shift_features: float | None = None  # as shift, by a network's features; a lesion can make it small, too
    differs: tuple[str, ...] | None = None  # in what it is unlike the training images: "grey", "features"
    not_judged: str | None = None  # why, where the calibration says nothing about such an image


def assess(sample: Sample[Any], calibration: Calibration | None) -> Assessment:
    """Compare an image's score, grey-value descriptor and network features with those of the calibration normals."""
    if calibration is None:
        return Assessment()
    flag = sample.score > calibration.reference.image_threshold
    found = Assessment(calibration.p_value(sample.score), flag, not_judged=sample.not_judged)
    if calibration.acquisition is None:
        return found
    return found._replace(**check_acquisition(calibration.acquisition, sample.descriptor, sample.features)._asdict())


@dataclass(frozen=True)
class Result:
    """One image's result. ``heatmap`` lies on the image's own pixels; NaN where the centre-crop left it out."""

    score: float
    p_value: float | None
    flag: bool | None
    heatmap: NDArray[np.float32]
    shift: float | None = None
    unlike: bool | None = None
    shift_features: float | None = None
    differs: tuple[str, ...] | None = None
    not_judged: str | None = None

    def numbers(self) -> dict[str, Any]:
        """Everything but the heat-map, as a record holds it."""
        return {name: value for name, value in vars(self).items() if name != "heatmap"}


def finish(sample: Sample[Any], calibration: Calibration | None) -> Result:
    """The last step of a sample's way: the heat-map on the image's own pixels, and what the calibration says."""
    withhold(sample, calibration)
    heatmap = restore(sample.heatmap, sample.prepared.geometry)
    return Result(score=sample.score, heatmap=heatmap, **assess(sample, calibration)._asdict())
