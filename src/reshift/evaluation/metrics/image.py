"""Metrics over images, and the formulas that pixels share with them. What cannot be computed is None, never 0."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from reshift.errors import UserError

Scores = NDArray[np.float64]
Labels = NDArray[np.bool_]


def roc_auc(labels: Labels, scores: Scores) -> float | None:
    """Area under the ROC curve: the share of (abnormal, normal) pairs ranked right, ties counting one half."""
    refuse_nan(scores, "the scores contain")
    positives, negatives = int(labels.sum()), int((~labels).sum())
    if not positives or not negatives:
        return None
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2.0  # mean rank of each distinct value
    return float((ranks[inverse[labels]].sum() - positives * (positives + 1) / 2.0) / (positives * negatives))


def curve(labels: Labels, scores: Scores) -> tuple[NDArray[np.int64], NDArray[np.int64], Scores]:
    """True and false positives when everything ≥ each distinct score, from high to low, is called abnormal."""
    refuse_nan(scores, "the scores contain")
    values, inverse = np.unique(scores, return_inverse=True)
    tp = np.bincount(inverse, weights=labels, minlength=len(values))[::-1].cumsum()
    fp = np.bincount(inverse, weights=~labels, minlength=len(values))[::-1].cumsum()
    return tp.astype(np.int64), fp.astype(np.int64), values[::-1]


def average_precision(tp: NDArray[np.int64], fp: NDArray[np.int64]) -> float | None:
    """AP = Σ (R_n - R_{n-1}) P_n over the steps of ``curve``; scikit-learn's definition, no interpolation."""
    if not len(tp) or tp[-1] == 0:
        return None
    gained = np.diff(tp, prepend=0)
    some = gained > 0
    return float((gained[some] * (tp[some] / (tp[some] + fp[some]))).sum() / tp[-1])


def best_f1(tp: NDArray[np.int64], fp: NDArray[np.int64]) -> float | None:
    """The largest F1 (over pixels: Dice) of any threshold: an oracle, since the labels choose the threshold."""
    if not len(tp) or tp[-1] == 0:
        return None
    return float((2 * tp / (tp + fp + tp[-1])).max())


@dataclass(frozen=True)
class ImageScores:
    """The scores of the test images. ``threshold`` comes from normals; an image is called abnormal above it."""

    labels: Labels
    scores: Scores
    threshold: float | None

    @cached_property
    def counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """True and false positives of ``curve``; empty unless there are images of both classes."""
        tp, fp, _ = curve(self.labels, self.scores)
        return (tp, fp) if self.labels.any() and not self.labels.all() else (tp[:0], fp[:0])

    def auc(self) -> float | None:
        """Area under the ROC curve."""
        return roc_auc(self.labels, self.scores)

    def ap(self) -> float | None:
        """Average precision."""
        return average_precision(*self.counts)

    def f1(self) -> float | None:
        """F1 at the threshold."""
        if self.threshold is None or not len(self.counts[0]):
            return None
        called = self.scores > self.threshold
        return float(2 * (called & self.labels).sum() / (called.sum() + self.labels.sum()))

    def fpr(self) -> float | None:
        """Share of the normal images above the threshold."""
        return self._rate(~self.labels)

    def tpr(self) -> float | None:
        """Share of the abnormal images above the threshold."""
        return self._rate(self.labels)

    def f1_max(self) -> float | None:
        """The largest F1 of any threshold."""
        return best_f1(*self.counts)

    def _rate(self, chosen: Labels) -> float | None:
        if self.threshold is None or not chosen.any():
            return None
        return float((self.scores > self.threshold)[chosen].mean())


def refuse_nan(values: NDArray[np.floating], what: str) -> None:
    """Refuse NaN: it has no rank, and would spoil every metric without a sign."""
    if np.isnan(values).any():
        raise UserError(f"{what} NaN, which cannot be ranked; if they come from a model, it has diverged: train it again")
