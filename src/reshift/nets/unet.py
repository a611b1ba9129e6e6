"""The denoiser ε_ω: an attention-enhanced, time-conditioned U-Net for small latent grids."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reshift.nets.norm import GroupNorm, GroupNormSiLU


def timestep_embedding(t: Tensor, dim: int) -> Tensor:
    """Sinusoidal features of t, ``(B,)`` → ``(B, dim)``."""
    frequencies = torch.exp(-math.log(10_000.0) * torch.arange(dim // 2, device=t.device) / (dim // 2))
    angle = t.float()[:, None] * frequencies
    return torch.cat([angle.cos(), angle.sin()], dim=1)


def _groups(channels: int) -> int:
    return math.gcd(32, channels)


class ResBlock(nn.Module):
    """GroupNorm–SiLU–conv twice around a skip; the time step shifts the input of the second norm.

    A bias is left out where another layer adds one: that offset has one, and so has the skip where it is a convolution.
    """

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.c_out = c_out
        self.first = nn.Sequential(GroupNormSiLU(_groups(c_in), c_in), nn.Conv2d(c_in, c_out, 3, padding=1, bias=False))
        self.norm = GroupNormSiLU(_groups(c_out), c_out)
        self.second = _zero(nn.Conv2d(c_out, c_out, 3, padding=1, bias=c_in == c_out))
        self.skip = nn.Conv2d(c_in, c_out, 1) if c_in != c_out else nn.Identity()

    def forward(self, x: Tensor, offset: Tensor) -> Tensor:
        """``(B, c_in, h, w)``, ``(B, c_out)`` → ``(B, c_out, h, w)``."""
        out: Tensor = self.skip(x) + self.second(self.norm(self.first(x), offset))
        return out


class Attention(nn.Module):
    """Self-attention over all positions of the grid, with a skip."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = GroupNorm(_groups(channels), channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = _zero(nn.Conv2d(channels, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, h, w)`` → the same shape."""
        b, c, h, w = x.shape
        y = self.attend(self.qkv(self.norm(x)).permute(0, 2, 3, 1).reshape(b, h * w, 3 * c))
        out: Tensor = x + self.out(y.view(b, h, w, c).permute(0, 3, 1, 2))
        return out

    def attend(self, qkv: Tensor) -> Tensor:
        """Queries, keys and values of every position side by side, ``(B, n, 3·C)`` → ``(B, n, C)``."""
        b, n, c = qkv.shape
        q, k, v = qkv.view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # (B, heads, n, C / heads) each
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c // 3)


class UNet(nn.Module):
    """Predicts ε from ``(B, C, h, w)`` and t. Widths per level, attention on every level but the first."""

    def __init__(self, channels: int, widths: tuple[int, ...] = (128, 192, 256), blocks: int = 1, heads: int = 4) -> None:
        super().__init__()
        c_time = 4 * widths[0]
        self.embedding_dim = widths[0]
        self.time = nn.Sequential(nn.Linear(widths[0], c_time), nn.SiLU(), nn.Linear(c_time, c_time), nn.SiLU())
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        skips, c = [widths[0]], widths[0]
        for level, width in enumerate(widths):
            for _ in range(blocks):
                self.down.append(_stack(c, width, heads if level else 0))
                c = width
                skips.append(c)
            if level + 1 < len(widths):
                self.down.append(nn.Conv2d(c, c, 3, stride=2, padding=1))
                skips.append(c)
        self.middle = nn.ModuleList([ResBlock(c, c), Attention(c, heads), ResBlock(c, c)])
        for level, width in reversed(list(enumerate(widths))):
            for _ in range(blocks + 1):
                self.up.append(_stack(c + skips.pop(), width, heads if level else 0))
                c = width
            if level:
                self.up.append(nn.Conv2d(c, c, 3, padding=1))
        layers = [layer for part in (self.down, self.middle, self.up) for layer in part.modules()]  # in the order they run
        self.offset_widths = [layer.c_out for layer in layers if isinstance(layer, ResBlock)]
        self.offsets = nn.Linear(c_time, sum(self.offset_widths))  # one product for all blocks
        self.head = nn.Sequential(GroupNormSiLU(_groups(c), c), _zero(nn.Conv2d(c, channels, 3, padding=1)))

    def forward(self, z: Tensor, t: Tensor) -> Tensor:
        """``z (B, C, h, w)``, ``t (B,)`` or, for one time step, ``(1,)`` → ε of z's shape."""
        time = self.time(timestep_embedding(t, self.embedding_dim).to(z.dtype))
        offsets = iter(self.offsets(time).split(self.offset_widths, dim=1))
        x = self.stem(z)
        skips = [x]
        for layer in self.down:
            x = layer(x) if isinstance(layer, nn.Conv2d) else _run(layer, x, offsets)
            skips.append(x)
        x = _run(self.middle, x, offsets)
        for layer in self.up:
            grows = isinstance(layer, nn.Conv2d)
            x = layer(_upsampled(x)) if grows else _run(layer, torch.cat([x, skips.pop()], dim=1), offsets)
        out: Tensor = self.head(x)
        return out


def _upsampled(x: Tensor) -> Tensor:
    """Nearest-neighbour upsampling by 2, in x's own precision: autocast would turn to float32 and back."""
    with torch.autocast(x.device.type, enabled=False):
        return F.interpolate(x, scale_factor=2.0, mode="nearest")


def _zero(layer: nn.Conv2d) -> nn.Conv2d:
    """Start a residual branch at zero, so that a fresh network is the identity and trains from the first step."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def _stack(c_in: int, c_out: int, heads: int) -> nn.ModuleList:
    block: list[nn.Module] = [ResBlock(c_in, c_out)]
    return nn.ModuleList([*block, Attention(c_out, heads)] if heads else block)


def _run(layers: nn.Module, x: Tensor, offsets: Iterator[Tensor]) -> Tensor:
    """Every residual block takes the next offset."""
    for layer in layers.children():
        x = layer(x, next(offsets)) if isinstance(layer, ResBlock) else layer(x)
    return x
