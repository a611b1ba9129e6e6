"""Slices of a stack agree: a lesion goes on in the next slice, noise does not, so maps are averaged along the stack."""

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.data.cases import Case
from reshift.data.read import open_volume

REACH = 3.0  # in σ; slices farther away have no weight
MIN_SHARE = 0.5  # of the slices that need a neighbour for the consensus to be on by itself
OPENED = 5  # volumes whose spacing is looked up
MAX_SPACING = 5.0  # mm between slices; over 7.5 mm small lesions were lost (docs/research.md)


class Place(NamedTuple):
    """Where an image lies: in which stack, and where along it, in slices."""

    stack: Hashable
    position: float


def place(case: Case) -> Place | None:
    """A slice lies in its volume, an image with a position in its subject; None for an image by itself."""
    if case.slice is not None:
        return Place((case.image, None), case.slice)
    return None if case.position is None else Place((None, case.subject), case.position)


def stacks(cases: Sequence[Case]) -> list[list[int]]:
    """The indices of every stack's cases, in order; an image by itself is a stack of one."""
    found: dict[Hashable, list[int]] = {}
    for i, case in enumerate(cases):
        lies = place(case)
        found.setdefault(i if lies is None else lies.stack, []).append(i)
    return list(found.values())


def together(cases: Sequence[Case]) -> list[Case]:
    """The same cases, those of a stack one after another, so that only one stack's maps have to be kept."""
    return [cases[i] for stack in stacks(cases) for i in stack]


def auto_sigma(cases: Sequence[Case]) -> float:
    """1 if at least half of the normals have a neighbour one slice away and volumes have thin slices, else 0."""
    near, volumes = 0, dict[Path, None]()
    for stack in stacks(cases):
        places = [lies.position for i in stack if (lies := place(cases[i])) is not None]
        known = np.sort(np.array(places))
        gaps = np.diff(known, prepend=-np.inf, append=np.inf)
        near += int((np.minimum(gaps[:-1], gaps[1:]) <= 1.0).sum())
        volumes |= {cases[i].image: None for i in stack if cases[i].slice is not None}
    spacings = [open_volume(path).spacing[0] for path in list(volumes)[:OPENED]]
    thin = not spacings or float(np.median(spacings)) <= MAX_SPACING
    return 1.0 if thin and near >= MIN_SHARE * len(cases) else 0.0


def smooth(maps: NDArray[np.float32], positions: Sequence[float], sigma: float) -> NDArray[np.float32]:
    """Average each of one stack's ``(n, S, S)`` maps with its neighbours, by weights exp(-d²/2σ²) over those that there are.

    Positions may come in any order and have gaps. Where a map is exactly 0 it stays so: that is outside the slice's anatomy.
    """
    at, out = np.asarray(positions, dtype=np.float64), np.zeros_like(maps)
    for i, own in enumerate(maps):
        distance = np.abs(at - at[i])
        near = np.flatnonzero(distance <= REACH * sigma)
        weights = np.exp(-0.5 * (distance[near] / sigma) ** 2)
        mean = np.tensordot(weights / weights.sum(), maps[near], 1)
        np.copyto(out[i], mean, where=own != 0.0, casting="same_kind")
    return out
