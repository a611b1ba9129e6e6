"""How certain a metric is: intervals and paired comparisons by a bootstrap over subjects, DeLong's test over images."""

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from reshift.errors import UserError
from reshift.evaluation.metrics.bootstrap import (
    Floats,
    Images,
    Interval,
    Weights,
    draw_for_images,
    draw_for_pixels,
    has_lesion,
    image_draws,
    owners,
    percentiles,
    pixel_draws,
)
from reshift.evaluation.metrics.image import Labels, Scores, roc_auc
from reshift.evaluation.metrics.subjects import SubjectPixels
from reshift.evaluation.metrics.table import Metric, select_metrics

ROUNDING = 1e-12  # smaller than any difference of a metric that means something


class Paired(NamedTuple):
    """The first method's metric minus the second's, on the same images."""

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
    """Percentile intervals of the image metrics; the threshold stays fixed, since it comes from other images.

    None where the metric itself is None, and where it rests on one subject, which would give the same value in every draw.
    """
    images = Images(labels, scores, threshold, owners(labels, subjects))
    known = known_image_metrics(images)
    samples = image_samples(images, draw_for_images(images, draws, seed)) if known else {}
    return {m.name: percentiles(samples[m.name], level) if m.name in known else None for m in _sampled("image")}


def pixel_intervals(
    pixels: SubjectPixels, *, draws: int = 1000, seed: int = 0, level: float = 0.95
) -> dict[str, Interval | None]:
    """Percentile intervals of the pixel metrics over all pixels; None as for ``image_intervals``."""
    known = known_pixel_metrics(pixels)
    samples = pixel_samples(pixels, draw_for_pixels([pixels], draws, seed)) if known else {}
    return {m.name: percentiles(samples[m.name], level) if m.name in known else None for m in _sampled("pixel")}


