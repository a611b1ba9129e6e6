"""Bootstrap over subjects. A draw is a weight per subject, so scores are sorted once for all draws.

Images of one subject resemble each other, so subjects are drawn, and each brings all its images as often as it was drawn.
Subjects with and without an abnormal image are drawn separately: the share of patients in a test set was chosen, not random.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.evaluation.metrics.image import ImageScores, Labels
from reshift.evaluation.metrics.lesions import pro_area
from reshift.evaluation.metrics.subjects import SubjectPixels

CHUNK = 1 << 20  # draws × images (or bins) computed at once: 8 MiB per array, for any number of draws

Floats = NDArray[np.float64]
Weights = NDArray[np.uint16]  # (draws, subjects): how often each subject was drawn
Interval = tuple[float, float]


@dataclass(frozen=True)
class Images(ImageScores):
    """Scores of the test images, and which subject each image belongs to."""

    owner: NDArray[np.intp]


class ImageDraws(NamedTuple):
    """Counts in each draw (D), over the distinct scores (V) from high to low: every metric of a draw is made of these."""

    tp: Floats  # (D, V) abnormal images at or above each score
    fp: Floats  # (D, V) normal images at or above each score
    normals: Floats  # (D,) this and the following
    abnormals: Floats
    false_positives: Floats  # at the threshold
    true_positives: Floats  # at the threshold

    def auc(self) -> Floats:
        """By trapezoids, so that ties count one half."""
        middle = self.tp - np.diff(self.tp, axis=1, prepend=0.0) / 2.0
        area = np.einsum("dv,dv->d", np.diff(self.fp, axis=1, prepend=0.0), middle)
        auc: Floats = area / (self.tp[:, -1] * self.fp[:, -1])
        return auc

    def ap(self) -> Floats:
        """Average precision."""
        return _average_precision(self.tp, self.fp)

    def f1(self) -> Floats:
        """F1 at the threshold."""
        return 2.0 * self.true_positives / (self.false_positives + self.true_positives + self.abnormals)

    def fpr(self) -> Floats:
        """Share of the normal images above the threshold."""
        return self.false_positives / self.normals

    def tpr(self) -> Floats:
        """Share of the abnormal images above the threshold."""
        return self.true_positives / self.abnormals

    def f1_max(self) -> Floats:
        """The largest F1 of any threshold."""
        return _best_f1(self.tp, self.fp)


class PixelDraws(NamedTuple):
    """Counts in each draw (D), over the bins of pixel scores (V) from high to low."""

    tp: Floats  # (D, V) lesion pixels in this bin and above
    fp: Floats  # (D, V) other pixels in this bin and above
    overlap: Floats  # (D,) pixels of lesions above the threshold
    called_and_lesion: Floats  # (D,) pixels above the threshold plus pixels of lesions
    has_calls: bool  # whether any pixel of the test set lies above the threshold
    covered: Floats | None  # (D, V) shares of lesions covered, summed over lesions; None where they were not counted

    def ap(self) -> Floats:
        """Average precision over all pixels."""
        return _average_precision(self.tp, self.fp)

    def dice(self) -> Floats | None:
        """Dice at the threshold; None if no pixel exceeds it, since Dice is then 0 in every draw and shows no spread."""
        return 2.0 * self.overlap / self.called_and_lesion if self.has_calls else None

    def dice_max(self) -> Floats:
        """The largest Dice of any threshold."""
        return _best_f1(self.tp, self.fp)

    def aupro(self) -> Floats | None:
        """Area under the mean overlap with each lesion; the last column of ``covered`` is the number of lesions."""
        return None if self.covered is None else pro_area(self.fp / self.fp[:, -1:], self.covered / self.covered[:, -1:])


def owners(labels: Labels, subjects: Sequence[str]) -> NDArray[np.intp]:
    """Number the subjects by name, so that the order of the images changes nothing; return the number of each image's subject."""
    if len(subjects) != len(labels):
        raise ValueError(f"{len(labels)} images cannot have {len(subjects)} subjects")
    index = {name: at for at, name in enumerate(sorted(set(subjects)))}
    return np.array([index[name] for name in subjects], dtype=np.intp)


def draw_for_images(images: Images, draws: int, seed: int) -> Weights:
    """Draw subjects so that every draw has an image of each class that the test set has."""
    holds = _count_by_subject(images, ~images.labels, images.labels) > 0.0
    return _complete_draws(holds[:, 1], holds, draws, seed)


