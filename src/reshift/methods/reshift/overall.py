"""Witness: how unlike all normals an image is as a whole. It speaks in the image score only, not in the heat-map.

A deep network's average over the image knows what local witnesses cannot: a heart that is too large has no abnormal patch.
Slices of a volume differ as a whole by their position, so there this says little, and it is left out
(``Reshift.choose_settings``).
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from reshift.methods.reshift.witness import Seen, Witness
from reshift.nets.patches import Sample

AXES = 128  # directions in which normals vary most; the others share one variance
SHRINKAGE = 0.1  # of the mean variance, added to all: few normals do not span the space


class Overall(Witness):
    """The Mahalanobis distance of an image's unit vector to the normals', after Rippel et al. 2020; its logarithm everywhere.

    One Gaussian per fold, of the normals outside it. The vectors are kept, so that a new site's can join them.
    """

    kind = "overall"
    bank: Tensor
    centre: Tensor
    axes: Tensor
    weight: Tensor

    def __init__(self, network: str, dims: int, folds: int, *, rows: int) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("bank", torch.zeros(folds, max(1, rows // folds), dims))
        self.register_buffer("centre", torch.zeros(folds, dims))
        self.register_buffer("axes", torch.zeros(folds, AXES, dims))
        self.register_buffer("weight", torch.ones(folds, AXES + 1))  # one over the variance along each axis, and elsewhere

    def fill(self, batches: Iterable[Tensor], fold: int, *, extend: bool = False) -> None:
        """Remember vectors ``(B, dims)`` of one fold, a fair sample if they are many; ``extend``: and those it has.

        The last fold completes the Gaussians.
        """
        folds, rows, dims = self.bank.shape
        sample = Sample(rows, dims, self.bank.device, torch.Generator().manual_seed(0))
        if extend:
            sample.add(self.bank[fold])
        for vectors in batches:
            sample.add(F.normalize(vectors, dim=1))
        self.bank[fold] = sample.rows.repeat(-(-rows // len(sample.rows)), 1)[:rows]  # again, where they are few
        for k in range(folds) if fold == folds - 1 else ():
            self._fit(k, torch.cat([*self.bank[:k], *self.bank[k + 1 :]]) if folds > 1 else self.bank[0])

    def _fit(self, fold: int, vectors: Tensor) -> None:
        centred = (vectors - vectors.mean(0)).double()
        variance, directions = torch.linalg.eigh(centred.T @ centred / len(centred))  # ascending
        floor = (SHRINKAGE * variance.mean()).clamp(min=1e-12)
        count = min(AXES, len(variance))
        self.centre[fold] = vectors.mean(0)
        self.axes[fold, :count] = directions[:, -count:].T.float()
        self.weight[fold, :count] = (1.0 / (variance[-count:].clamp(min=0.0) + floor)).float()
        self.weight[fold, -1] = (1.0 / floor).float()

    def forward(self, seen: Seen, without: int | None = None) -> Tensor:
        """The distance of each image: to the Gaussian that has not seen fold ``without``, or the mean over all."""
        assert seen.vector is not None
        with torch.autocast(seen.vector.device.type, enabled=False):
            vector = F.normalize(seen.vector.float(), dim=1)
            chosen = range(len(self.bank)) if without is None else [without]
            distance = torch.stack([self._distance(vector, k) for k in chosen]).mean(0)
        return distance.view(-1, 1, 1, 1).expand_as(seen.inside)

    def _distance(self, vector: Tensor, fold: int) -> Tensor:
        from_centre = vector - self.centre[fold]
        along = (from_centre @ self.axes[fold].T).square()
        rest = (from_centre.square().sum(1) - along.sum(1)).clamp(min=0.0)
        return ((along * self.weight[fold, :-1]).sum(1) + rest * self.weight[fold, -1]).clamp(min=1e-6).log()
