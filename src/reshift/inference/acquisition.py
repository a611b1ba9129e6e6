"""Is this image of the kind the model was trained on? A check of the acquisition, not of the anatomy.

A detector calls everything unlike its training images abnormal: another scanner, another protocol, an inverted image. So each
image is described by a few numbers that depend on the acquisition (grey-value quantiles, contrast, sharpness, noise, field of
view) and hardly on a lesion. If they are far from those of the training normals, its score says little about disease. Where the
extra ``features`` is installed, the features of a network trained on photographs are compared, too: they tell other organs and
modalities better, but see lesions as well, so they have a p-value of their own and decide only where the distance is huge.
"""

import base64
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator

from reshift.config import Frozen
from reshift.errors import UserError

QUANTILES = (0.05, 0.2, 0.35, 0.5, 0.65, 0.8)  # not the extremes: those are where a bright or dark lesion shows
MAX_P_VALUE = 0.05  # p-value up to which an image counts as unusual; one in twenty normals does
MAX_UNUSUAL_SHARE = 0.4  # share of unusual images above which the whole run is called unlike the training images
MIN_NORMALS = 19  # held-out normals needed for features to decide: the farthest of a handful is no bound
MAX_DIRECTIONS = 8  # of the features, at most; more would be noise of the training sample
DESCRIPTIONS = {"grey": "grey values, contrast, sharpness or field of view", "features": "image features"}

DESCRIPTOR_LENGTH = len(QUANTILES) + 4  # see ``describe``
FEATURE_LENGTH = 1280  # of the feature network, see ``Model.launch_features``

Rows = NDArray[np.float64]


def tissue_share(descriptor: Rows) -> float:
    """The share of the image that is not dark, of what ``describe`` returns."""
    return float(descriptor[-1])


def _ascending(values: tuple[float, ...]) -> tuple[float, ...]:
    if any(a > b for a, b in pairwise(values)):
        raise ValueError("is not sorted")
    return values


Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Sorted = Annotated[tuple[Finite, ...], AfterValidator(_ascending)]


def describe(pixels: NDArray[np.float32]) -> Rows:
    """Network input ``(C, H, W)`` in [-1, 1] → its descriptor."""
    grey = pixels[0] if len(pixels) == 1 else pixels.mean(0)
    inside = grey > -0.8  # the dark surroundings are left out; their share is a number of its own
    share = inside.mean()
    if inside.sum() < 100:
        inside = np.ones_like(inside)
    quantiles = np.quantile(grey[inside].astype(np.float64), QUANTILES)
    contrast = quantiles[-1] - quantiles[1] + 1e-3
    core = inside[1:-1, 1:-1]
    left, right, above, below = grey[1:-1, :-2], grey[1:-1, 2:], grey[:-2, 1:-1], grey[2:, 1:-1]
    steep = np.square(right - left) + np.square(below - above)
    bent = np.abs(4 * grey[1:-1, 1:-1] - left - right - above - below)
    slope_squared, bend = (float(np.median(v[core])) if core.any() else 0.0 for v in (steep, bent))
    # Sharpness is slope per contrast, noise what a second difference leaves of a smooth image; both as medians.
    sharpness = np.sqrt(slope_squared) / contrast
    texture = (np.log(contrast), np.log(sharpness + 1e-3), np.log(bend + 1e-3), share)
    return np.array([*quantiles, *texture])


class DistanceReference(Frozen, ABC):
    """How far held-out normals lie from the training normals, by a distance that each subclass defines."""

    distances: Sorted = Field(repr=False)  # of held-out normals, sorted

    @abstractmethod
    def distance(self, row: Rows) -> float:
        """How far one image's numbers lie from the training normals."""

    def refit(self, rows: Rows) -> Self:
        """The same training normals, compared with other held-out normals."""
        return self.model_copy(update={"distances": tuple(sorted(self.distance(row) for row in rows))})

    def p_value(self, row: Rows) -> float:
        """Return the share of held-out normals at least as far away, this image counted; small: another kind of image."""
        at_least = len(self.distances) - int(np.searchsorted(self.distances, self.distance(row), side="left"))
        return (1 + at_least) / (1 + len(self.distances))

    def unlike(self, row: Rows) -> bool:
        """Twice as far as the farthest held-out normal: surely another kind of image, however few normals there are."""
        return self.distance(row) > 2 * self.distances[-1]


