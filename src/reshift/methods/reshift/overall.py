"""Witness: how unlike every remembered normal an image is as a whole. It speaks in the image score only, not in the heat-map.

A deep network's average over the image knows what local witnesses cannot: a heart that is too large has no abnormal patch.
Slices of a volume differ as a whole by their position, so there this says little, and it is left out
(``Reshift.choose_settings``).
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from reshift.methods.reshift.memory import distance_to_banks
from reshift.methods.reshift.witness import Seen, Witness
from reshift.nets.patches import Sample


class Overall(Witness):
    """A sample of the normals' unit vectors, fold by fold; the map is the distance to the nearest, the same everywhere."""

    kind = "overall"
    bank: Tensor

    def __init__(self, network: str, dims: int, folds: int, *, rows: int) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("bank", torch.zeros(folds, max(1, rows // folds), dims))

    def fill(self, batches: Iterable[Tensor], fold: int, *, extend: bool = False) -> None:
        """Remember vectors ``(B, dims)`` of one fold, a fair sample if they are many; ``extend``: and those it has."""
        _, rows, dims = self.bank.shape
        sample = Sample(rows, dims, self.bank.device, torch.Generator().manual_seed(0))
        if extend:
            sample.add(self.bank[fold])
        for vectors in batches:
            sample.add(F.normalize(vectors, dim=1))
        self.bank[fold] = sample.rows.repeat(-(-rows // len(sample.rows)), 1)[:rows]  # again, where they are few

    def forward(self, seen: Seen, without: int | None = None) -> Tensor:
        """The distance of each image."""
        assert seen.vector is not None
        distance = distance_to_banks(F.normalize(seen.vector.float(), dim=1), self.bank, without)
        return distance.view(-1, 1, 1, 1).expand_as(seen.inside)
