"""Thresholds, p-values and the colour scale, from the scores of normal images alone."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from reshift.config import CalibrateConfig, Frozen
from reshift.errors import UserError
from reshift.evaluation.metrics.pixels import PixelHistogram
from reshift.inference.acquisition import DESCRIPTOR_LENGTH, FEATURE_LENGTH, Acquisition, Finite, Sorted

FEW = 100  # normals; below this the thresholds carry a warning


class Reference(Frozen):
    """What one set of normals says."""

    images: int = Field(ge=1)
    image_threshold: Finite
    pixel_threshold: Finite
    scores: Sorted = Field(repr=False)  # the p-value table

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.images != len(self.scores):
            raise ValueError(f"images is {self.images}, but there are {len(self.scores)} scores")
        return self


class Calibration(Frozen):
    """Stored in the bundle; redone at any time without retraining."""

    image_quantile: float = Field(gt=0.0, lt=1.0)
    pixel_quantile: float = Field(gt=0.0, lt=1.0)
    default: Literal["held-out", "training"]
    held_out: Reference | None
    training: Reference | None
    acquisition: Acquisition | None = None

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

    def p_value(self, score: float) -> float:
        """Return the share of normals scoring at least this high, the image itself counted: valid for any n, never 0."""
        scores = self.reference.scores
        at_least = len(scores) - bisect_left(scores, score)
        return (1 + at_least) / (1 + len(scores))

    def warnings(self) -> list[str]:
        """What a reader must know before trusting the thresholds."""
        out, chosen = [], self.reference
        if self.default == "held-out" and self.held_out is None:
            out.append("no normals were held out: thresholds come from training images and are optimistic")
        if chosen.images < FEW:
            low, high = false_positive_range(chosen.images, self.image_quantile)
            out.append(
                f"thresholds come from only {chosen.images} normals: the true false-positive rate may lie anywhere "
                f"between {low:.1%} and {high:.1%} (95 % interval)"
            )
        return out


def reference(scores: Sequence[float], pixels: PixelHistogram, config: CalibrateConfig) -> Reference | None:
    """Summarise the scores of some normals; None when there are none."""
    pixel = pixels.quantile(config.pixel_quantile)
    if not scores or pixel is None:
        return None
    if not np.isfinite(scores).all():
        raise UserError("a normal image has a score that is not finite: the model has diverged; train it again")
    threshold = float(np.quantile(np.asarray(scores), config.image_quantile))
    ordered = tuple(sorted(float(s) for s in scores))
    return Reference(images=len(scores), image_threshold=threshold, pixel_threshold=pixel, scores=ordered)


def false_positive_range(n: int, quantile: float, draws: int = 200_000) -> tuple[float, float]:
    """95 % range of the true false-positive rate when the threshold is the ``quantile`` of ``n`` normals.

    By simulation. The share of the population below the k-th of n values is Beta(k, n + 1 - k) for every continuous
    distribution; between two neighbours, where ``np.quantile`` interpolates, the population is taken as uniform.
    """
    position = quantile * (n - 1)
    k, part = int(position) + 1, position - int(position)
    rng = np.random.default_rng(0)
    below = rng.beta(k, n + 1 - k, draws)
    if part:  # then k < n: the next value lies above the k-th as the smallest of the n - k that are left
        below += part * (1.0 - below) * rng.beta(1, n - k, draws)
    low, high = np.quantile(1.0 - below, (0.025, 0.975))
    return float(low), float(high)
