"""A bottleneck ResNet, and what masked-image pre-training in SparK's way needs around it.

Sources: He et al., "Deep residual learning for image recognition" (2016); Tian et al., "Designing BERT for convolutional
networks: sparse and hierarchical masked modeling" (2023). Sparse convolution is emulated: hidden positions are zero on every
feature map, so that no dense convolution carries anything out of them.
"""

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from reshift.nets.norm import BatchNorm

EXPANSION = 4  # a bottleneck's output over its width


class Visible(NamedTuple):
    """The patches of a ``grid``×``grid`` image that an encoder may see, the same number in every image."""

    ids: Tensor  # (B, n), counted row by row
    grid: int

    def mask(self, size: int) -> Tensor:
        """``(B, 1, size, size)`` of 1. where visible, on a feature map of that size."""
        flat = self.ids.new_zeros(len(self.ids), self.grid**2, dtype=torch.float32).scatter(1, self.ids, 1.0)
        side = size // self.grid
        return flat.view(-1, 1, self.grid, self.grid).repeat_interleave(side, 2).repeat_interleave(side, 3)

    def positions(self, size: int) -> Tensor:
        """``(B, n·side²)``: where in a flattened feature map of that size the visible positions are."""
        side = size // self.grid
        corner = self.ids // self.grid * side * size + self.ids % self.grid * side  # (B, n)
        a = torch.arange(side, device=self.ids.device)
        return (corner[:, :, None] + (a[:, None] * size + a).flatten()).flatten(1)


def choose_visible(u: Tensor, grid: int, hidden: float) -> Visible:
    """Leave ``round((1 - hidden) · grid²)`` patches of every image, not none and not all, by the order of ``u (B, grid²)``."""
    keep = min(max(1, round((1.0 - hidden) * grid**2)), grid**2 - 1)
    return Visible(u.argsort(1)[:, :keep], grid)


class VisibleNorm(BatchNorm):
    """BatchNorm with statistics over visible positions only; hidden ones are zero afterwards.

    The zeros of hidden positions would pull mean and variance away from those of whole images, which come next. GroupNorm
    would have no such trouble, but it takes away each image's own brightness and contrast, which the code is there to tell.
    """

    def forward(self, input: Tensor, visible: Visible | None = None) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """Normalise; ``(B, C, h, w)`` → the same shape."""
        if visible is None:
            return super().forward(input)
        flat = input.flatten(2)  # (B, C, hw)
        index = visible.positions(input.shape[-1])[:, None].expand(-1, flat.shape[1], -1)
        seen = super().forward(flat.gather(2, index).unsqueeze(3)).squeeze(3)
        return torch.zeros_like(flat, dtype=seen.dtype).scatter(2, index, seen).view(input.shape)


class Bottleneck(nn.Module):
    """1×1, 3×3 (with the stride), 1×1, around a skip."""

    def __init__(self, c_in: int, width: int, stride: int) -> None:
        super().__init__()
        c_out = EXPANSION * width
        self.convs = nn.ModuleList([
            nn.Conv2d(c_in, width, 1, bias=False),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            nn.Conv2d(width, c_out, 1, bias=False),
        ])  # fmt: skip
        self.norms = nn.ModuleList([VisibleNorm(width), VisibleNorm(width), VisibleNorm(c_out)])
        self.skip = nn.Conv2d(c_in, c_out, 1, stride, bias=False) if stride > 1 or c_in != c_out else None
        self.skip_norm = VisibleNorm(c_out) if self.skip else None

    def forward(self, x: Tensor, visible: Visible | None) -> Tensor:
        """``(B, c_in, h, w)`` → ``(B, 4·width, h / stride, w / stride)``."""
        y = x
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = norm(conv(y.relu() if i else y), visible)
        if self.skip is not None and self.skip_norm is not None:
            x = self.skip_norm(self.skip(x), visible)
        return (x + y).relu()


class ResNet(nn.Module):
    """Images → codes. Depths (3, 4, 6, 3) and widths (64, 128, 256, 512) make the ResNet-50."""

    def __init__(self, channels: int, depths: tuple[int, ...], widths: tuple[int, ...], out: int) -> None:
        super().__init__()
        self.stride = total_stride(depths)
        self.stem = nn.Conv2d(channels, widths[0], 7, stride=2, padding=3, bias=False)
        self.norm = VisibleNorm(widths[0])
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.stages, c = nn.ModuleList(), widths[0]
        for i, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            strides = [2 if i else 1] + [1] * (depth - 1)
            self.stages.append(
                nn.ModuleList(Bottleneck(c if j == 0 else EXPANSION * width, width, s) for j, s in enumerate(strides))
            )
            c = EXPANSION * width
        self.fc = nn.Linear(c, out)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: Tensor, visible: Visible | None = None) -> list[Tensor]:
        """Feature maps of all stages, fine to coarse; with ``visible``, nothing hidden has any influence on them."""
        if visible is not None:
            x = x * visible.mask(x.shape[-1])
        # Pooling reaches over the edge of hidden patches; the 1×1 convolutions and norms of the first block clear them again.
        x = self.pool(self.norm(self.stem(x), visible).relu())
        maps = []
        for stage in self.stages:
            for block in stage.children():
                x = block(x, visible)
            maps.append(x)
        return maps

    def forward(self, x: Tensor) -> Tensor:
        """Codes of whole images, ``(B, C, H, W)`` → ``(B, out)``."""
        code: Tensor = self.fc(self.features(x)[-1].mean((2, 3)))
        return code


def total_stride(depths: tuple[int, ...]) -> int:
    """How many pixels, along a side, one position of the coarsest map stands for: 32 in the ResNet-50."""
    return 2 << len(depths)


class MaskedDecoder(nn.Module):
    """SparK's light decoder: every scale's hidden positions get a learned token, and scales are added on the way up."""

    def __init__(self, channels: int, widths: tuple[int, ...], decoder_width: int) -> None:
        super().__init__()
        maps = [EXPANSION * width for width in reversed(widths)]  # coarse to fine
        c = [decoder_width >> i for i in range(len(maps) + 2)]
        self.norms = nn.ModuleList(VisibleNorm(m) for m in maps)
        self.tokens = nn.ParameterList(nn.init.trunc_normal_(torch.empty(m, 1, 1), std=0.02) for m in maps)
        kernels = [1] + [3] * (len(maps) - 1)
        self.inputs = nn.ModuleList(nn.Conv2d(m, n, k, padding=k // 2) for m, n, k in zip(maps, c, kernels, strict=False))
        self.ups = nn.ModuleList(_up(a, b) for a, b in pairwise(c))
        self.head = nn.Conv2d(c[-1], channels, 1)

    def forward(self, maps: list[Tensor], visible: Visible) -> Tensor:
        """``maps`` of the encoder, fine to coarse → images ``(B, C, H, W)``."""
        x = torch.zeros((), device=maps[0].device)
        inputs = list(zip(self.norms, self.tokens, self.inputs, reversed(maps), strict=True))
        for i, up in enumerate(self.ups):
            if i < len(inputs):
                norm, token, conv, y = inputs[i]
                x = x + conv(norm(y, visible) + (1.0 - visible.mask(y.shape[-1])) * token)
            x = up(x)
        out: Tensor = self.head(x)
        return out


def _up(c_in: int, c_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.ConvTranspose2d(c_in, c_in, 4, stride=2, padding=1),
        nn.Conv2d(c_in, c_in, 3, padding=1, bias=False), BatchNorm(c_in), nn.ReLU6(),
        nn.Conv2d(c_in, c_out, 3, padding=1, bias=False), BatchNorm(c_out),
    )  # fmt: skip
