"""Thresholds, p-values and the colour scale, from the scores of normal images alone."""

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from reshift.config import CalibrateConfig, Frozen
from reshift.errors import UserError
from reshift.evaluation.metrics.pixels import PixelHistogram
from reshift.inference.acquisition import DESCRIPTOR_LENGTH, FEATURE_LENGTH, Acquisition, Finite, Sorted
from reshift.inference.false_positives import Owners, SubjectShares, image_threshold, own_share, rate_range, weight_above

FEW = 100  # independent normals; below this the thresholds carry a warning

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Reference(Frozen):
    """What one set of normals says. In files of earlier versions each image counts as a subject of its own."""

    images: int = Field(ge=1)
    image_threshold: Finite
    pixel_threshold: Finite  # the method's own, where it has a rule, else the quantile's
    quantile_threshold: Finite | None = None  # of pixels, by the paper's rule; None in older files: pixel_threshold is it
    pixel_share: Share | None = None  # of these normals' pixels above pixel_threshold
    pixel_range: tuple[Share, Share] | None = None  # where that share may lie for new subjects, see share_range
    scores: Sorted = Field(repr=False)  # the p-value table
    owners: tuple[Annotated[int, Field(ge=0)], ...] = Field((), repr=False)  # subject of each score; empty: one image each

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.images != len(self.scores):
            raise ValueError(f"images is {self.images}, but there are {len(self.scores)} scores")
        if self.owners and (len(self.owners) != self.images or set(self.owners) != set(range(max(self.owners) + 1))):
            raise ValueError("owners does not number the subjects of the scores")
        return self

    @cached_property
    def by_subject(self) -> Owners:
        """The number of each score's subject."""
        return np.array(self.owners or range(self.images), dtype=np.intp)

    @cached_property
    def subjects(self) -> int:
        """How many subjects the normals come from."""
        return max(self.owners) + 1 if self.owners else self.images

    @property
    def normals(self) -> str:
        """How many, in words."""
        return f"{self.images} normals" + (f" of {self.subjects} subjects" if self.subjects < self.images else "")

    @cached_property
    def _tails(self) -> list[float]:
        """The weight of each score and all above it, subjects weighing one each; 0 at the end."""
        weights = 1.0 / np.bincount(self.by_subject)[self.by_subject]
        return [*weights[::-1].cumsum()[::-1].tolist(), 0.0]

    def p_value(self, score: float) -> float:
        """(1 + Σ over subjects of the share of their images scoring at least this high) / (1 + subjects).

        A random image of a new subject has p ≤ u with a probability of at most u, for every u and any number of subjects, if
        the subjects are exchangeable with the new one. Never 0. Equal scores count as high.
        """
        return (1.0 + self._tails[bisect_left(self.scores, score)]) / (1.0 + self.subjects)

    @cached_property
    def promised_rate(self) -> float:
        """The largest p-value of a flagged image: the mean false-positive rate is not above it, whatever the scores are."""
        below = bisect_left(self.scores, np.nextafter(self.image_threshold, np.inf))  # scores up to the threshold
        return (1.0 + self._tails[below]) / (1.0 + self.subjects)

    def independent_images(self, rate: float) -> float:
        """How many images of different subjects would say as much about a threshold for ``rate``."""
        return self.subjects / own_share(self.by_subject, rate)

    def false_positive_range(self, rate: float) -> tuple[float, float]:
        """Where the true false-positive rate of the image threshold may lie, see ``rate_range``."""
        above = weight_above(np.array(self.scores), self.by_subject, self.image_threshold)
        low, high = rate_range(above, own_share(self.by_subject, rate), self.subjects, self.images)
        return float(low), float(high)


