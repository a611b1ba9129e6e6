"""The residual WGAN-GP of f-AnoGAN: generator, critic and encoder for sides of 4·2^k pixels, and the gradient penalty.

Width and depth follow the side: one residual block per halving, channels doubling up to eight times ``width``, always a 4×4
grid at the deep end. At 64 pixels and width 64 this is the authors' network; a larger side adds blocks, and no layer explodes.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from reshift.nets.norm import BatchNorm

GRID = 4  # side of the deepest grid
HE = 2.0**0.5  # gain before a ReLU


def widths(size: int, width: int) -> list[int]:
    """Channels at every resolution, from the image's own down to the 4×4 grid."""
    halvings = (size // GRID).bit_length() - 1
    if halvings < 1 or size != GRID * 2**halvings:
        raise ValueError(f"data.size {size} is not 4·2^k; use 32, 64, 128 or 256")
    return [width * min(2**i, 8) for i in range(halvings + 1)]


def gradient_penalty(critic: Callable[[Tensor], Tensor], x: Tensor, fake: Tensor, weight: Tensor) -> Tensor:
    """E (‖∇D(x̃)‖₂ - 1)² at x̃ between each pair of a real and a fake image; ``weight (B, 1, 1, 1)`` is the fake one's."""
    between = torch.lerp(x, fake, weight).detach().requires_grad_(True)
    [slope] = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    norm: Tensor = torch.linalg.vector_norm(slope.flatten(1), dim=1)  # (B,)
    return (norm - 1.0).square().mean()


def layer_norm(channels: int) -> nn.Module:
    """Normalise each image by itself over channels and space: the penalty is per image, so nothing may couple images."""
    return nn.GroupNorm(1, channels)


def _conv(c_in: int, c_out: int, kernel: int, gain: float = HE, *, bias: bool = True) -> nn.Conv2d:
    conv = nn.Conv2d(c_in, c_out, kernel, padding=kernel // 2, bias=bias)
    nn.init.xavier_uniform_(conv.weight, gain)
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
    return conv


def _linear(c_in: int, c_out: int) -> nn.Linear:
    linear = nn.Linear(c_in, c_out)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


class Residual(nn.Module):
    """Norm–ReLU–conv twice beside a 1×1 shortcut, doubling the grid before the first conv or halving it after the second."""

    def __init__(self, c_in: int, c_out: int, norm: Callable[[int], nn.Module], resample: Literal["up", "down"]) -> None:
        super().__init__()
        up = resample == "up"
        middle = c_out if up else c_in
        double, halve = nn.Upsample(scale_factor=2.0, mode="nearest"), nn.AvgPool2d(2)
        first = [norm(c_in), nn.ReLU(), *([double] if up else []), _conv(c_in, middle, 3, bias=False)]
        second = [norm(middle), nn.ReLU(), _conv(middle, c_out, 3), *([] if up else [halve])]
        self.main = nn.Sequential(*first, *second)
        self.skip = nn.Sequential(double if up else halve, _conv(c_in, c_out, 1, 1.0))

    def forward(self, x: Tensor) -> Tensor:
        """``(B, c_in, h, w)`` → ``(B, c_out, 2h, 2w)`` or ``(B, c_out, h/2, w/2)``."""
        out: Tensor = self.skip(x) + self.main(x)
        return out


class Generator(nn.Module):
    """G: a code → an image in [-1, 1]."""

    def __init__(self, latent: int, channels: int, size: int, width: int) -> None:
        super().__init__()
        c = widths(size, width)[::-1]
        self.start = _linear(latent, c[0] * GRID**2)
        self.blocks = nn.Sequential(*[Residual(a, b, BatchNorm, "up") for a, b in pairwise(c)])
        self.out = nn.Sequential(BatchNorm(c[-1]), nn.ReLU(), _conv(c[-1], channels, 3), nn.Tanh())

    def forward(self, z: Tensor) -> Tensor:
        """``(B, latent)`` → ``(B, C, size, size)``."""
        x: Tensor = self.out(self.blocks(self.start(z).unflatten(1, (-1, GRID, GRID))))
        return x


def _down(channels: int, size: int, width: int, norm: Callable[[int], nn.Module]) -> nn.Sequential:
    c = widths(size, width)
    blocks = [Residual(a, b, norm, "down") for a, b in pairwise(c)]
    return nn.Sequential(_conv(channels, c[0], 3, 1.0), *blocks, nn.Flatten())


class Critic(nn.Module):
    """D, with layer norm throughout; ``features`` is the f of the encoder's loss and of the anomaly score."""

    def __init__(self, channels: int, size: int, width: int) -> None:
        super().__init__()
        self.trunk = _down(channels, size, width, layer_norm)
        self.out = _linear(widths(size, width)[-1] * GRID**2, 1)

    def features(self, x: Tensor) -> Tensor:
        """What the last linear layer sees: the flattened 4×4 grid, ``(B, C, H, W)`` → ``(B, d)``."""
        found: Tensor = self.trunk(x)
        return found

    def forward(self, x: Tensor) -> Tensor:
        """How real each image looks, unbounded, ``(B,)``."""
        score: Tensor = self.out(self.features(x)).squeeze(1)
        return score


class Encoder(nn.Module):
    """E: the critic's shape with BatchNorm, ending in a code; ``bounded`` keeps it in (-1, 1) by tanh."""

    def __init__(self, latent: int, channels: int, size: int, width: int, *, bounded: bool) -> None:
        super().__init__()
        self.trunk = _down(channels, size, width, BatchNorm)
        self.out = nn.Sequential(_linear(widths(size, width)[-1] * GRID**2, latent), nn.Tanh() if bounded else nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, H, W)`` → ``(B, latent)``."""
        z: Tensor = self.out(self.trunk(x))
        return z