def image_draws(images: Images, weights: Weights) -> Iterator[ImageDraws]:
    """The counts of all draws, some draws at a time."""
    labels, scores = images.labels, images.scores
    order = np.argsort(-scores)
    ranked, abnormal, owner = scores[order], labels[order].astype(np.float64), images.owner[order]
    last = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))  # equal scores are called together
    called = scores > (math.inf if images.threshold is None else images.threshold)
    counts = _count_by_subject(images, ~labels, labels, called & ~labels, called & labels)
    for part in _chunks(weights, len(scores)):
        drawn = part[:, owner]
        tp = (drawn * abnormal).cumsum(axis=1)[:, last]
        yield ImageDraws(tp, drawn.cumsum(axis=1)[:, last] - tp, *(part @ counts).T)


def draw_for_pixels(compared: Sequence[SubjectPixels], draws: int, seed: int) -> Weights:
    """Draw subjects so that every draw has a lesion and a normal pixel, in each of the results that are compared."""
    ill = np.stack([has_lesion(pixels) for pixels in compared], axis=1)
    well = np.stack([pixels.normal.sum(axis=1) > 0.0 for pixels in compared], axis=1)
    return _complete_draws(np.asarray(ill.any(axis=1)), np.concatenate([ill, well], axis=1), draws, seed)


def pixel_draws(pixels: SubjectPixels, weights: Weights) -> Iterator[PixelDraws]:
    """The counts of all draws, some draws at a time."""
    has_calls = bool(pixels.lesion.any() and pixels.called.any())
    share = pixels.share if pixels.normal.any() else None
    for part in _chunks(weights, pixels.normal.shape[1]):
        tp, fp = (_from_the_top(part @ counts) for counts in (pixels.abnormal, pixels.normal))
        calls = part @ pixels.overlap, part @ (pixels.called + pixels.lesion)
        yield PixelDraws(tp, fp, *calls, has_calls, None if share is None else _from_the_top(part @ share))


def has_lesion(pixels: SubjectPixels) -> NDArray[np.bool_]:
    """Which subjects have a lesion ``(S,)``."""
    return np.asarray(pixels.abnormal.sum(axis=1) > 0.0)


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
    return percentiles((weights @ total) / (weights @ n), level)


def percentiles(samples: Floats, level: float) -> Interval:
    """The interval that holds a share ``level`` of the samples, with equal tails."""
    low, high = np.quantile(samples, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)


def _draw(rng: np.random.Generator, ill: NDArray[np.bool_], draws: int) -> Weights:
    """Draw as many ill and as many other subjects as there are, with replacement."""
    weights = np.zeros((draws, len(ill)), dtype=np.uint16)
    for group in (np.flatnonzero(ill), np.flatnonzero(~ill)):
        if len(group):
            weights[:, group] = rng.multinomial(len(group), np.full(len(group), 1.0 / len(group)), size=draws)
    return weights


def _complete_draws(ill: NDArray[np.bool_], needed: NDArray[np.bool_], draws: int, seed: int) -> Weights:
    """Repeat draws that lack every subject of a column of ``needed`` ``(S, k)``, since metrics need both classes.

    The loop ends: n draws out of n subjects miss a column with a probability of at most (1 - 1/n)^n < 1/e.
    """
    rng = np.random.default_rng(seed)
    weights = _draw(rng, ill, draws)
    columns = needed[:, needed.any(axis=0)].astype(np.float64)
    while len(lacking := np.flatnonzero((weights @ columns == 0.0).any(axis=1))):
        weights[lacking] = _draw(rng, ill, len(lacking))
    return weights


def _chunks(weights: Weights, width: int) -> Iterator[Floats]:
    rows = max(1, CHUNK // max(1, width))
    for start in range(0, len(weights), rows):
        yield weights[start : start + rows].astype(np.float64)


def _count_by_subject(images: Images, *chosen: NDArray[np.bool_]) -> Floats:
    """How many images of each subject are among each of ``chosen`` ``(S, k)``."""
    total = int(images.owner.max()) + 1
    counts = [np.bincount(images.owner[which], minlength=total) for which in chosen]
    return np.stack(counts, axis=1).astype(np.float64)


def _from_the_top(counts: Floats) -> Floats:
    """Counts by ascending bins ``(D, V)`` → counts in each bin and all above it, from high to low."""
    return counts[:, ::-1].cumsum(axis=1)


def _average_precision(tp: Floats, fp: Floats) -> Floats:
    """As ``image.average_precision``; above the highest drawn score nothing is called and nothing is gained."""
    precision = tp / np.maximum(tp + fp, 1.0)
    mean: Floats = np.einsum("dv,dv->d", np.diff(tp, axis=1, prepend=0.0), precision) / tp[:, -1]
    return mean


def _best_f1(tp: Floats, fp: Floats) -> Floats:
    best: Floats = (2.0 * tp / (tp + fp + tp[:, -1:])).max(axis=1)
    return best
