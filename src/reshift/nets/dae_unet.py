"""The U-Net of the denoising autoencoder: standardised weights, reflection at the border, normalisation after the activation."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reshift.nets.norm import GroupNorm


def norm_groups(channels: int) -> int:
    """The (upper) median divisor of the width: 8, 16, 16, 32 for 64, 128, 256, 512."""
    divisors = [d for d in range(1, channels + 1) if channels % d == 0]
    return divisors[len(divisors) // 2]


class StandardisedConv(nn.Conv2d):
    """3×3 convolution whose kernel is shifted and scaled to mean 0 and deviation 1 per output channel (Qiao et al. 2019)."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__(c_in, c_out, 3, padding=1, padding_mode="reflect")

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """``(B, c_in, h, w)`` → ``(B, c_out, h, w)``."""
        centred = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        deviation = centred.std((1, 2, 3), keepdim=True) + 1e-5
        out: Tensor = self._conv_forward(input, centred / deviation, self.bias)
        return out


class DenoisingUNet(nn.Module):
    """One width per level; average pooling down, 2×2 transposed convolution up, skips concatenated, linear 1×1 output."""

    def __init__(self, channels: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        upwards = list(pairwise(widths[::-1]))  # (deep, shallow), deepest first
        self.down = nn.ModuleList(_block(a, b) for a, b in pairwise((channels, *widths)))
        self.up = nn.ModuleList(nn.ConvTranspose2d(deep, shallow, 2, stride=2) for deep, shallow in upwards)
        self.merge = nn.ModuleList(_block(2 * shallow, shallow) for _, shallow in upwards)
        self.head = nn.Conv2d(widths[0], channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, H, W)`` → the same shape; H and W divide by two once per level below the first."""
        skips = []
        for level, block in enumerate(self.down):
            x = block(F.avg_pool2d(x, 2) if level else x)
            skips.append(x)
        skips.pop()  # the deepest level has nothing to skip
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([up(x), skips.pop()], dim=1))
        out: Tensor = self.head(x)
        return out


def _block(c_in: int, c_out: int) -> nn.Sequential:
    """Convolution, Swish, GroupNorm, twice."""
    layers: list[nn.Module] = []
    for a, b in ((c_in, c_out), (c_out, c_out)):
        layers += [StandardisedConv(a, b), nn.SiLU(), GroupNorm(norm_groups(b), b)]
    return nn.Sequential(*layers)
