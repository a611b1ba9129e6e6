"""Metrics in numpy: exact over images, streaming and mergeable over pixels. What cannot be computed is None, never 0."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from reshift.errors import UserError

Scores = NDArray[np.float64]
Labels = NDArray[np.bool_]


def roc_auc(labels: Labels, scores: Scores) -> float | None:
    """Area under the ROC curve: the share of (abnormal, normal) pairs ranked right, ties counting one half."""
    _refuse_nan(scores, "the scores contain")
    positives, negatives = int(labels.sum()), int((~labels).sum())
    if not positives or not negatives:
        return None
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2.0  # mean rank of each distinct value
    return float((ranks[inverse[labels]].sum() - positives * (positives + 1) / 2.0) / (positives * negatives))


def curve(labels: Labels, scores: Scores) -> tuple[NDArray[np.int64], NDArray[np.int64], Scores]:
    """True and false positives when everything ≥ each distinct score, from high to low, is called abnormal."""
    _refuse_nan(scores, "the scores contain")
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


def _refuse_nan(values: NDArray[np.floating], what: str) -> None:
    """NaN has no rank: counted somewhere, it would spoil every figure in silence."""
    if np.isnan(values).any():
        raise UserError(f"{what} NaN, which cannot be ranked; if they come from a model, it has diverged: train it again")


SHIFT = 4  # of float32's 23 fraction bits are dropped: a bin is a relative 2^-19 wide
CELLS = 1 << (23 - SHIFT)  # bins per octave, that is, per sign and exponent
LOWEST, HIGHEST = np.uint32(0x007FFFFF), np.uint32(0xFF800000)  # keys of -inf and inf; NaNs lie beyond

Counts = dict[int, NDArray[np.uint32]]  # octave → its CELLS counts; only octaves that occur take memory


def _bins(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Order-preserving map from float32 to integers: flip all bits of negatives, only the sign of the others."""
    bits = (np.ascontiguousarray(values, dtype=np.float32) + np.float32(0.0)).view(np.uint32)  # -0 + 0 = 0, its equal
    return np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31)) >> np.uint32(SHIFT)


def _edge(bins: NDArray[np.uint32], *, top: bool) -> NDArray[np.float32]:
    """Return the largest (``top``) or smallest float32 of each bin."""
    key = (bins << np.uint32(SHIFT)) | np.uint32((1 << SHIFT) - 1 if top else 0)
    key = np.clip(key, LOWEST, HIGHEST)  # all that an infinity shares its bin with are NaNs
    edges: NDArray[np.float32] = np.where(key >> 31, key ^ np.uint32(1 << 31), ~key).view(np.float32)
    return edges


def _count(counts: Counts, octave: int, at: NDArray[np.integer], n: NDArray[np.integer]) -> None:
    """Add ``n`` to the distinct cells ``at`` of one octave."""
    if octave not in counts:
        counts[octave] = np.zeros(CELLS, dtype=np.uint32)
    total = counts[octave][at].astype(np.int64) + n
    if total.size and total.max() > np.iinfo(np.uint32).max:
        raise OverflowError("more than 4,294,967,295 pixels share one value; count the images in several histograms")
    counts[octave][at] = total


@dataclass
class PixelHistogram:
    """Counts of pixel scores by float bits: bounded memory, mergeable, the same in any order.

    AP is within 1e-6 of a sort over all pixels for maps that spread over a factor of two or more, as residuals do; equal
    values always share a bin. One octave takes 2 MiB per class, however many pixels are counted.
    """

    normal: Counts = field(default_factory=dict)
    abnormal: Counts = field(default_factory=dict)

    def add(self, heatmap: NDArray[np.float32], mask: NDArray[np.bool_] | None = None) -> None:
        """Count one map; without a mask every pixel is normal."""
        if mask is not None and mask.shape != heatmap.shape:
            raise ValueError(f"a mask of shape {mask.shape} does not belong to a heat-map of shape {heatmap.shape}")
        _refuse_nan(heatmap, "a heat-map contains")
        bins = _bins(heatmap.reshape(-1))
        lesion = np.zeros(bins.shape, dtype=bool) if mask is None else mask.reshape(-1)
        for counts, chosen in ((self.normal, bins[~lesion]), (self.abnormal, bins[lesion])):
            where, n = np.unique(chosen, return_counts=True)
            cuts = np.flatnonzero(np.diff(where // CELLS)) + 1  # ascending, so each octave is one run
            for inside, more in zip(np.split(where, cuts), np.split(n, cuts), strict=True):
                if len(inside):
                    _count(counts, int(inside[0]) // CELLS, inside % CELLS, more)

    def merge(self, other: "PixelHistogram") -> None:
        """Add another process's counts."""
        for mine, theirs in ((self.normal, other.normal), (self.abnormal, other.abnormal)):
            for octave, counts in theirs.items():
                at = np.flatnonzero(counts)
                _count(mine, octave, at, counts[at])

    def curve(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """As ``curve``, at the bins' resolution."""
        bins, normal, abnormal = self._both()
        return abnormal[::-1].cumsum(), normal[::-1].cumsum(), _edge(bins[::-1], top=False)

    def quantile(self, q: float) -> float | None:
        """Return the value that a share ``q`` of all counted pixels does not exceed, to a relative 2^-19.

        It is the upper edge of its bin, so that of pixels tied at the quantile none lies above the threshold made of it.
        """
        bins, normal, abnormal = self._both()
        if not len(bins):
            return None
        below = (normal + abnormal).cumsum()
        value = _edge(bins[np.searchsorted(below, q * below[-1]) :][:1], top=True)[0]
        return float(value) if abs(value) >= np.finfo(np.float32).tiny else 0.0  # zero's bin ends just above zero

    def _both(self) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64]]:
        """All filled bins, ascending, with their normal and abnormal counts."""
        none = np.zeros(CELLS, dtype=np.uint32)
        bins, normal, abnormal = [none[:0]], [none[:0]], [none[:0]]
        for octave in sorted(self.normal.keys() | self.abnormal.keys()):
            fp, tp = self.normal.get(octave, none), self.abnormal.get(octave, none)
            at = np.flatnonzero(fp | tp)
            bins.append((octave * CELLS + at).astype(np.uint32))
            normal.append(fp[at])
            abnormal.append(tp[at])
        return np.concatenate(bins), np.concatenate(normal).astype(np.int64), np.concatenate(abnormal).astype(np.int64)


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
        n_lesion = int(truth.sum())
        self.pixels, self.lesion = self.pixels + truth.size, self.lesion + n_lesion
        if self.threshold is None:
            return
        called = heatmap > self.threshold
        overlap, n_called = int((called & truth).sum()), int(called.sum())
        self.overlap, self.called = self.overlap + overlap, self.called + n_called
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