class Calibration(Frozen):
    """Stored in the bundle; redone at any time without retraining."""

    image_quantile: float = Field(gt=0.0, lt=1.0)
    pixel_quantile: float = Field(gt=0.0, lt=1.0)
    default: Literal["held-out", "training"]
    held_out: Reference | None
    training: Reference | None
    acquisition: Acquisition | None = None
    smallest_tissue: Share | None = None  # share of an image; one with less is not judged, see tissue.py

    @model_validator(mode="after")
    def _fits(self) -> Self:
        known = self.acquisition
        features = known.features if known else None
        if known and not (known.distances and len(known.mean) == DESCRIPTOR_LENGTH):
            raise ValueError("the acquisition has no distances, or is of another length")
        if features and not (features.distances and features.length == FEATURE_LENGTH):
            raise ValueError("the image features have no distances, or are of another length")
        return self

    @property
    def reference(self) -> Reference:
        """The normals that thresholds and p-values come from."""
        wanted, other = (self.held_out, self.training) if self.default == "held-out" else (self.training, self.held_out)
        chosen = wanted or other
        if chosen is None:
            raise ValueError("a calibration without any normals")
        return chosen

    @property
    def heat_scale(self) -> float:
        """The map value drawn in full colour, for every image alike: twice the pixel threshold, or 1 if not positive."""
        return 2.0 * self.reference.pixel_threshold if self.reference.pixel_threshold > 0.0 else 1.0

    @property
    def quantile_threshold(self) -> float:
        """The pixel threshold by the paper's rule: the quantile of the normals' pixels."""
        known = self.reference.quantile_threshold
        return self.reference.pixel_threshold if known is None else known

    def p_value(self, score: float) -> float:
        """The share of normals scoring at least this high, see ``Reference.p_value``."""
        return self.reference.p_value(score)

    def warnings(self) -> list[str]:
        """What a reader must know before trusting the thresholds."""
        out, chosen, rate = [], self.reference, 1.0 - self.image_quantile
        if self.default == "held-out" and self.held_out is None:
            out.append("no normals were held out: thresholds come from training images and are optimistic")
        if chosen.independent_images(rate) >= FEW:
            return out
        low, high = chosen.false_positive_range(rate)
        worth = f"the true false-positive rate may lie anywhere between {low:.1%} and {high:.1%} (95 % interval)"
        if (chosen.subjects + 1) * rate < 1.0 - 1e-9:
            worth += f"; {rate:.0%} cannot be promised, but {chosen.promised_rate:.1%} can"
        return [*out, f"thresholds come from only {chosen.normals}: {worth}"]


def reference(
    scores: Sequence[float],
    subjects: Sequence[str],
    pixels: PixelHistogram,
    config: CalibrateConfig,
    *,
    shares: SubjectShares | None = None,
    pixel_threshold: float | None = None,
    plain: bool = False,
) -> Reference | None:
    """Summarise the scores and pixels of some normals; None when there are none. ``pixel_threshold`` is the method's own.

    ``plain``: the image threshold is the quantile of all images, as in the paper, whoever they are of.
    """
    quantile = pixels.quantile(config.pixel_quantile)
    if not scores or quantile is None:
        return None
    if not np.isfinite(scores).all():
        raise UserError("a normal image has a score that is not finite: the model has diverged; train it again")
    _, numbers = np.unique(np.asarray(subjects), return_inverse=True)
    order = np.lexsort((numbers, np.asarray(scores)))
    ordered, owners = np.asarray(scores, dtype=np.float64)[order], numbers[order].astype(np.intp)
    pixel = quantile if pixel_threshold is None else pixel_threshold
    share, wanted = pixels.share_above(pixel), config.image_quantile
    threshold = float(np.quantile(ordered, wanted)) if plain else image_threshold(ordered, owners, 1.0 - wanted)
    return Reference(
        images=len(scores),
        image_threshold=threshold,
        pixel_threshold=pixel,
        quantile_threshold=quantile,
        pixel_share=share,
        pixel_range=shares.range(pixel, share) if shares else None,
        scores=tuple(ordered.tolist()),
        owners=() if len(set(subjects)) == len(subjects) else tuple(owners.tolist()),
    )
