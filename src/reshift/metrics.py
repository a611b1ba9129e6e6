"""Metrics in numpy: exact over images, streaming and mergeable over pixels. What cannot be computed is None, never 0."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
Labels = NDArray[np.bool_]


def roc_auc(labels: Labels, scores: Scores) -> float | None:
    """Area under the ROC curve: the share of (abnormal, normal) pairs ranked right, ties counting one half."""
    positives, negatives = int(labels.sum()), int((~labels).sum())
    if not positives or not negatives:
        return None
    values, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2.0  # mean rank of each distinct value
    return float((ranks[inverse[labels]].sum() - positives * (positives + 1) / 2.0) / (positives * negatives))


def curve(labels: Labels, scores: Scores) -> tuple[NDArray[np.int64], NDArray[np.int64], Scores]:
    """True and false positives when everything ≥ each distinct score, from high to low, is called abnormal."""
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


SHIFT = 8  # of 32 bits are dropped: 32,768 bins per factor of two, and 2^24 bins in all, of which only touched pages exist


def _bins(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Order-preserving map from float32 to integers: flip all bits of negatives, only the sign of the others."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31)) >> np.uint32(SHIFT)


def _value(bins: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Return the smallest float32 of each bin."""
    key = bins.astype(np.uint32) << np.uint32(SHIFT)
    return np.where(key >> 31, key ^ np.uint32(1 << 31), ~key).astype(np.uint32).view(np.float32)


def _empty() -> NDArray[np.uint32]:
    return np.zeros(1 << (32 - SHIFT), dtype=np.uint32)  # lazily backed by the operating system: pages never touched cost nothing


@dataclass
class PixelHistogram:
    """Counts of pixel scores by float bits: constant memory, mergeable, AP within 1e-6 of a sort over all pixels."""

    normal: NDArray[np.uint32] = field(default_factory=_empty)
    abnormal: NDArray[np.uint32] = field(default_factory=_empty)

    def add(self, heatmap: NDArray[np.float32], mask: NDArray[np.bool_] | None = None) -> None:
        """Count one map; without a mask every pixel is normal."""
        bins = _bins(heatmap.reshape(-1))
        lesion = np.zeros(bins.shape, dtype=bool) if mask is None else mask.reshape(-1)
        for counts, chosen in ((self.normal, bins[~lesion]), (self.abnormal, bins[lesion])):
            where, n = np.unique(chosen, return_counts=True)
            counts[where] += n.astype(np.uint32)

    def merge(self, other: "PixelHistogram") -> None:
        """Add another process's counts."""
        self.normal += other.normal
        self.abnormal += other.abnormal

    def curve(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """As ``curve``, at the bins' resolution."""
        where = np.flatnonzero(self.normal | self.abnormal)[::-1]
        tp, fp = self.abnormal[where].cumsum(dtype=np.int64), self.normal[where].cumsum(dtype=np.int64)
        return tp, fp, _value(where.astype(np.uint32))

    def quantile(self, q: float) -> float | None:
        """Return the value below which a share ``q`` of all counted pixels lies, to a relative 2^-15."""
        where = np.flatnonzero(self.normal | self.abnormal)
        if not len(where):
            return None
        below = (self.normal[where].astype(np.int64) + self.abnormal[where]).cumsum()
        return float(_value(where[np.searchsorted(below, q * below[-1]) :][:1].astype(np.uint32))[0])


@dataclass
class PixelMetrics:
    """Streaming pixel metrics: add every test image once, then read ``result``."""

    threshold: float | None
    histogram: PixelHistogram = field(default_factory=PixelHistogram)
    overlap: int = 0  # called and lesion
    called: int = 0
    lesion: int = 0
    pixels: int = 0
    dice_per_image: list[float] = field(default_factory=list)  # of images with a lesion

    def add(self, heatmap: NDArray[np.float32], mask: NDArray[np.bool_] | None) -> None:
        """Count one image; ``mask`` None means that it is normal."""
        truth = np.zeros(heatmap.shape, dtype=bool) if mask is None else mask
        self.histogram.add(heatmap, truth)
        self.pixels += truth.size
        if self.threshold is None:
            return
        called = heatmap > self.threshold
        overlap, n_called, n_lesion = int((called & truth).sum()), int(called.sum()), int(truth.sum())
        self.overlap, self.called, self.lesion = self.overlap + overlap, self.called + n_called, self.lesion + n_lesion
        if n_lesion:
            self.dice_per_image.append(2.0 * overlap / (n_called + n_lesion))

    def result(self) -> dict[str, float | None]:
        """AP and Dice pooled over all pixels; Dice also as the mean over abnormal images."""
        tp, fp, _ = self.histogram.curve()
        known = self.threshold is not None and self.lesion > 0
        return {
            "ap": average_precision(tp, fp),
            "dice": 2.0 * self.overlap / (self.called + self.lesion) if known else None,
            "threshold": self.threshold,
            "dice_max": best_f1(tp, fp),
            "dice_per_image": float(np.mean(self.dice_per_image)) if self.dice_per_image else None,
        }
