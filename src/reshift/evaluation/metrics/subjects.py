"""Pixel counts of each subject on a coarse grid, for the bootstrap over subjects."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from reshift.evaluation.metrics.floatbits import bits, edges, ordered

COARSE_DROP = 16  # of 32 bits: a bin is a relative 2^-7 wide
BINS = 1 << (32 - COARSE_DROP)
MAX_BINS = 4096  # filled bins over all subjects; with more, neighbours are joined

Sparse = tuple[NDArray[np.uint16], NDArray[np.uint32], NDArray[np.uint32], NDArray[np.float64]]  # raw bins, and the counts


@dataclass(frozen=True)
class SubjectPixels:
    """Counts per subject (S) and bin (V); summed over the subjects they are those of the whole set."""

    subjects: tuple[str, ...]
    values: NDArray[np.float32]  # (V,) ascending lower edges
    normal: NDArray[np.float64]  # (S, V)
    abnormal: NDArray[np.float64]  # (S, V)
    overlap: NDArray[np.float64]  # (S,) pixels called and lesion; this and the next are 0 without a threshold
    called: NDArray[np.float64]  # (S,)
    lesion: NDArray[np.float64]  # (S,)
    share: NDArray[np.float64] | None = None  # (S, V) lesion pixels, with a total weight of one per lesion; None in older results


@dataclass
class SubjectTally:
    """Dense counts of the current subject, sparse ones of all before: slices of a subject usually come in a row."""

    current: str | None = None
    dense: NDArray[np.int64] = field(default_factory=lambda: np.zeros((2, BINS), np.int64))
    share: NDArray[np.float64] = field(default_factory=lambda: np.zeros(BINS))
    done: dict[str, list[Sparse]] = field(default_factory=dict)  # in the order of their first image
    calls: dict[str, NDArray[np.int64]] = field(default_factory=dict)  # overlap, called, lesion

    def add(
        self,
        subject: str,
        values: NDArray[np.float32],
        lesion: NDArray[np.bool_],
        calls: tuple[int, int, int],
        share: NDArray[np.float64],
    ) -> None:
        """Count one image's pixels, given flat; ``share`` is that of each lesion pixel in its lesion."""
        if subject != self.current:
            self.flush()
            self.current = subject
            self.done.setdefault(subject, [])
            self.calls.setdefault(subject, np.zeros(3, np.int64))
        self.calls[subject] += calls
        at = (bits(values) >> np.uint32(COARSE_DROP)).astype(np.intp)
        np.add.at(self.dense[0], at, 1)
        if calls[2]:
            inside = at[lesion]
            np.subtract.at(self.dense[0], inside, 1)
            np.add.at(self.dense[1], inside, 1)
            np.add.at(self.share, inside, share)

    def merge(self, other: "SubjectTally") -> None:
        """Add another process's counts; a subject may have images in both."""
        self.flush()
        other.flush()
        for subject, parts in other.done.items():
            self.done.setdefault(subject, []).extend(parts)
            self.calls.setdefault(subject, np.zeros(3, np.int64))
            self.calls[subject] += other.calls[subject]

    def result(self) -> SubjectPixels | None:
        """Return everything counted; None if no image had a subject's name."""
        self.flush()
        if not any(self.done):
            return None
        filled = np.zeros(BINS, dtype=bool)
        for parts in self.done.values():
            for raw, *_ in parts:
                filled[raw] = True
        keys, drop = np.unique(ordered(np.flatnonzero(filled), COARSE_DROP)), COARSE_DROP
        while len(keys) > MAX_BINS:
            keys, drop = np.unique(keys >> np.uint32(1)), drop + 1
        counts = np.zeros((3, len(self.done), len(keys)))  # normal, abnormal, share
        for row, parts in enumerate(self.done.values()):
            for raw, normal, abnormal, share in parts:
                at = np.searchsorted(keys, ordered(raw, COARSE_DROP) >> np.uint32(drop - COARSE_DROP))
                np.add.at(counts[0, row], at, normal)
                np.add.at(counts[1, row], at, abnormal)
                np.add.at(counts[2, row], at, share)
        overlap, called, lesion = np.stack(list(self.calls.values()), axis=1).astype(np.float64)
        values = edges(keys, drop, top=False)
        return SubjectPixels(tuple(self.done), values, counts[0], counts[1], overlap, called, lesion, counts[2])

    def flush(self) -> None:
        """Turn the dense counts of the current subject into sparse ones."""
        if self.current is None:
            return
        raw = np.flatnonzero(self.dense[0] | self.dense[1])
        if len(raw):
            normal, abnormal = self.dense[:, raw].astype(np.uint32)
            self.done[self.current].append((raw.astype(np.uint16), normal, abnormal, self.share[raw]))
        self.dense[:, raw], self.share[raw] = 0, 0.0
        self.current = None
