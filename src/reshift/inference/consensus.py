"""Slices of a stack agree: a lesion goes on in the next slice, noise does not, so maps are averaged along the stack."""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.data.cases import Case
from reshift.data.read import open_volume
from reshift.data.volume import Volume

REACH = 3.0  # in σ; slices farther away have no weight
MIN_SHARE = 0.5  # of the slices that need a neighbour for the consensus to be on by itself
OPENED = 5  # volumes whose spacing is looked up
MAX_SPACING = 5.0  # mm between slices; over 7.5 mm small lesions were lost (docs/research.md)


Map = NDArray[np.float32]


class Place(NamedTuple):
    """Where an image lies: in which stack, and where along it, in slices."""

    stack: Hashable
    position: float


def place(case: Case, slice_mm: float = 0.0) -> Place | None:
    """A slice lies in its volume, an image with a position in its subject; None for an image by itself.

    ``slice_mm``: positions in a volume count slices of so many millimetres; 0: the volume's own.
    """
    if case.slice is not None:
        return Place((case.image, None), in_slices(open_volume(case.image), case.slice, slice_mm) if slice_mm else case.slice)
    return None if case.position is None else Place((None, case.subject), case.position)


def in_slices(volume: Volume, k: int, slice_mm: float) -> float:
    """Where slice ``k`` lies, in slices of ``slice_mm`` millimetres: a lesion has its size in millimetres, not in slices."""
    return k * volume.spacing[0] / slice_mm if slice_mm else k


def stacks(cases: Sequence[Case]) -> list[list[int]]:
    """The indices of every stack's cases, in order; an image by itself is a stack of one."""
    found: dict[Hashable, list[int]] = {}
    for i, case in enumerate(cases):
        lies = place(case)
        found.setdefault(i if lies is None else lies.stack, []).append(i)
    return list(found.values())


def together(cases: Sequence[Case]) -> list[Case]:
    """The same cases, those of a stack one after another by rising position, as ``smooth`` needs them."""

    def position(i: int) -> float:
        lies = place(cases[i])
        return 0.0 if lies is None else lies.position

    return [cases[i] for stack in stacks(cases) for i in sorted(stack, key=position)]


def auto_sigma(cases: Sequence[Case]) -> float:
    """1 if at least half of the normals have a neighbour one slice away and volumes have thin slices, else 0."""
    near = 0
    for stack in stacks(cases):
        places = [lies.position for i in stack if (lies := place(cases[i])) is not None]
        known = np.sort(np.array(places))
        gaps = np.diff(known, prepend=-np.inf, append=np.inf)
        near += int((np.minimum(gaps[:-1], gaps[1:]) <= 1.0).sum())
    return 1.0 if slice_spacing(cases) <= MAX_SPACING and near >= MIN_SHARE * len(cases) else 0.0


def slice_spacing(cases: Sequence[Case]) -> float:
    """Millimetres between the slices of volumes, the median of the first few; 0 where there are only images."""
    volumes = list(dict.fromkeys(case.image for case in cases if case.slice is not None))
    spacings = [open_volume(path).spacing[0] for path in volumes[:OPENED]]
    return float(np.median(spacings)) if spacings else 0.0


def smooth(stack: Iterable[tuple[float, Map | None]], sigma: float) -> Iterator[Map | None]:
    """Average each of one stack's maps with its neighbours, by weights exp(-d²/2σ²) over those that there are.

    Takes positions and maps by rising position, and holds no more of them than lie within reach: memory does not grow with the
    stack. Positions may have gaps. None is nobody's neighbour and comes back as it is. Where a map is exactly 0 it stays so:
    that is outside the slice's anatomy.
    """
    near, waiting = deque[tuple[float, Map]](), deque[tuple[float, Map | None]]()
    for position, heatmap in stack:
        while waiting and heatmap is not None and (waiting[0][1] is None or position - waiting[0][0] > REACH * sigma):
            yield _mean(*waiting.popleft(), near, sigma)
        waiting.append((position, heatmap))
        if heatmap is not None:
            near.append((position, heatmap))
    for item in waiting:
        yield _mean(*item, near, sigma)


def _mean(position: float, own: Map | None, near: deque[tuple[float, Map]], sigma: float) -> Map | None:
    """The average of the maps ``near`` that one; those that are too far behind it are removed."""
    if own is None:
        return None
    while position - near[0][0] > REACH * sigma:
        near.popleft()
    chosen = [(at, heatmap) for at, heatmap in near if at - position <= REACH * sigma]
    distance = np.array([at for at, _ in chosen]) - position
    weights = np.exp(-0.5 * (distance / sigma) ** 2)
    mean = np.tensordot(weights / weights.sum(), np.stack([heatmap for _, heatmap in chosen]), 1)
    out = np.zeros_like(own)
    np.copyto(out, mean, where=own != 0.0, casting="same_kind")
    return out
