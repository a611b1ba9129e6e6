"""A dense U-Net: one output per pixel, with frozen features beside the image. Discriminators and denoisers are made of it."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reshift.nets.norm import GroupNormSiLU


def _norm(channels: int) -> GroupNormSiLU:
    return GroupNormSiLU(max(1, min(8, channels // 4)), channels)


def _block(c_in: int, c_out: int) -> nn.Sequential:
    """Convolution, GroupNorm, SiLU, twice."""
    layers: list[nn.Module] = []
    for a in (c_in, c_out):
        layers += [nn.Conv2d(a, c_out, 3, padding=1, bias=False), _norm(c_out)]  # the norm has a bias of its own
    return nn.Sequential(*layers)


def _enlarged(x: Tensor, size: Sequence[int]) -> Tensor:
    """Bilinear, in x's own precision: autocast would turn to float32 and back, which costs more than the interpolation."""
    with torch.autocast(x.device.type, enabled=False):
        return F.interpolate(x, size=tuple(size), mode="bilinear")


def _halved(x: Tensor) -> Tensor:
    """The mean of every 2×2 pixels. Not by ``avg_pool2d``, whose gradient is slow where channels come last."""
    mean: Tensor = x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).mean((3, 5))
    return mean


class DenseUNet(nn.Module):
    """One width per level. ``features`` are the channels of frozen maps that join the levels below the first, in order.

    ``grain`` turns blocks of so many pixels a side into channels before the first level and back after the last: nothing is
    lost, and the finest level, where most of the time goes, becomes grain² times smaller.
    """

    def __init__(
        self, channels: int, widths: Sequence[int], features: Sequence[int] = (), *, out: int = 1, grain: int = 1
    ) -> None:
        super().__init__()
        if len(features) >= len(widths):
            raise ValueError(f"{len(features)} feature maps need at least {len(features) + 1} widths, not {len(widths)}")
        self.grain = grain
        self.down = nn.ModuleList(_block(a, b) for a, b in pairwise((channels * grain**2, *widths)))
        halves = [(c, max(8, c_level // 2)) for c, c_level in zip(features, widths[1:], strict=False)]
        self.adapt = nn.ModuleList(nn.Sequential(nn.Conv2d(c, half, 1, bias=False), _norm(half)) for c, half in halves)
        self.join = nn.ModuleList(_block(level + half, level) for level, (_, half) in zip(widths[1:], halves, strict=False))
        self.up = nn.ModuleList(_block(deep + shallow, shallow) for shallow, deep in reversed(list(pairwise(widths))))
        self.head = nn.Conv2d(widths[0], out * grain**2, 1)

    def forward(self, x: Tensor, maps: Sequence[Tensor] = ()) -> Tensor:
        """``x (B, C, H, W)`` and its frozen ``maps`` → ``(B, out, H, W)``."""
        # With channels last, a training step on the CPU takes two thirds of the time.
        x = F.pixel_unshuffle(x, self.grain).contiguous(memory_format=torch.channels_last)
        skips = list[Tensor]()
        for level, block in enumerate(self.down):
            x = block(_halved(x) if level else x)
            if 0 < level <= len(self.adapt):
                seen = _enlarged(self.adapt[level - 1](maps[level - 1]), x.shape[-2:])
                x = self.join[level - 1](torch.cat([x, seen], dim=1))
            skips.append(x)
        skips.pop()
        for block in self.up:
            skip = skips.pop()
            x = block(torch.cat([_enlarged(x, skip.shape[-2:]), skip], dim=1))
        return F.pixel_shuffle(self.head(x), self.grain)
