"""Is this image of the kind the model was trained on? A check of the acquisition, not of the anatomy.

A detector calls everything unlike its training images abnormal: another scanner, another protocol, an inverted scan. Each image
is described by a few numbers that change with how it was taken (grey-value quantiles, contrast, sharpness, noise, field of view)
and hardly with a lesion; far from the training normals in these, its score says little about disease.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from reshift.config import Frozen

QUANTILES = (0.05, 0.2, 0.35, 0.5, 0.65, 0.8)  # not the extremes: those are where a bright or dark lesion shows
ODD = 0.05  # p-value up to which an image counts as odd; one in twenty normals is
MANY = 0.4  # share of odd images above which the whole run is called unlike the training images


def describe(pixels: NDArray[np.float32]) -> NDArray[np.float64]:
    """Network input ``(C, H, W)`` in [-1, 1] → its descriptor."""
    grey = pixels.mean(0, dtype=np.float64)
    inside = grey > -0.8  # the dark surroundings are left out; their share is a number of its own
    if inside.sum() < 100:
        inside = np.ones_like(inside)
    quantiles = np.quantile(grey[inside], QUANTILES)
    contrast = quantiles[-1] - quantiles[1] + 1e-3
    core = inside[1:-1, 1:-1]
    dx, dy = (grey[1:-1, 2:] - grey[1:-1, :-2])[core], (grey[2:, 1:-1] - grey[:-2, 1:-1])[core]
    second = (grey[1:-1, 1:-1] * 4 - grey[:-2, 1:-1] - grey[2:, 1:-1] - grey[1:-1, :-2] - grey[1:-1, 2:])[core]
    slope, bend = (np.median(np.abs(v)) if v.size else 0.0 for v in (np.hypot(dx, dy), second))
    # Sharpness is slope per contrast, noise what a second difference leaves of a smooth picture; both as medians.
    texture = (np.log(contrast), np.log(slope / contrast + 1e-3), np.log(bend + 1e-3), (grey > -0.8).mean())
    return np.array([*quantiles, *texture])


class Acquisition(Frozen):
    """Where the training normals lie, and how far normals that were not trained on lie from there."""

    mean: tuple[float, ...]
    precision: tuple[tuple[float, ...], ...] = Field(repr=False)  # inverse covariance
    distances: tuple[float, ...] = Field(repr=False)  # of held-out normals, sorted

    def distance(self, descriptor: NDArray[np.float64]) -> float:
        """Mahalanobis distance to the training normals."""
        off = descriptor - np.asarray(self.mean)
        return float(np.sqrt(max(0.0, off @ np.asarray(self.precision) @ off)))

    def seen_from(self, descriptors: NDArray[np.float64]) -> "Acquisition":
        """Return the same training normals, judged by other held-out normals."""
        return self.model_copy(update={"distances": tuple(sorted(self.distance(row) for row in descriptors))})

    def p_value(self, descriptor: NDArray[np.float64]) -> float:
        """Return the share of held-out normals at least as far away, this image counted; small: another kind of image."""
        at_least = len(self.distances) - int(np.searchsorted(self.distances, self.distance(descriptor), side="left"))
        return (1 + at_least) / (1 + len(self.distances))

    def unlike(self, descriptor: NDArray[np.float64]) -> bool:
        """Twice as far as the farthest held-out normal: surely another kind of image, however few normals there are."""
        return self.distance(descriptor) > 2 * self.distances[-1]


def fit_acquisition(training: NDArray[np.float64], held_out: NDArray[np.float64]) -> Acquisition | None:
    """Fit to descriptors ``(n, d)``; without held-out normals the training ones stand in, and distances are optimistic."""
    if len(training) < 4:
        return None
    mean = training.mean(0)
    covariance = np.cov(training, rowvar=False)
    # Shrink towards the diagonal: with few images the smallest directions are noise, and noise is what would be divided by.
    share = min(0.5, training.shape[1] / len(training))
    covariance = (1 - share) * covariance + share * np.diag(np.diag(covariance)) + 1e-6 * np.eye(len(mean))
    precision = np.linalg.inv(covariance)
    fitted = Acquisition(mean=tuple(mean.tolist()), precision=tuple(map(tuple, precision.tolist())), distances=())
    others = held_out if len(held_out) else training
    return fitted.seen_from(others)


def run_warning(shifts: Sequence[float], unlike: int) -> str | None:
    """Say so when too many images of a run are of another kind; ``shifts`` are their p-values."""
    odd = max(unlike, sum(p <= ODD for p in shifts))
    if not shifts or odd / len(shifts) <= MANY:
        return None
    return (
        f"{odd} of {len(shifts)} images are unlike the training images in grey values, contrast, sharpness or field of view: "
        "another scanner, protocol or preparation? Their scores may say more about that than about disease"
    )