class Features(DistanceReference):
    """Where the training normals' network features lie: principal directions, and how far off them normals are."""

    network: str
    mean: str = Field(repr=False)  # (d,); this and the next by ``pack``: written out, the numbers would fill 200 kB
    basis: str = Field(repr=False)  # (k, d) orthonormal
    spread: tuple[Positive, ...] = Field(min_length=1)  # (k,) standard deviations along the basis
    off: tuple[Finite, Positive]  # mean and standard deviation of the training normals' distance to the subspace

    @model_validator(mode="after")
    def _fits(self) -> Self:
        try:
            fits = len(unpack(self.basis)) == len(self.spread) * len(unpack(self.mean))
        except ValueError:
            fits = False
        if not fits:  # no ValueError: pydantic's message would quote all of it
            raise UserError("the reference of image features is damaged; copy the bundle again")
        return self

    @property
    def length(self) -> int:
        """Of an image's feature vector."""
        return len(unpack(self.mean))

    def distance(self, row: Rows) -> float:
        """Root of the mean square in standard deviations within the subspace, plus the squared excess off it in its own."""
        mean, basis = unpack(self.mean), unpack(self.basis).reshape(len(self.spread), -1)
        off = row - mean
        along = basis @ off
        excess = max(0.0, float(np.linalg.norm(off - along @ basis)) - self.off[0]) / self.off[1]
        return float(np.sqrt(np.square(along / self.spread).mean() + excess**2))


class Acquisition(DistanceReference):
    """Where the training normals lie, and how far normals that were not trained on lie from there."""

    mean: tuple[Finite, ...]
    precision: tuple[tuple[Finite, ...], ...] = Field(repr=False)  # inverse covariance
    features: Features | None = None  # None without the extra ``features``, and in older bundles

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if {len(self.mean)} != {len(self.precision), *map(len, self.precision)}:
            raise ValueError("mean and precision differ in length")
        return self

    def distance(self, row: Rows) -> float:
        """Mahalanobis distance to the training normals."""
        off = row - np.asarray(self.mean)
        return float(np.sqrt(max(0.0, off @ np.asarray(self.precision) @ off)))


class AcquisitionCheck(NamedTuple):
    """What the check says about one image."""

    shift: float  # p-value of the grey part: the same with and without the extra
    shift_features: float | None
    unlike: bool  # surely another kind of image, by either part
    differs: tuple[str, ...]  # keys of DESCRIPTIONS


def check_acquisition(known: Acquisition, grey: Rows, features: Rows | None) -> AcquisitionCheck:
    """Check one image by both parts, or by its grey values alone where there are no features."""
    shift, far = known.p_value(grey), known.unlike(grey)
    seen = known.features if features is not None else None
    if seen is None or features is None:
        return AcquisitionCheck(shift, None, far, ("grey",) if far or shift <= MAX_P_VALUE else ())
    unlike_features = len(seen.distances) >= MIN_NORMALS and seen.unlike(features)
    # A small feature p-value alone does not count: it is as often a lesion as another scanner (docs/evaluation.md).
    exceeded = {"grey": far or shift <= MAX_P_VALUE, "features": unlike_features}
    return AcquisitionCheck(
        shift, seen.p_value(features), far or unlike_features, tuple(name for name, yes in exceeded.items() if yes)
    )


def fit_acquisition(training: Rows, held_out: Rows) -> Acquisition | None:
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
    return fitted.refit(others)


def fit_features(training: Rows, held_out: Rows, network: str) -> Features | None:
    """Fit to feature vectors ``(n, d)``; held-out normals as for ``fit_acquisition``; None for fewer than five images."""
    n = len(training)
    k = min(MAX_DIRECTIONS, (n - 1) // 4)
    if k < 1:
        return None
    mean = pack(training.mean(0))
    _, sizes, directions = np.linalg.svd(training - unpack(mean), full_matrices=False)
    basis = pack(directions[:k])
    spread = np.maximum(sizes[:k] / np.sqrt(n - 1), 1e-6)
    centred, rounded = training - unpack(mean), unpack(basis).reshape(k, -1)  # as they will be read back
    off = np.linalg.norm(centred - centred @ rounded.T @ rounded, axis=1)
    typical = float(off.mean()), max(float(off.std()), 1e-3 * float(off.mean()), 1e-6)
    fitted = Features(network=network, mean=mean, basis=basis, spread=tuple(spread.round(6).tolist()), off=typical, distances=())
    return fitted.refit(held_out if len(held_out) else training)


def pack(values: Rows) -> str:
    """Numbers as text, base64 of little-endian float16: a part in two thousand is far below the spread of any image."""
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f2").tobytes()).decode()


def unpack(text: str) -> Rows:
    """The numbers of ``pack``, flat; ValueError if it is damaged."""
    values = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f2").astype(np.float64)
    if not len(values) or not np.isfinite(values).all():
        raise ValueError("damaged numbers")
    return values


def run_warning(found: Sequence[Sequence[str]]) -> str | None:
    """Say so when too many images of a run are of another kind, and in what; ``found`` holds each image's ``differs``."""
    unusual = sum(bool(parts) for parts in found)
    if not found or unusual / len(found) <= MAX_UNUSUAL_SHARE:
        return None
    counts = {name: sum(name in parts for parts in found) for name in DESCRIPTIONS}
    described = " and in ".join(f"{DESCRIPTIONS[name]} ({count})" for name, count in counts.items() if count)
    return (
        f"{unusual} of {len(found)} images are unlike the training images in {described}: another scanner, protocol, body part "
        "or preparation? Their scores may say more about that than about disease"
    )
