"""The first eight blocks of DINOv2 ViT-S/14, a vision transformer trained without labels (Oquab et al., "DINOv2", 2023)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reshift.nets.features import FeatureNet

WIDTH, HEADS, PATCH = 384, 6, 14
GRID = 37  # patches a side of the images it was trained with
BLOCKS = (3, 5, 7)  # whose tokens become maps
EPS = 1e-6


class Block(nn.Module):
    """Attention and two layers per token, each behind a norm and scaled per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, EPS), nn.LayerNorm(WIDTH, EPS)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.scale1, self.scale2 = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """``(B, n, c)`` → the same shape."""
        B, n, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, n, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, n, WIDTH)
        x = x + self.scale1 * self.proj(found)
        y: Tensor = x + self.scale2 * self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return y


class DinoV2(FeatureNet):
    """Tokens of blocks 3, 5 and 7 after the final norm, as maps at a stride of 14."""

    channels = (WIDTH, WIDTH, WIDTH)
    side, multiple = 336, PATCH
    pixel_mean, pixel_std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

    def __init__(self, name: str, sha256: str) -> None:
        super().__init__(name, sha256)
        self.patch = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.cls, self.pos = nn.Parameter(torch.zeros(1, 1, WIDTH)), nn.Parameter(torch.zeros(1, 1 + GRID**2, WIDTH))
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(BLOCKS[-1] + 1)), nn.LayerNorm(WIDTH, EPS)
        self._positions = dict[tuple[int, int], Tensor]()  # by grid, on the network's device

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        """Forget what was computed for another device or type."""
        self._positions.clear()
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def _maps(self, x: Tensor) -> list[Tensor]:
        x = self.patch(x)  # (B, c, h, w)
        B, _, h, w = x.shape
        first = (self.cls + self.pos[:, :1]).expand(B, -1, -1)
        x, found = torch.cat([first, x.flatten(2).transpose(1, 2) + self._position(h, w)], 1), []
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i in BLOCKS:
                found.append(self.norm(x)[:, 1:].transpose(1, 2).reshape(B, WIDTH, h, w))
        return found

    def _position(self, h: int, w: int) -> Tensor:
        """The embedding of places, resized to a grid of ``h``×``w`` patches once: ``(1, h·w, c)``."""
        if (h, w) not in self._positions:
            with torch.inference_mode(False), torch.no_grad():  # kept for callers of every kind
                grid = self.pos[:, 1:].view(1, GRID, GRID, WIDTH).permute(0, 3, 1, 2)
                resized = F.interpolate(grid, size=(h, w), mode="bicubic")
                self._positions[h, w] = resized.flatten(2).transpose(1, 2).contiguous()
        return self._positions[h, w]
