"""Convolutions that begin or end in one channel: the first of a grey image's networks, the last of its decoder.

cuDNN has no kernels for them that keep channels last, so it copies the wide side there and back. On a GPU in half precision
these have kernels of their own (thin_triton.py); elsewhere, in float32 and for colour, they are torch's.
"""

from typing import Any

import torch
from torch import Tensor, nn

from reshift.nets.kernels import run_on

WIDEST = 128  # channels of the wide side that a program can hold
HALF = (torch.bfloat16, torch.float16)


class ThinConv2d(nn.Conv2d):
    """``nn.Conv2d``."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """``(B, c_in, H, W)`` → ``(B, c_out, h, w)``."""
        if run_on(input) and self.weight.dtype in HALF and fits(self):
            return fused(input, self)
        return super().forward(input)


class ThinConvTranspose2d(nn.ConvTranspose2d):
    """``nn.ConvTranspose2d``."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """``(B, c_in, h, w)`` → ``(B, c_out, H, W)``."""
        if run_on(input) and self.weight.dtype in HALF and output_size is None and fits(self):
            return fused(input, self)
        return super().forward(input, output_size)


def fits(layer: nn.Conv2d | nn.ConvTranspose2d) -> bool:
    """Whether the kernels are made for it: one channel on its thin side, and all alike along both axes."""
    wide, thin, k, _ = layer.weight.shape
    alike = all(len(set(pair)) == 1 for pair in (layer.kernel_size, layer.stride, layer.padding))
    simple = layer.groups == 1 and set(layer.dilation) == {1} and set(layer.output_padding) == {0}
    return thin == 1 and alike and simple and wide <= WIDEST and k <= 4 and layer.padding_mode == "zeros"


def fused(x: Tensor, layer: nn.Conv2d | nn.ConvTranspose2d) -> Tensor:
    """Run ``layer`` by Triton; on the CPU only where Triton interprets its kernels."""
    from reshift.nets.thin_triton import Narrow, Widen

    x, weight, bias, s, p = x.to(layer.weight.dtype), layer.weight, layer.bias, layer.stride[0], int(layer.padding[0])
    narrow: Any = Narrow.apply
    widen: Any = Widen.apply
    if isinstance(layer, nn.ConvTranspose2d):
        pixels: Tensor = narrow(x, weight, bias, s, p)
        return pixels
    out: Tensor = widen(x, weight, s, p)
    return out if bias is None else out + bias.view(1, -1, 1, 1)
