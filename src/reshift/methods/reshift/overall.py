"""Witness: how unlike all normals an image is as a whole. It speaks in the image score only, not in the heat-map.

A deep network's average over the image knows what local witnesses cannot: a heart that is too large has no abnormal patch.
Slices of a volume differ as a whole by their position, so there this says little, and it is left out (rules.py).
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from reshift.methods.reshift.witness import Seen, Witness
from reshift.nets.patches import Sample

NEIGHBOURS = 5


class Overall(Witness):
    """A sample of the normals' unit vectors, fold by fold; the map is the mean distance to the nearest, the same everywhere."""

    kind = "overall"
    bank: Tensor

    def __init__(self, network: str, dims: int, folds: int, *, rows: int) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("bank", torch.zeros(folds, max(1, rows // folds), dims))  # zeros where there are fewer normals

    def fill(self, batches: Iterable[Tensor], fold: int, *, extend: bool = False) -> None:
        """Remember vectors ``(B, dims)`` of one fold, a fair sample if they are many; ``extend``: and those it has."""
        _, rows, dims = self.bank.shape
        sample = Sample(rows, dims, self.bank.device, torch.Generator().manual_seed(0))
        if extend:
            known = self.bank[fold]
            sample.add(known[known.any(1)])
        for vectors in batches:
            sample.add(F.normalize(vectors, dim=1))
        self.bank[fold] = 0.0
        self.bank[fold, : len(sample.rows)] = sample.rows

    def forward(self, seen: Seen, without: int | None = None) -> Tensor:
        """The distance of each image; for a new image the mean over every fold left out in turn, as normals are judged."""
        assert seen.vector is not None
        with torch.autocast(seen.vector.device.type, enabled=False):
            vector = F.normalize(seen.vector.float(), dim=1)
            squared = 2.0 - 2.0 * torch.einsum("bd,frd->bfr", vector, self.bank)  # of unit vectors
            distance = squared.clamp(min=1e-12).sqrt().masked_fill(~self.bank.any(2), torch.inf)
            folds = len(self.bank)
            left_out = range(folds) if without is None else [without]
            kept = [[k for k in range(folds) if k != out or folds == 1] for out in left_out]
            mean = torch.stack([_nearest(distance[:, folds_kept].flatten(1)) for folds_kept in kept]).mean(0)
        return mean.view(-1, 1, 1, 1).expand_as(seen.inside)


def _nearest(distance: Tensor) -> Tensor:
    """The mean of the smallest distances of each row; of those there are, where they are fewer."""
    smallest = distance.topk(min(NEIGHBOURS, distance.shape[1]), largest=False).values
    return torch.where(smallest.isinf(), smallest[:, :1], smallest).mean(1)