def paired_image(
    labels: Labels,
    a: Scores,
    b: Scores,
    subjects: Sequence[str],
    threshold_a: float | None,
    threshold_b: float | None,
    name: str,
    *,
    draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Paired | None:
    """Compare an image metric of two methods on the same draws of subjects; None where either method has no value."""
    _refuse_unknown(name, _sampled("image"))
    owner = owners(labels, subjects)
    both = [Images(labels, a, threshold_a, owner), Images(labels, b, threshold_b, owner)]
    known = [known_image_metrics(images) for images in both]
    if any(name not in found for found in known):
        return None
    weights = draw_for_images(both[0], draws, seed)
    first, second = (image_samples(images, weights)[name] for images in both)
    return _paired(known[0][name] - known[1][name], first - second, level)


def paired_pixels(
    a: SubjectPixels, b: SubjectPixels, name: str, *, draws: int = 1000, seed: int = 0, level: float = 0.95
) -> Paired | None:
    """Compare a pixel metric of two methods on the same draws of subjects; None where either method has no value."""
    _refuse_unknown(name, _sampled("pixel"))
    if a.subjects != b.subjects:
        raise UserError("the two results are not of the same subjects in the same order; evaluate both on one test split")
    known = [known_pixel_metrics(pixels) for pixels in (a, b)]
    if any(name not in found for found in known):
        return None
    weights = draw_for_pixels([a, b], draws, seed)
    first, second = (pixel_samples(pixels, weights)[name] for pixels in (a, b))
    return _paired(known[0][name] - known[1][name], first - second, level)


def delong(labels: Labels, a: Scores, b: Scores, *, level: float = 0.95) -> Paired | None:
    """DeLong's test for two AUCs on the same images, by midranks (Sun and Xu 2014), ties counting one half.

    It treats images as independent; where subjects have several images, ``paired_image`` is the right test. None with fewer
    than two images of a class, or where the difference is the same at every image, so that there is no spread.
    """
    auc_a, auc_b = roc_auc(labels, a), roc_auc(labels, b)
    positives, negatives = int(labels.sum()), int((~labels).sum())
    if auc_a is None or auc_b is None or min(positives, negatives) < 2:
        return None
    apart = _placements(labels, a) - _placements(labels, b)  # in halves, hence exact: a constant has a variance of exactly 0
    variance = apart[labels].var(ddof=1) / positives / negatives**2 + apart[~labels].var(ddof=1) / negatives / positives**2
    difference, error = auc_a - auc_b, math.sqrt(variance)
    if error == 0.0:
        return Paired(0.0, 0.0, 0.0, 1.0) if difference == 0.0 else None
    reach = NormalDist().inv_cdf((1.0 + level) / 2.0) * error
    return Paired(difference, difference - reach, difference + reach, math.erfc(abs(difference) / error / math.sqrt(2.0)))


def mean_std(values: Iterable[float | None]) -> tuple[float, float | None] | None:
    """Mean and sample standard deviation over seeds; a missing value is left out, and a single value has no deviation."""
    known = np.array([value for value in values if value is not None], dtype=np.float64)
    if not len(known):
        return None
    return float(known.mean()), float(known.std(ddof=1)) if len(known) > 1 else None


def known_image_metrics(images: Images) -> dict[str, float]:
    """Metrics that have a value and rest on more than one subject of each class they need."""
    several = {
        name: len(np.unique(images.owner[images.labels == label])) > 1 for name, label in (("normal", False), ("abnormal", True))
    }
    enough = [m for m in _sampled("image") if all(several[name] for name in m.classes)]
    return {m.name: value for m in enough if (value := m.measure(images)) is not None}


def image_samples(images: Images, weights: Weights) -> dict[str, Floats]:
    """Every metric that has a value, in each draw."""
    known = [m for m in _sampled("image") if m.measure(images) is not None]
    parts = [{m.name: m.sample(draws) for m in known} for draws in image_draws(images, weights)]
    return _joined(parts)


def known_pixel_metrics(pixels: SubjectPixels) -> dict[str, float]:
    """As ``known_image_metrics``: the values with every subject drawn once."""
    if int(has_lesion(pixels).sum()) < 2:
        return {}
    once = pixel_samples(pixels, np.ones((1, len(pixels.subjects)), dtype=np.uint16))
    return {name: float(value[0]) for name, value in once.items()}


def pixel_samples(pixels: SubjectPixels, weights: Weights) -> dict[str, Floats]:
    """Every metric that the counts allow, in each draw."""
    return _joined([{m.name: m.sample(draws) for m in _sampled("pixel")} for draws in pixel_draws(pixels, weights)])


def bootstrap_p_value(samples: Floats) -> float:
    """Two-sided p-value of sampled differences; the one added keeps p above 0, which no number of draws can show."""
    samples = _rounded(samples)
    tail = 1 + min(int((samples <= 0.0).sum()), int((samples >= 0.0).sum()))
    return min(1.0, 2.0 * tail / (len(samples) + 1))


def _paired(difference: float, samples: Floats, level: float) -> Paired:
    rounded = difference if abs(difference) >= ROUNDING else 0.0
    return Paired(rounded, *percentiles(_rounded(samples), level), bootstrap_p_value(samples))


def _rounded(samples: Floats) -> Floats:
    """Equal metrics, summed over other bins, differ in their last digit; without this, all draws would seem to differ."""
    return np.where(np.abs(samples) < ROUNDING, 0.0, samples)


def _sampled(level: str) -> list[Metric]:
    return [metric for metric in select_metrics(level) if metric.samples is not None]


def _joined(parts: Sequence[dict[str, Floats | None]]) -> dict[str, Floats]:
    """Join the chunks; a metric that has no value has none in any chunk."""
    names = [name for name, value in parts[0].items() if value is not None]
    return {name: np.concatenate([value for part in parts if (value := part[name]) is not None]) for name in names}


def _refuse_unknown(name: str, known: Sequence[Metric]) -> None:
    if name not in (names := [metric.name for metric in known]):
        raise UserError(f"there is no metric {name!r} to compare; choose one of {', '.join(names)}")


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
