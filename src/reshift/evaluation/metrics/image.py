"""Metrics over images, and what pixels share with them, in numpy. What cannot be computed is None, never 0."""

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
    """Return the largest F1 (= Dice, over pixels) any threshold reaches: an oracle, since the labels choose it."""
    if not len(tp) or tp[-1] == 0:
        return None
    return float((2 * tp / (tp + fp + tp[-1])).max())


def image_metrics(labels: Labels, scores: Scores, threshold: float | None) -> dict[str, float | None]:
    """Everything at image level. ``threshold`` comes from normals; an image is called abnormal above it."""
    tp, fp, _ = curve(labels, scores)
    both = labels.any() and not labels.all()
    out: dict[str, float | None] = {
        "auc": roc_auc(labels, scores),
        "ap": average_precision(tp, fp) if both else None,
        "f1": None,
        "threshold": threshold,
        "fpr": None,
        "tpr": None,
        "f1_max": best_f1(tp, fp) if both else None,
    }
    if threshold is not None:
        called = scores > threshold
        out["fpr"] = float(called[~labels].mean()) if not labels.all() else None
        out["tpr"] = float(called[labels].mean()) if labels.any() else None
        out["f1"] = float(2 * (called & labels).sum() / (called.sum() + labels.sum())) if both else None
    return out


def refuse_nan(values: NDArray[np.floating], what: str) -> None:
    """NaN has no rank: counted somewhere, it would spoil every figure in silence."""
    if np.isnan(values).any():
        raise UserError(f"{what} NaN, which cannot be ranked; if they come from a model, it has diverged: train it again")
