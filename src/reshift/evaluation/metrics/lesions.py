"""Single lesions: connected components of a mask, how many were found, and AUPRO, where each lesion has the same weight."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshift.evaluation.metrics.floatbits import ascending, bits
from reshift.evaluation.metrics.regions import find_runs, join, touching

SIZES = (1, 10, 50, 200, 800)  # pixels from which a size class begins; the last has no end
ONE_IN = 10  # of a lesion's pixels must be called: a stray pixel does not find a large lesion
PRO_DROP = 9  # of 32 bits: a bin of the weighted histogram is a relative 2^-14 wide
FPR_LIMIT = 0.3  # the usual limit of AUPRO: beyond it, most of an image would be called


def components(mask: NDArray[np.bool_]) -> tuple[NDArray[np.int32], int]:
    """Label the 8-connected regions of ``(H, W)`` with 1 … n, 0 elsewhere; return the labels and n."""
    labels, runs = np.zeros(mask.shape, dtype=np.int32), find_runs(mask)
    found, which = np.unique(join(len(runs.row), *touching(runs, runs, 1, mask.shape[1])), return_inverse=True)
    labels[mask] = np.repeat(which + 1, runs.end - runs.start)  # runs come in the order of the pixels
    return labels, len(found)


@dataclass
class LesionTally:
    """Counts lesions image by image; a lesion is found if one in ``ONE_IN`` of its pixels exceeds the threshold."""

    threshold: float | None
    n: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(SIZES), np.int64))
    detected: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(SIZES), np.int64))
    weights: NDArray[np.float64] | None = None  # by raw bin; each lesion's pixels weigh one together

    def add(self, heatmap: NDArray[np.float32], mask: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Count the lesions of one image; return each lesion pixel's share of its lesion, in the order of ``heatmap[mask]``."""
        labels, n = components(mask)
        if not n:
            return np.zeros(0)
        which, values = labels[mask] - 1, heatmap[mask]
        size = np.bincount(which, minlength=n)
        of = np.searchsorted(SIZES, size, side="right") - 1
        self.n += np.bincount(of, minlength=len(SIZES))
        if self.threshold is not None:
            hits = np.bincount(which[values > self.threshold], minlength=n)
            self.detected += np.bincount(of[ONE_IN * hits >= size], minlength=len(SIZES))
        if self.weights is None:
            self.weights = np.zeros(1 << (32 - PRO_DROP))  # 64 MiB of addresses; only bins that are used take memory
        share: NDArray[np.float64] = 1.0 / size[which]
        np.add.at(self.weights, (bits(values) >> np.uint32(PRO_DROP)).astype(np.intp), share)
        return share

    def summary(self) -> dict[str, Any] | None:
        """Return the lesions found, in all and by size in pixels; None without lesions or a threshold."""
        if self.threshold is None or not self.n.sum():
            return None
        ends = [start - 1 for start in SIZES[1:]] + [None]
        rows = zip(SIZES, ends, self.n.tolist(), self.detected.tolist(), strict=True)
        by_size = [{"from": a, "to": b, "n": n, "detected": hit, "rate": hit / n if n else None} for a, b, n, hit in rows]
        n, hit = int(self.n.sum()), int(self.detected.sum())
        return {"n": n, "detected": hit, "rate": hit / n, "by_size": by_size}

    def aupro(self, raw: NDArray[np.integer], normal: NDArray[np.int64]) -> float | None:
        """Area under the mean share of each lesion called, over the false-positive rate up to 0.3, as a share of 0.3.

        ``normal`` counts the pixels outside lesions by ascending ``raw`` bins of ``PRO_DROP`` dropped bits.
        """
        if self.weights is None or not normal.sum():
            return None
        at = np.union1d(raw, np.flatnonzero(self.weights))
        false = np.zeros(len(at))
        false[np.searchsorted(at, raw)] = normal
        high_to_low = ascending(at, PRO_DROP)[::-1]
        fpr, overlap = false[high_to_low].cumsum() / normal.sum(), self.weights[at[high_to_low]].cumsum() / self.n.sum()
        return float(pro_area(fpr[None], overlap[None])[0])


def pro_area(fpr: NDArray[np.float64], overlap: NDArray[np.float64]) -> NDArray[np.float64]:
    """Area under curves ``(D, V)`` of the overlap over a rising false-positive rate up to ``FPR_LIMIT``, as a share of it."""
    step, rise = np.diff(fpr, axis=1, prepend=0.0), np.diff(overlap, axis=1, prepend=0.0)
    inside = np.clip(FPR_LIMIT - (fpr - step), 0.0, step)  # how much of each step lies below the limit
    part = np.divide(inside, step, out=np.zeros_like(step), where=step > 0.0)
    area: NDArray[np.float64] = np.einsum("dv,dv->d", inside, overlap - rise * (1.0 - part / 2.0)) / FPR_LIMIT
    return area
