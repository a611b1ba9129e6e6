"""Witness: how unlike its mirror image a place looks. It learns nothing, and is asked only where normals are symmetric."""

import torch
from torch import Tensor
from torch.nn import functional as F

from reshift.methods.ops.filters import gaussian_blur
from reshift.methods.reshift.witness import Seen, Witness
from reshift.nets.patches import patch_features

REACH = 0.11  # of the side: so far from the mirrored place its counterpart may lie; heads are tilted and off centre


class Symmetry(Witness):
    """The distance of each patch to the most similar one around its mirrored place, by the features of one network."""

    kind = "symmetry"

    def __init__(self, network: str, *, blur: float) -> None:
        super().__init__()
        self.network, self.blur = network, blur

    def forward(self, seen: Seen, without: int | None = None) -> Tensor:  # noqa: ARG002
        """The distances, enlarged and blurred."""
        distance = distance_to_mirror(patch_features(seen.maps[self.network or ""], unit=True))
        return gaussian_blur(F.interpolate(distance, size=seen.x.shape[-2:], mode="bilinear"), self.blur)


def distance_to_mirror(patches: Tensor) -> Tensor:
    """``(B, d, h, w)`` → ``(B, 1, h, w)``: the smallest distance to the patches within ``REACH`` of the mirrored place."""
    h, w = patches.shape[-2:]
    reach = max(1, round(REACH * w))
    mirrored = F.pad(patches.flip(-1), (reach,) * 4, mode="replicate")
    places = [(row, column) for row in range(2 * reach + 1) for column in range(2 * reach + 1)]
    squared = [(patches - mirrored[..., y : y + h, x : x + w]).square().sum(1, keepdim=True) for y, x in places]
    return torch.stack(squared).amin(0).sqrt()
