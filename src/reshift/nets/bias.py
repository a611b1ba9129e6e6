"""A convolution's bias, and what is added to its output, in one kernel on a GPU; so, too, one look at the gradient.

cuDNN's convolutions leave the bias to a kernel of its own, whose gradient torch sums slowly over few channels, and a gradient
that is a part of a wider tensor is copied by everyone who reads it.
"""

from typing import Any

import torch
from torch import Tensor, nn

from reshift.nets.kernels import run_on
from reshift.nets.pointwise import column_sums


class BiasConv2d(nn.Conv2d):
    """``nn.Conv2d`` that can also add another tensor to its output."""

    def forward(self, input: Tensor, other: Tensor | None = None) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """``(B, c_in, H, W)`` → ``(B, c_out, h, w)``, plus ``other`` of that shape."""
        if run_on(input):
            return plus(self._conv_forward(input, self.weight, None), self.bias, other)
        y = super().forward(input)
        return y if other is None else other + y


def plus(y: Tensor, bias: Tensor | None, other: Tensor | None) -> Tensor:
    """``y`` plus a bias per channel plus ``other`` by Triton; on the CPU only where Triton interprets its kernels."""
    function: Any = Plus
    out: Tensor = y if bias is None and other is None else function.apply(y, bias, other)
    return out


class Plus(torch.autograd.Function):
    """``y + bias + other`` in channels-last order, rounded once."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, bias: Tensor | None, other: Tensor | None) -> Tensor:
        """See ``plus``."""
        from reshift.nets.bias_triton import added

        ctx.types = None if bias is None else bias.dtype, None if other is None else other.dtype
        return added(y, bias, other)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """The gradient itself, and its sum over all positions."""
        bias, other = ctx.types
        dy = grads[0].contiguous(memory_format=torch.channels_last)
        sums = column_sums(dy.permute(0, 2, 3, 1).flatten(0, 2)).to(bias) if bias and ctx.needs_input_grad[1] else None
        return dy, sums, dy.to(other) if other else None
