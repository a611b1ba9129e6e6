"""Connected regions by runs: the horizontal runs of a mask are the nodes of a graph, runs that touch are its edges.

A region has far fewer runs than pixels, and NumPy handles all runs at once; no library beside it is needed.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.intp]


class Runs(NamedTuple):
    """Pixels in a row that follow each other, ordered by row and start."""

    row: Integers
    start: Integers
    end: Integers  # exclusive


def find_runs(mask: NDArray[np.bool_]) -> Runs:
    """The runs of ``(H, W)``."""
    steps = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    row, start = np.nonzero(steps == 1)
    return Runs(row, start, np.nonzero(steps == -1)[1])


def touching(ours: Runs, theirs: Runs, shift: int, width: int) -> tuple[Integers, Integers]:
    """Indices of the pairs in which a run of ``theirs``, ``shift`` rows below one of ``ours``, touches it, also diagonally."""
    step = width + 2  # a row's places, with room between rows
    line = (ours.row + shift) * step
    first = np.searchsorted(theirs.row * step + theirs.end, line + ours.start)  # that ends at or after our start …
    last = np.searchsorted(theirs.row * step + theirs.start, line + ours.end, side="right")  # … and starts at or before our end
    number = last - first
    left = np.repeat(np.arange(len(ours.row)), number)
    return left, np.arange(number.sum()) + np.repeat(first - (number.cumsum() - number), number)


def join(n: int, left: Integers, right: Integers) -> Integers:
    """Return the smallest node of each node's region: join roots and shorten all paths until nothing changes."""
    parent = np.arange(n)
    while True:
        a, b = parent[left], parent[right]
        apart = a != b
        if not apart.any():
            return parent
        left, right, a, b = left[apart], right[apart], a[apart], b[apart]  # a joined pair stays joined
        np.minimum.at(parent, np.maximum(a, b), np.minimum(a, b))
        while (parent[parent] != parent).any():
            parent = parent[parent]
