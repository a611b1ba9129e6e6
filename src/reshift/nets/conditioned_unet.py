"""A pixel U-Net conditioned on the time step and on a code of the image: the denoiser of cDDPM.

The form is that of Dhariwal and Nichol, "Diffusion models beat GANs on image synthesis" (2021): scale-shift norm, residual
blocks that also change the resolution; attention in the middle only.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reshift.nets.norm import GroupNorm, GroupNormSiLU
from reshift.nets.unet import Attention, timestep_embedding

HEAD_WIDTH = 64


def _groups(channels: int) -> int:
    return math.gcd(32, channels)


def _zero_conv(c_in: int, c_out: int) -> nn.Conv2d:
    """Start at zero, so that a fresh block is its skip."""
    conv = nn.Conv2d(c_in, c_out, 3, padding=1)
    for parameter in conv.parameters():
        nn.init.zeros_(parameter)
    return conv


class ConditionedBlock(nn.Module):
    """A residual block whose second norm is scaled and shifted by the embedding; ``factor`` 2 or ½ resizes on the way."""

    def __init__(self, c_in: int, c_out: int, c_emb: int, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor
        self.norm1, self.conv1 = GroupNormSiLU(_groups(c_in), c_in), nn.Conv2d(c_in, c_out, 3, padding=1)
        self.emb = nn.Linear(c_emb, 2 * c_out)
        self.norm2, self.conv2 = GroupNorm(_groups(c_out), c_out), _zero_conv(c_out, c_out)
        self.skip = nn.Conv2d(c_in, c_out, 1) if c_in != c_out else nn.Identity()

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        """``(B, c_in, h, w)``, ``(B, c_emb)`` → ``(B, c_out, factor·h, factor·w)``."""
        y = self.conv1(self._resize(self.norm1(x)))
        scale, shift = self.emb(F.silu(emb))[:, :, None, None].chunk(2, dim=1)
        y = self.conv2(F.silu(self.norm2(y) * (1.0 + scale) + shift))
        out: Tensor = self.skip(self._resize(x)) + y
        return out

    def _resize(self, x: Tensor) -> Tensor:
        if self.factor > 1.0:
            return F.interpolate(x, scale_factor=2.0, mode="nearest")
        return F.avg_pool2d(x, 2) if self.factor < 1.0 else x


class ConditionedUNet(nn.Module):
    """Image of any kind ← ``(B, C, H, W)``, t, and a code ``(B, 4·widths[0])``."""

    def __init__(self, channels: int, widths: tuple[int, ...] = (128, 256, 256), blocks: int = 3) -> None:
        super().__init__()
        self.base, self.c_code = widths[0], 4 * widths[0]
        self.time = _mlp(self.base, self.c_code)
        self.code = _mlp(self.c_code, self.c_code)
        c_emb, c = 2 * self.c_code, widths[0]
        self.stem = nn.Conv2d(channels, c, 3, padding=1)
        self.down, self.up, skips = nn.ModuleList(), nn.ModuleList(), [c]
        for level, width in enumerate(widths):
            for _ in range(blocks):
                self.down.append(ConditionedBlock(c, width, c_emb))
                c = width
                skips.append(c)
            if level + 1 < len(widths):
                self.down.append(ConditionedBlock(c, c, c_emb, factor=0.5))
                skips.append(c)
        attention = Attention(c, heads=math.gcd(c, max(1, c // HEAD_WIDTH)))
        self.middle = nn.ModuleList([ConditionedBlock(c, c, c_emb), attention, ConditionedBlock(c, c, c_emb)])
        for level, width in reversed(list(enumerate(widths))):
            for _ in range(blocks + 1):
                self.up.append(ConditionedBlock(c + skips.pop(), width, c_emb))
                c = width
            if level:
                self.up.append(ConditionedBlock(c, c, c_emb, factor=2.0))
        self.head = nn.Sequential(GroupNormSiLU(_groups(c), c), _zero_conv(c, channels))

    def embedding(self, t: Tensor, code: Tensor) -> Tensor:
        """What conditions every block: the embeddings of time and code, each ``(B, 4·base)``, side by side."""
        return torch.cat([self.time(timestep_embedding(t, self.base).to(code.dtype)), self.code(code)], dim=1)

    def forward(self, x: Tensor, t: Tensor, code: Tensor) -> Tensor:
        """``x (B, C, H, W)``, ``t (B,)``, ``code (B, 4·base)`` → an image of x's shape."""
        emb = self.embedding(t, code)
        x = self.stem(x)
        skips = [x]
        for block in self.down:
            x = block(x, emb)
            skips.append(x)
        for block in self.middle:
            x = block(x, emb) if isinstance(block, ConditionedBlock) else block(x)
        for block in self.up:
            grows = isinstance(block, ConditionedBlock) and block.factor > 1.0
            x = block(x if grows else torch.cat([x, skips.pop()], dim=1), emb)
        out: Tensor = self.head(x)
        return out


def _mlp(c_in: int, c_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(c_in, c_out), nn.SiLU(), nn.Linear(c_out, c_out))
