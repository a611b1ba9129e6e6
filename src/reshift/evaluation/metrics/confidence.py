"""How sure a figure is: intervals and paired comparisons by a bootstrap over subjects, DeLong's test over images."""

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from reshift.errors import UserError
from reshift.evaluation.metrics.bootstrap import (
    IMAGE_FIGURES,
    PIXEL_FIGURES,
    Floats,
    Images,
    PixelsBySubject,
    draw_for_images,
    draw_for_pixels,
    image_samples,
    known_figures,
    known_pixel_figures,
    owners,
    pixel_samples,
)
from reshift.evaluation.metrics.image import Labels, Scores, roc_auc

ROUNDING = 1e-12  # smaller than any difference a figure can mean

Interval = tuple[float, float]


class Paired(NamedTuple):
    """The first method's figure minus the second's, on the same images."""

    difference: float
    low: float
    high: float
    p_value: float  # two-sided


def image_intervals(
    labels: Labels,
    scores: Scores,
    subjects: Sequence[str],
    threshold: float | None,
    *,
    draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, Interval | None]:
    """Percentile intervals of ``image_metrics``; the threshold stays fixed, since it comes from other images.

    None where the figure itself is None, and where it rests on one subject: drawn again and again, it would never vary.
    """
    images = Images(labels, scores, threshold, owners(labels, subjects))
    known = known_figures(images)
    samples = image_samples(images, draw_for_images(images, draws, seed)) if known else {}
    return {name: _percentiles(samples[name], level) if name in known else None for name in IMAGE_FIGURES}


def pixel_intervals(
    pixels: PixelsBySubject, *, draws: int = 1000, seed: int = 0, level: float = 0.95
) -> dict[str, Interval | None]:
    """Percentile intervals of AP, Dice, the largest Dice and AUPRO over all pixels; None as for ``image_intervals``."""
    known = known_pixel_figures(pixels)
    samples = pixel_samples(pixels, draw_for_pixels([pixels], draws, seed)) if known else {}
    return {name: _percentiles(samples[name], level) if name in known else None for name in PIXEL_FIGURES}


def mean_interval(
    sums: Sequence[float],
    counts: Sequence[float],
    subjects: Sequence[str],
    *,
    draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval | None:
    """Interval of Σ sums / Σ counts over items, by bootstrap over their subjects; None with fewer than two subjects."""
    names, owner = np.unique(np.asarray(subjects), return_inverse=True)
    total, n = np.bincount(owner, sums, len(names)), np.bincount(owner, counts, len(names))
    total, n = total[n > 0], n[n > 0]
    if len(n) < 2:
        return None
    weights = np.random.default_rng(seed).multinomial(len(n), np.full(len(n), 1.0 / len(n)), size=draws).astype(np.float64)
    return _percentiles((weights @ total) / (weights @ n), level)


def paired_image(
    labels: Labels,
    a: Scores,
    b: Scores,
    subjects: Sequence[str],
    threshold_a: float | None,
    threshold_b: float | None,
    figure: str,
    *,
    draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Paired | None:
    """Compare one of ``IMAGE_FIGURES`` between two methods on the same draws of subjects; None where either has none."""
    _refuse_unknown(figure, IMAGE_FIGURES)
    owner = owners(labels, subjects)
    both = [Images(labels, a, threshold_a, owner), Images(labels, b, threshold_b, owner)]
    known = [known_figures(images) for images in both]
    if any(figure not in found for found in known):
        return None
    weights = draw_for_images(both[0], draws, seed)
    first, second = (image_samples(images, weights)[figure] for images in both)
    return _paired(known[0][figure] - known[1][figure], first - second, level)


def paired_pixels(
    a: PixelsBySubject, b: PixelsBySubject, figure: str, *, draws: int = 1000, seed: int = 0, level: float = 0.95
) -> Paired | None:
    """Compare one of ``PIXEL_FIGURES`` between two methods on the same draws of subjects; None where either has none."""
    _refuse_unknown(figure, PIXEL_FIGURES)
    if a.subjects != b.subjects:
        raise UserError("the two results are not of the same subjects in the same order; evaluate both on one test split")
    known = [known_pixel_figures(pixels) for pixels in (a, b)]
    if any(figure not in found for found in known):
        return None
    weights = draw_for_pixels([a, b], draws, seed)
    first, second = (pixel_samples(pixels, weights)[figure] for pixels in (a, b))
    return _paired(known[0][figure] - known[1][figure], first - second, level)


def delong(labels: Labels, a: Scores, b: Scores, *, level: float = 0.95) -> Paired | None:
    """DeLong's test for two AUCs on the same images, by midranks (Sun and Xu 2014), ties counting one half.

    It takes images as independent: where subjects have several, ``paired_image`` is the honest one. None with fewer than
    two images of a class, or where no image disagrees with the others, so that there is no spread to measure by.
    """
    auc_a, auc_b = roc_auc(labels, a), roc_auc(labels, b)
    positives, negatives = int(labels.sum()), int((~labels).sum())
    if auc_a is None or auc_b is None or min(positives, negatives) < 2:
        return None
    apart = _placements(labels, a) - _placements(
        labels, b
    )  # in whole halves, hence exact: a constant has a variance of exactly 0
    variance = apart[labels].var(ddof=1) / positives / negatives**2 + apart[~labels].var(ddof=1) / negatives / positives**2
    difference, error = auc_a - auc_b, math.sqrt(variance)
    if error == 0.0:
        return Paired(0.0, 0.0, 0.0, 1.0) if difference == 0.0 else None
    reach = NormalDist().inv_cdf((1.0 + level) / 2.0) * error
    return Paired(difference, difference - reach, difference + reach, math.erfc(abs(difference) / error / math.sqrt(2.0)))


def mean_std(values: Iterable[float | None]) -> tuple[float, float | None] | None:
    """Mean and sample standard deviation over seeds; a missing figure is left out, and one alone has no deviation."""
    known = np.array([value for value in values if value is not None], dtype=np.float64)
    if not len(known):
        return None
    return float(known.mean()), float(known.std(ddof=1)) if len(known) > 1 else None


def _percentiles(samples: Floats, level: float) -> Interval:
    low, high = np.quantile(samples, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)


def _paired(difference: float, samples: Floats, level: float) -> Paired:
    """Interval and p-value of a difference; the one added keeps p above 0, which no number of draws can show."""
    # Equal figures, summed over other bins, differ in their last digit: all draws could say so, and p would be tiny.
    samples = np.where(np.abs(samples) < ROUNDING, 0.0, samples)
    tail = 1 + min(int((samples <= 0.0).sum()), int((samples >= 0.0).sum()))
    return Paired(
        difference if abs(difference) >= ROUNDING else 0.0,
        *_percentiles(samples, level),
        min(1.0, 2.0 * tail / (len(samples) + 1)),
    )


def _refuse_unknown(figure: str, figures: tuple[str, ...]) -> None:
    if figure not in figures:
        raise UserError(f"there is no figure {figure!r} to compare; choose one of {', '.join(figures)}")


def _midranks(scores: Scores) -> Floats:
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2.0)[inverse]
    return ranks


def _placements(labels: Labels, scores: Scores) -> Floats:
    """How many images of the other class lie below each image, ties counting one half."""
    placed = _midranks(scores)
    for group in (labels, ~labels):
        placed[group] -= _midranks(scores[group])
    return placed
