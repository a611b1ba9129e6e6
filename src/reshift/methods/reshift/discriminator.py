"""Witness: discriminators that mark shifted pixels, from the image alone (plain) or beside frozen features (featured)."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from reshift.methods.reshift.witness import CrossFitted, Example, Maps, Seen, TrainedWitness, average_mirrored
from reshift.nets.dense import DenseUNet


class Discriminator(TrainedWitness):
    """Cross-fitted dense discriminators; the map is their mean logit."""

    def __init__(
        self, channels: int, widths: Sequence[int], folds: int,
        *, mirror: bool, network: str | None = None, features: Sequence[int] = (),
    ) -> None:  # fmt: skip
        super().__init__()
        self.kind, self.network, self.mirror = "featured" if network else "plain", network, mirror
        inputs, self.used = 2 * channels if mirror else channels, min(len(features), len(widths) - 1)
        features = features[len(features) - self.used :]  # the deepest, where there are fewer levels than maps
        self.nets = CrossFitted([DenseUNet(inputs, widths, features) for _ in range(folds)])

    def loss(self, example: Example, maps: Maps) -> Tensor:
        """Cross-entropy inside the anatomy."""
        return self.nets.mean_loss(self._input(example.image), self._deepest(maps), example, masked_cross_entropy)

    def forward(self, seen: Seen, without: int | None = None) -> Tensor:
        """How shifted each pixel looks: the mean logit."""
        return average_mirrored(lambda view: self._logits(view, without), seen)

    def _logits(self, seen: Seen, without: int | None) -> Tensor:
        maps = seen.maps[self.network] if self.network else ()
        return self.nets.mean_output(self._input(seen.x), self._deepest(maps), without)

    def _deepest(self, maps: Maps) -> Maps:
        return maps[len(maps) - self.used :]

    def _input(self, x: Tensor) -> Tensor:
        return torch.cat([x, x.flip(-1)], dim=1) if self.mirror else x


def masked_cross_entropy(logits: Tensor, target: Tensor, inside: Tensor) -> Tensor:
    """Mean binary cross-entropy over the pixels ``inside``."""
    errors = F.binary_cross_entropy_with_logits(logits, target, reduction="none") * inside
    return errors.sum() / inside.sum().clamp(min=1.0)
