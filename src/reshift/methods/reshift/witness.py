"""What a witness is: one opinion on every pixel of an image, from something it learned of normals.

A witness has parts, one per fold of the subjects, and part k has not seen fold k. A new image is judged by all parts; a
training normal by the one part that has not seen it, which makes it as new as any.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

Maps = Sequence[Tensor]


class Seen(NamedTuple):
    """A batch as the witnesses see it, computed once for all of them."""

    x: Tensor  # (B, C, H, W) in [-1, 1], without text
    inside: Tensor  # (B, 1, H, W), 1 where there is anatomy
    maps: Mapping[str, Maps]  # feature maps by the name of their network
    mirrored: "Seen | None" = None  # the same of the mirrored batch, where that is asked for
    vector: Tensor | None = None  # (B, d), each image as a whole, where a witness wants it


class Example(NamedTuple):
    """What a trained witness learns from: an image, what should come out, and where that counts."""

    image: Tensor
    target: Tensor
    inside: Tensor


class Witness(nn.Module):
    """The base of all witnesses: ``forward(seen, without)`` is its map ``(B, 1, H, W)``; larger means less like the normals."""

    kind: str  # plain, featured, memory, denoising, tail, symmetry, or overall, which has no place in the heat-map
    network: str | None = None  # the feature network it uses

    def forward(self, seen: Seen, without: int | None = None) -> Tensor:
        """Its map. ``without`` uses nothing that has seen this fold."""
        raise NotImplementedError


def average_mirrored(judge: Callable[[Seen], Tensor], seen: Seen) -> Tensor:
    """The mean of what ``judge`` says of the batch and, mirrored back, of the mirrored batch."""
    found = judge(seen)
    return found if seen.mirrored is None else (found + judge(seen.mirrored).flip(-1)) / 2.0


class CrossFitted(nn.Module):
    """Networks of one kind, one per fold; network k is trained without fold k."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def mean_output(self, x: Tensor, maps: Maps, without: int | None) -> Tensor:
        """The mean over all networks, or the output of the one that has not seen fold ``without``."""
        chosen = self.members if without is None else [self.members[without]]
        return torch.stack([member(x, maps).float() for member in chosen]).mean(0)

    def mean_loss(self, x: Tensor, maps: Maps, example: Example, loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """The mean of the networks' ``loss(output, target, inside)``, each without its own fold."""
        folds = len(self.members)
        repeated = [repeat_folds(t, folds) for t in (example.target, example.inside, x, *maps)]
        losses = []
        for k, member in enumerate(self.members):
            target, inside, image, *own_maps = (without_fold(t, k, folds) for t in repeated)
            losses.append(loss(member(image, own_maps).to(target.dtype), target, inside))
        return torch.stack(losses).mean()


def repeat_folds(x: Tensor, folds: int) -> Tensor:
    """Append all folds of a batch but the last two once more: all but any one fold are then one contiguous slice."""
    parts = x.chunk(folds)
    return torch.cat([*parts, *parts[: folds - 2]]) if folds > 2 else x


def without_fold(repeated: Tensor, fold: int, folds: int) -> Tensor:
    """All folds but one, from the result of ``repeat_folds``."""
    if folds == 1:
        return repeated
    size = len(repeated) // max(2, 2 * folds - 2)
    first = (fold + 1) % folds
    return repeated[first * size : (first + folds - 1) * size]


class TrainedWitness(Witness):
    """A witness whose parts are networks."""

    nets: CrossFitted

    def loss(self, example: Example, maps: Maps) -> Tensor:
        """The mean loss of its networks, each without its own fold."""
        raise NotImplementedError
