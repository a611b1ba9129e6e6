"""Pixel metrics, counted image by image in bounded memory and in any order. What cannot be computed is None, never 0."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshift.evaluation.metrics import floatbits
from reshift.evaluation.metrics.bootstrap import Interval, mean_interval
from reshift.evaluation.metrics.image import best_f1, refuse_nan
from reshift.evaluation.metrics.lesions import PRO_DROP, LesionTally
from reshift.evaluation.metrics.subjects import COARSE_DROP, SubjectPixels, SubjectTally

FINE, FAST = 6, 9  # bits dropped of 32: bins a relative 2^-17 wide for thresholds, 2^-14 for AP, which needs no more
BLOCK = 1 << 16  # pixels counted at once: so that temporary arrays stay in the processor's cache
MIXED = 0xFFFF  # state of a bin that holds several distinct values; 0 is empty, 1 + the dropped bits a single value
MAX_COUNT = 2**32 - 1

__all__ = ["PixelHistogram", "PixelMetrics", "SubjectPixels"]


@dataclass(eq=False)
class PixelHistogram:
    """Counts of pixel scores by float bits: bounded memory, mergeable, the same in any order.

    A bin with a single value is a tie; a bin with several values is treated as evenly mixed. AP then equals that of a sort over
    all pixels, exactly for quantised maps and within 1e-6 for residuals. Maps whose values differ by a few per cent only fill
    fewer bins, and a tie may share its bin with other values: there the error is of the order of 1 / (number of lesion pixels).
    """

    drop: int = FINE
    # One entry per bin; only bins that are used take memory.
    total: NDArray[np.uint32] = field(init=False, repr=False)  # lesion pixels included
    abnormal: NDArray[np.uint32] = field(init=False, repr=False)
    state: NDArray[np.uint16] = field(init=False, repr=False)
    pixels: int = 0

    def __post_init__(self) -> None:
        bins = 1 << (32 - self.drop)
        self.total, self.abnormal, self.state = np.zeros(bins, np.uint32), np.zeros(bins, np.uint32), np.zeros(bins, np.uint16)

    def add(self, heatmap: NDArray[np.floating], mask: NDArray[np.bool_] | None = None) -> None:
        """Count one map; without a mask every pixel is normal."""
        if mask is not None and mask.shape != heatmap.shape:
            raise ValueError(f"a mask of shape {mask.shape} does not belong to a heat-map of shape {heatmap.shape}")
        flat, lesion = heatmap.reshape(-1), None if mask is None else mask.reshape(-1)
        if len(flat) and np.isnan(flat.max()):  # the maximum is NaN if any value is, and needs no second array
            refuse_nan(flat, "a heat-map contains")
        self._refuse_overflow(flat)
        for start in range(0, len(flat), BLOCK):
            bits = floatbits.bits(flat[start : start + BLOCK])
            at = (bits >> np.uint32(self.drop)).astype(np.intp)
            np.add.at(self.total, at, np.uint32(1))
            if lesion is not None and (chosen := lesion[start : start + BLOCK]).any():
                np.add.at(self.abnormal, at[chosen], np.uint32(1))
            self._track_ties(at, bits)

    def _refuse_overflow(self, flat: NDArray[np.floating]) -> None:
        """Refuse a map that could overflow a counter; checked only once there are enough pixels for that."""
        self.pixels += len(flat)
        if self.pixels > MAX_COUNT:
            at = (floatbits.bits(flat) >> np.uint32(self.drop)).astype(np.intp)
            if int(self.total[at].max()) > MAX_COUNT - len(flat):
                self.pixels -= len(flat)
                raise OverflowError("more than 4,294,967,295 pixels share one value; count the images in several histograms")

    def _track_ties(self, at: NDArray[np.intp], bits: NDArray[np.uint32]) -> None:
        """Keep track of which bins hold a single value. After a few maps most are known to be mixed and are skipped."""
        new = np.flatnonzero(self.state.take(at, mode="clip") != MIXED)
        if not len(new):
            return
        at, code = at[new], ((bits[new] & np.uint32((1 << self.drop) - 1)) + np.uint32(1)).astype(np.uint16)
        empty = self.state[at] == 0
        self.state[at[empty]] = code[empty]  # of several values in one bin the last one is stored …
        self.state[at[self.state[at] != code]] = MIXED  # … and the bin is mixed if another value differs from it

    def merge(self, other: "PixelHistogram") -> None:
        """Add another process's counts."""
        if other.drop != self.drop:
            raise ValueError(f"histograms of {32 - self.drop} and {32 - other.drop} bits cannot be merged")
        raw = other.filled()
        if len(raw) and int((self.total[raw].astype(np.int64) + other.total[raw]).max()) > MAX_COUNT:
            raise OverflowError("more than 4,294,967,295 pixels share one value; keep the histograms apart")
        mine, theirs = self.state[raw], other.state[raw]
        self.state[raw] = np.where(mine == 0, theirs, np.where(mine == theirs, mine, MIXED))
        self.total[raw] += other.total[raw]
        self.abnormal[raw] += other.abnormal[raw]
        self.pixels += other.pixels

    def curve(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """As ``metrics.curve``, at the bins' resolution."""
        raw, normal, abnormal = self._counts_by_value()
        raw = raw[::-1]
        return abnormal[::-1].cumsum(), normal[::-1].cumsum(), self._values(raw, top=False)

    def average_precision(self) -> float | None:
        """AP as scikit-learn defines it; None unless there are pixels of both kinds.

        In a bin of p lesion pixels and n others in random order, n / (p + 1) others lie before each lesion pixel on
        average; the sum over the p precisions is then an integral by the midpoint rule, which has a closed form.
        """
        raw, normal, abnormal = self._counts_by_value()
        some = np.flatnonzero(abnormal[::-1])
        if not len(some) or not normal.any():
            return None
        p, n = abnormal[::-1][some].astype(np.float64), normal[::-1][some].astype(np.float64)
        tp, fp = abnormal[::-1].cumsum()[some], normal[::-1].cumsum()[some]
        before, called = tp - p, (tp - p) + (fp - n)
        slope = 1.0 + n / (p + 1.0)  # pixels called per lesion pixel
        mixed = p / slope + (before - called / slope) / slope * np.log1p(slope * p / (called + 0.5 * slope))
        tied = p * (tp / (tp + fp))
        return float(np.where(self.state[raw[::-1][some]] == MIXED, mixed, tied).sum() / abnormal.sum())

    def quantile(self, q: float) -> float | None:
        """Return the value that a share ``q`` of all counted pixels does not exceed, to a relative 2^-17 (if ``FINE``).

        It is the upper edge of its bin, so that pixels tied at the quantile do not lie above a threshold set to it;
        exact if all pixels in the bin are equal.
        """
        raw, normal, abnormal = self._counts_by_value()
        if not len(raw):
            return None
        below = (normal + abnormal).cumsum()
        value = self._values(raw[np.searchsorted(below, q * below[-1]) :][:1], top=True)[0]
        return float(value) if abs(value) >= np.finfo(np.float32).tiny else 0.0  # zero's bin ends just above zero

    def share_above(self, threshold: float) -> float:
        """The share of all counted pixels above ``threshold``, to the width of its bin; 0 if there are none."""
        raw, normal, abnormal = self._counts_by_value()
        above = (normal + abnormal)[self._values(raw, top=True) > np.float32(threshold)].sum()
        return float(above) / max(1, self.pixels)

    def counts(self) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
        """Lower edges of the filled bins of a coarse grid, ascending, with their normal and abnormal pixels."""
        raw, normal, abnormal = self._counts_by_value()
        keys, normal, abnormal = floatbits.grouped(
            floatbits.ordered(raw, self.drop) >> (COARSE_DROP - self.drop), normal, abnormal
        )
        return floatbits.edges(keys.astype(np.uint32), COARSE_DROP, top=False), normal, abnormal

    def normal_by(self, drop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Normal pixels by ascending raw bins of ``drop`` dropped bits, no fewer than here."""
        raw = self.filled()
        at, normal = floatbits.grouped(raw >> (drop - self.drop), self.total[raw].astype(np.int64) - self.abnormal[raw])
        return at, normal

    def filled(self) -> NDArray[np.intp]:
        """Raw bins that hold pixels. Empty octaves are skipped, since most of the table is empty."""
        octaves = self.state.reshape(512, -1)  # by sign and exponent
        some = np.flatnonzero(octaves.view(np.uint64).max(axis=1))
        parts = [octave * octaves.shape[1] + np.flatnonzero(octaves[octave]) for octave in some]
        return np.concatenate([np.zeros(0, np.intp), *parts])

    def _counts_by_value(self) -> tuple[NDArray[np.intp], NDArray[np.int64], NDArray[np.int64]]:
        """All filled raw bins, in the order of their values, with their normal and abnormal counts."""
        raw = self.filled()
        raw = raw[floatbits.ascending(raw, self.drop)]
        abnormal = self.abnormal[raw].astype(np.int64)
        return raw, self.total[raw] - abnormal, abnormal

    def _values(self, raw: NDArray[np.intp], *, top: bool) -> NDArray[np.float32]:
        """Return the largest (``top``) or smallest value that each bin may hold, or the one that it does."""
        state, edge = self.state[raw], floatbits.edges(floatbits.ordered(raw, self.drop), self.drop, top=top)
        exact = (raw.astype(np.uint32) << np.uint32(self.drop)) | (state.astype(np.uint32) - np.uint32(1))
        values: NDArray[np.float32] = np.where(state == MIXED, edge, exact.view(np.float32))
        return values


@dataclass
class PixelMetrics:
    """Counts over all pixels of a test set: add every image once, then read the metrics, ``lesions`` and ``by_subject``."""

    threshold: float | None
    threshold_quantile: float | None = None  # by the paper's rule, where the threshold is the method's own
    histogram: PixelHistogram = field(default_factory=lambda: PixelHistogram(FAST))
    overlap_quantile: int = 0  # called by the paper's rule and lesion
    called_quantile: int = 0
    overlap: int = 0  # called and lesion
    called: int = 0
    lesion: int = 0
    pixels: int = 0
    dice_per_image: list[float] = field(default_factory=list)  # of images with a lesion
    lesion_images: list[tuple[str, int, int]] = field(default_factory=list)  # their subject, lesions and lesions found
    tally: LesionTally = field(init=False, repr=False)
    subjects: SubjectTally = field(default_factory=SubjectTally, repr=False)

    def __post_init__(self) -> None:
        self.tally = LesionTally(self.threshold)

    def add(
        self,
        heatmap: NDArray[np.float32],
        mask: NDArray[np.bool_] | None,
        *,
        ignore: NDArray[np.bool_] | None = None,
        subject: str = "",
    ) -> None:
        """Count one image; ``mask`` None means that it is normal. Pixels in ``ignore`` count for no metric."""
        for name, other in (("mask", mask), ("ignore mask", ignore)):
            if other is not None and other.shape != heatmap.shape:
                raise ValueError(f"a {name} of shape {other.shape} does not belong to a heat-map of shape {heatmap.shape}")
        truth = np.zeros(heatmap.shape, dtype=bool) if mask is None else mask
        if ignore is not None:
            truth = truth & ~ignore
        values, lesion = (heatmap[~ignore], truth[~ignore]) if ignore is not None else (heatmap.reshape(-1), truth.reshape(-1))
        n_lesion = int(lesion.sum())
        self.histogram.add(values, lesion if n_lesion else None)
        share = np.zeros(0)
        if n_lesion:
            before = self.tally.n.sum(), self.tally.detected.sum()
            share = self.tally.add(heatmap, truth)
            self.lesion_images.append((subject, int(self.tally.n.sum() - before[0]), int(self.tally.detected.sum() - before[1])))
        n_called = overlap = 0
        if self.threshold is not None:
            called = values > self.threshold
            overlap, n_called = int((called & lesion).sum()), int(called.sum())
            if n_lesion:
                self.dice_per_image.append(2.0 * overlap / (n_called + n_lesion))
        if self.threshold_quantile is not None:
            called = values > self.threshold_quantile
            self.overlap_quantile += int((called & lesion).sum())
            self.called_quantile += int(called.sum())
        self.subjects.add(subject, values, lesion, (overlap, n_called, n_lesion), share)
        self.overlap, self.called = self.overlap + overlap, self.called + n_called
        self.pixels, self.lesion = self.pixels + lesion.size, self.lesion + n_lesion

    def ap(self) -> float | None:
        """Average precision over all pixels."""
        return self.histogram.average_precision()

    def dice(self) -> float | None:
        """Dice at the threshold, over all pixels."""
        known = self.threshold is not None and self.lesion > 0
        return 2.0 * self.overlap / (self.called + self.lesion) if known else None

    def dice_quantile(self) -> float | None:
        """Dice at the quantile of normal pixels, the paper's rule."""
        known = self.threshold_quantile is not None and self.lesion > 0
        return 2.0 * self.overlap_quantile / (self.called_quantile + self.lesion) if known else None

    def dice_max(self) -> float | None:
        """The largest Dice of any threshold."""
        tp, fp, _ = self.histogram.curve()
        return best_f1(tp, fp) if 0 < self.lesion < self.pixels else None

    def mean_dice(self) -> float | None:
        """Mean of the images' own Dice at the threshold, over images with a lesion."""
        return float(np.mean(self.dice_per_image)) if self.dice_per_image else None

    def mean_dice_interval(self) -> Interval | None:
        """Interval of ``mean_dice``, by bootstrap over subjects."""
        subjects = [subject for subject, _, _ in self.lesion_images]
        return mean_interval(self.dice_per_image, [1.0] * len(subjects), subjects) if self.dice_per_image else None

    def lesion_rate_interval(self) -> Interval | None:
        """Interval of the share of lesions found, by bootstrap over subjects."""
        if not self.lesion_images or self.threshold is None:
            return None
        subjects, lesions, found = zip(*self.lesion_images, strict=True)
        return mean_interval(found, lesions, subjects)

    def aupro(self) -> float | None:
        """Area under the mean overlap with each lesion, up to a false-positive rate of 0.3."""
        return self.tally.aupro(*self.histogram.normal_by(PRO_DROP))

    def lesions(self) -> dict[str, Any] | None:
        """Lesions (8-connected regions of the masks) found at the threshold, in all and by size; None without either.

        A lesion counts as found if at least 10 % of its pixels exceed the threshold.
        """
        return self.tally.summary()

    def by_subject(self) -> SubjectPixels | None:
        """Return counts per subject on a coarse grid; images without a subject are pooled, and None if all are."""
        return self.subjects.result()
