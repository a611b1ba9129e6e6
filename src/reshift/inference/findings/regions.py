"""Connected regions of a heat-map, plane by plane: 26 neighbours in a volume, 8 in an image.

Only the runs of what is above the threshold are kept, so memory follows the findings and not the volume.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.evaluation.metrics.regions import Runs, find_runs, join, touching

MAX_RUNS = 2_000_000  # of a case, about 0.7 GB while they are joined; a map with more is not a map of findings


class Region(NamedTuple):
    """One connected region; indices are (slice, row, column)."""

    runs: NDArray[np.int32]  # (n, 4): slice, row, first column and end (exclusive), in this order
    voxels: int
    peak: float
    peak_at: tuple[int, int, int]
    mean: float


class RegionFinder:
    """Takes the planes of one case, in the order of their slices; ``regions`` joins what touches."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self.count = 0  # runs
        self._planes: list[NDArray[np.int32]] = []  # (n, 4) as in Region
        self._values: list[NDArray[np.float64]] = []  # (n, 3): sum, peak and its column
        self._pairs: list[NDArray[np.int32]] = []  # (2, n) runs that touch
        self._above = (-2, Runs(*(np.zeros(0, np.intp),) * 3))  # the plane before: its slice and its runs

    def add(self, k: int, heatmap: NDArray[np.float32]) -> None:
        """The next plane ``(H, W)``; NaN is above nothing. Planes that are left out separate regions."""
        mask = np.nan_to_num(heatmap, nan=-np.inf) > self.threshold
        runs, (before, above), width = find_runs(mask), self._above, heatmap.shape[1]
        self._above = (k, runs)
        if not len(runs.row):
            return
        old, self.count = self.count, self.count + len(runs.row)
        if self.count > MAX_RUNS:
            return
        links = [(old, *touching(runs, runs, 1, width))]
        if before == k - 1:
            links += [(old - len(above.row), *touching(above, runs, shift, width)) for shift in (-1, 0, 1)]
        self._pairs += [np.stack([begin + left, old + right]).astype(np.int32) for begin, left, right in links]
        self._planes.append(np.stack([np.full(len(runs.row), k), *runs], axis=1).astype(np.int32))
        self._values.append(_summaries(heatmap[mask], runs))

    def regions(self) -> list[Region] | None:
        """All regions, the highest peak first; None where there are too many runs to say."""
        if self.count > MAX_RUNS:
            return None
        if not self.count:
            return []
        runs, values = np.concatenate(self._planes), np.concatenate(self._values)
        root = join(self.count, *np.concatenate(self._pairs, axis=1).astype(np.intp))
        order = np.argsort(root, kind="stable")
        starts = np.flatnonzero(np.diff(root[order], prepend=-1))
        found = [_region(runs[part], values[part]) for part in np.split(order, starts[1:])]
        return sorted(found, key=lambda region: (-region.peak, -region.voxels, region.peak_at))


def _summaries(values: NDArray[np.float32], runs: Runs) -> NDArray[np.float64]:
    """Sum, peak and the peak's column of every run; ``values`` are those of all runs, one after the other."""
    length = runs.end - runs.start
    first = length.cumsum() - length
    peak = np.maximum.reduceat(values, first)
    is_peak = np.flatnonzero(values == np.repeat(peak, length))
    of = np.searchsorted(first, is_peak, side="right") - 1
    at = is_peak[np.unique(of, return_index=True)[1]] - first  # the first, where several are equal
    return np.stack([np.add.reduceat(values.astype(np.float64), first), peak.astype(np.float64), runs.start + at], axis=1)


def _region(runs: NDArray[np.int32], values: NDArray[np.float64]) -> Region:
    best = int(values[:, 1].argmax())
    voxels = int((runs[:, 3] - runs[:, 2]).sum())
    at = (int(runs[best, 0]), int(runs[best, 1]), int(values[best, 2]))
    return Region(runs, voxels, float(values[best, 1]), at, float(values[:, 0].sum() / voxels))


def paint(regions: list[Region], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """A volume ``(S, H, W)`` in which region i, of at most 254, has the value i + 1."""
    labels = np.zeros(shape, dtype=np.uint8)
    for number, region in enumerate(regions, start=1):
        for k, row, start, end in region.runs.tolist():
            labels[k, row, start:end] = number
    return labels
