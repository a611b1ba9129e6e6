"""Witness: the distance of an image's patches to remembered patches of normals. The memory has one bank per fold."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from reshift.methods.ops.filters import gaussian_blur
from reshift.methods.reshift.witness import Maps, Seen, Witness
from reshift.nets.patches import Sample, as_rows, nearest, patch_features


class Memory(Witness):
    """A coreset of unit patch vectors of one feature network, chosen fold by fold."""

    kind = "memory"
    bank: Tensor

    def __init__(self, network: str, dims: int, folds: int, *, rows: int, sample: int, blur: float) -> None:
        super().__init__()
        self.network, self.sample, self.blur = network, sample, blur
        self.register_buffer("bank", torch.zeros(folds, max(1, rows // folds), dims))

    def fill(self, batches: Iterable[Maps], fold: int, *, extend: bool = False) -> None:
        """Fill the bank of one fold with a coreset of a random sample of its patches; ``extend``: and of those it has."""
        folds, rows, dims = self.bank.shape
        sample = Sample(max(1, self.sample // folds), dims, self.bank.device, torch.Generator().manual_seed(0))
        for maps in batches:
            sample.add(as_rows(patch_features(maps, unit=True)))
        if extend:
            sample.rows = torch.cat([self.bank[fold], sample.rows])
        self.bank[fold] = sample.coreset(rows)

    def forward(self, seen: Seen, without: int | None = None) -> Tensor:
        """The distances, enlarged and blurred."""
        patches = patch_features(seen.maps[self.network or ""], unit=True)
        distance = distance_to_banks(as_rows(patches), self.bank, without).view(patches.shape[0], 1, *patches.shape[-2:])
        return gaussian_blur(F.interpolate(distance, size=seen.x.shape[-2:], mode="bilinear"), self.blur)


def distance_to_banks(rows: Tensor, banks: Tensor, without: int | None) -> Tensor:
    """Distance ``(n,)`` of unit ``rows (n, d)`` to the nearest patch of ``banks (folds, m, d)``, fold ``without`` left out.

    For a new image ``without`` is None: the mean over every fold left out in turn. So a new image is compared with as many
    patches as the normals that set the thresholds.
    """
    each = torch.stack([nearest(rows, bank, spare=0)[0][:, 0] for bank in banks])  # (folds, n)
    if len(banks) == 1:
        return each[0]
    left_out = range(len(banks)) if without is None else [without]
    return torch.stack([torch.cat([each[:k], each[k + 1 :]]).amin(0) for k in left_out]).mean(0)
