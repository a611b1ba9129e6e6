"""The denoiser ε_ω: an attention-enhanced, time-conditioned U-Net for small latent grids."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reshift.nets.groupnorm import GroupNorm


def timestep_embedding(t: Tensor, dim: int) -> Tensor:
    """Sinusoidal features of t, ``(B,)`` → ``(B, dim)``."""
    half = dim // 2
    frequency = torch.exp(-math.log(10_000.0) * torch.arange(half, device=t.device) / half)
    angle = t.float()[:, None] * frequency
    return torch.cat([angle.cos(), angle.sin()], dim=1)


def _groups(channels: int) -> int:
    return math.gcd(32, channels)


class ResBlock(nn.Module):
    """GroupNorm–SiLU–conv twice, the time embedding added in between, around a skip."""

    def __init__(self, c_in: int, c_out: int, c_time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(GroupNorm(_groups(c_in), c_in), nn.Conv2d(c_in, c_out, 3, padding=1))
        self.time = nn.Linear(c_time, c_out)
        self.second = nn.Sequential(GroupNorm(_groups(c_out), c_out), _zero(nn.Conv2d(c_out, c_out, 3, padding=1)))
        self.skip = nn.Conv2d(c_in, c_out, 1) if c_in != c_out else nn.Identity()

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        """``(B, c_in, h, w)``, ``(B, c_time)`` → ``(B, c_out, h, w)``."""
        y = self.first(x) + self.time(emb)[:, :, None, None]
        out: Tensor = self.skip(x) + self.second(y)
        return out


class Attention(nn.Module):
    """Self-attention over all positions of the grid, with a skip."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = GroupNorm(_groups(channels), channels, act=False)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = _zero(nn.Conv2d(channels, channels, 1))

    def forward(self, x: Tensor, _emb: Tensor) -> Tensor:
        """``(B, C, h, w)`` → the same shape."""
        b, c, h, w = x.shape
        # Channels last: what the fused attention kernels want, and on a GPU how the tensor lies in memory anyway.
        qkv = self.qkv(self.norm(x)).permute(0, 2, 3, 1).reshape(b, h * w, 3, self.heads, c // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, heads, hw, C / heads) each
        y = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = x + self.out(y.transpose(1, 2).reshape(b, h, w, c).permute(0, 3, 1, 2))
        return out


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
                self.down.append(_stack(c, width, c_time, heads if level else 0))
                c = width
                skips.append(c)
            if level + 1 < len(widths):
                self.down.append(nn.Conv2d(c, c, 3, stride=2, padding=1))
                skips.append(c)
        self.middle = nn.ModuleList([ResBlock(c, c, c_time), Attention(c, heads), ResBlock(c, c, c_time)])
        for level, width in reversed(list(enumerate(widths))):
            for _ in range(blocks + 1):
                self.up.append(_stack(c + skips.pop(), width, c_time, heads if level else 0))
                c = width
            if level:
                self.up.append(nn.Conv2d(c, c, 3, padding=1))
        self.head = nn.Sequential(GroupNorm(_groups(c), c), _zero(nn.Conv2d(c, channels, 3, padding=1)))

    def forward(self, z: Tensor, t: Tensor) -> Tensor:
        """``z (B, C, h, w)``, ``t (B,)`` → ε of z's shape."""
        emb = self.time(timestep_embedding(t, self.embedding_dim).to(z.dtype))
        x = self.stem(z)
        skips = [x]
        for layer in self.down:
            x = layer(x) if isinstance(layer, nn.Conv2d) else _run(layer, x, emb)
            skips.append(x)
        x = _run(self.middle, x, emb)
        for layer in self.up:
            if isinstance(layer, nn.Conv2d):
                x = layer(F.interpolate(x, scale_factor=2.0, mode="nearest"))
            else:
                x = _run(layer, torch.cat([x, skips.pop()], dim=1), emb)
        out: Tensor = self.head(x)
        return out


def _zero(layer: nn.Conv2d) -> nn.Conv2d:
    """Start a residual branch at zero, so that a fresh network is the identity and trains from the first step."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def _stack(c_in: int, c_out: int, c_time: int, heads: int) -> nn.ModuleList:
    block: list[nn.Module] = [ResBlock(c_in, c_out, c_time)]
    return nn.ModuleList([*block, Attention(c_out, heads)] if heads else block)


def _run(layers: nn.Module, x: Tensor, emb: Tensor) -> Tensor:
    for layer in layers.children():
        x = layer(x, emb)
    return x
