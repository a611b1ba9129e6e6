"""The reconstruction-shift classifier f_ψ: three conv blocks, two fully connected layers, a two-class softmax."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reshift.nets.conv import Conv2d
from reshift.nets.norm_pool import NormPool
from reshift.nets.pointwise import Linear
from reshift.nets.thin import ThinConv2d

POOLED = 4  # the feature grid before the first fully connected layer, whatever the image size


def _block(c_in: int, c_out: int) -> nn.Sequential:
    conv = ThinConv2d if c_in == 1 else Conv2d
    return nn.Sequential(conv(c_in, c_out, 3, padding=1, bias=False), NormPool(c_out))  # BatchNorm would cancel a bias


class _Pool(nn.AdaptiveAvgPool2d):
    """``nn.AdaptiveAvgPool2d``; on a GPU, where all windows are alike, by the quickest kernels that torch has for each way."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """``(B, C, H, W)`` → ``(B, C, POOLED, POOLED)``."""
        h, w = input.shape[2:]
        return means(input) if input.is_cuda and not (h % POOLED or w % POOLED) else super().forward(input)


def means(x: Tensor) -> Tensor:
    """Of POOLED×POOLED equal windows."""
    out: Tensor = _Means.apply(x)  # type: ignore[no-untyped-call]
    return out


class _Means(torch.autograd.Function):
    """Every position has an equal share in its window's gradient: what an upsampling writes in one go."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.window = window = x.shape[2] // POOLED, x.shape[3] // POOLED
        return F.avg_pool2d(x, window)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        h, w = ctx.window
        share = (dy / (h * w)).contiguous(memory_format=torch.channels_last)
        with torch.autocast(dy.device.type, enabled=False):  # it would turn to float32
            return F.interpolate(share, scale_factor=(float(h), float(w)), mode="nearest")


class Classifier(nn.Module):
    """Tells original images (class 0) from their reconstructed counterparts (class 1)."""

    def __init__(self, channels: int = 1, widths: tuple[int, ...] = (32, 64, 128), hidden: int = 128) -> None:
        super().__init__()
        blocks = [_block(a, b) for a, b in zip((channels, *widths[:-1]), widths, strict=True)]
        self.convs = nn.Sequential(*blocks, _Pool(POOLED), nn.Flatten())
        self.hidden = nn.Sequential(Linear(widths[-1] * POOLED**2, hidden), nn.ReLU())
        self.out = Linear(hidden, 2)

    def features(self, x: Tensor) -> Tensor:
        """The image-level embedding before the last layer, ``(B, hidden)``."""
        embedding: Tensor = self.hidden(self.convs(x))
        return embedding

    def forward(self, x: Tensor) -> Tensor:
        """Two-class logits, ``(B, C, H, W)`` → ``(B, 2)``; f_ψ is the softmax of column one."""
        logits: Tensor = self.out(self.features(x))
        return logits
