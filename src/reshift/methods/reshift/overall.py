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

ROWS = 2048  # normals that are remembered
DIRECTIONS = 128  # in which the variance of normals is measured; in all others it is the same
RIDGE = 0.1  # of the mean variance, added to every variance: few normals vary in few directions only
NEGLIGIBLE = 1e-9


class Overall(Witness):
    """A Gaussian over the normals' unit vectors; the map, the same everywhere, is the log of the squared Mahalanobis distance."""

    kind = "overall"
    bank: Tensor
    mean: Tensor
    directions: Tensor
    variances: Tensor
    rest: Tensor

    def __init__(self, network: str, dims: int, folds: int, *, rows: int = ROWS) -> None:
        super().__init__()
        self.network, count = network, min(DIRECTIONS, dims)
        self.register_buffer("bank", torch.zeros(folds, max(1, rows // folds), dims))  # zeros where there are fewer normals
        # Of the normals without each fold in turn.
        self.register_buffer("mean", torch.zeros(folds, dims))
        self.register_buffer("directions", torch.zeros(folds, count, dims))
        self.register_buffer("variances", torch.ones(folds, count))
        self.register_buffer("rest", torch.ones(folds))  # the variance in every other direction

    def fill(self, batches: Iterable[Tensor], fold: int, *, extend: bool = False) -> None:
        """Remember vectors ``(B, dims)`` of one fold, a fair sample if they are many; ``extend``: and those it has.

        With the last fold the normals are measured, so every fold is to be given, in order.
        """
        folds, rows, dims = self.bank.shape
        sample = Sample(rows, dims, self.bank.device, torch.Generator().manual_seed(0))
        if extend:
            known = self.bank[fold]
            sample.add(known[known.any(1)])
        for vectors in batches:
            sample.add(F.normalize(vectors, dim=1))
        self.bank[fold] = 0.0
        self.bank[fold, : len(sample.rows)] = sample.rows
        for out in range(folds) if fold == folds - 1 else ():
            known = self.bank[[k for k in range(folds) if k != out or folds == 1]].flatten(0, 1)
            self._measure(known[known.any(1)].double(), out)

    def _measure(self, known: Tensor, out: int) -> None:
        """The Gaussian of the rows ``known``, which do without fold ``out``."""
        if len(known) == 0:
            return
        count, dims = self.directions.shape[1:]
        mean = known.mean(0)
        centred = (known - mean) / len(known) ** 0.5
        variances, vectors = torch.linalg.eigh(centred @ centred.T)  # ascending
        variances, vectors = variances.flip(0)[:count], vectors.flip(1)[:, :count]
        real = variances > NEGLIGIBLE
        directions = (centred.T @ vectors).T[real] / variances[real, None].sqrt()
        total, found = centred.square().sum(), int(real.sum())
        ridge = (RIDGE * total / dims).clamp(min=NEGLIGIBLE)
        left = (total - variances[real].sum()).clamp(min=0.0) / max(1, dims - found)
        self.mean[out], self.rest[out] = mean, left + ridge
        self.directions[out], self.variances[out] = 0.0, 1.0
        self.directions[out, :found] = directions.to(self.mean)
        self.variances[out, :found] = (variances[real] + ridge).to(self.mean)

    def forward(self, seen: Seen, without: int | None = None) -> Tensor:
        """The distance of each image; for a new image the mean over every fold left out in turn, as normals are judged."""
        assert seen.vector is not None
        folds = range(len(self.mean)) if without is None else [without]
        with torch.autocast(seen.vector.device.type, enabled=False):
            vectors = F.normalize(seen.vector.float(), dim=1)
            mean = torch.stack([self._distance(vectors, out) for out in folds]).mean(0)
        return mean.view(-1, 1, 1, 1).expand_as(seen.inside)

    def _distance(self, vectors: Tensor, out: int) -> Tensor:
        centred = vectors - self.mean[out]
        along = centred @ self.directions[out].T
        beside = (centred.square().sum(1) - along.square().sum(1)).clamp(min=0.0)
        return ((along.square() / self.variances[out]).sum(1) + beside / self.rest[out]).clamp(min=NEGLIGIBLE).log()
