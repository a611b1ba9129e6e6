"""A convolution for training in half precision on a GPU: its bias, and what is added to its output, in one kernel of ours, and
on the way back the gradients of input and weight beside each other.

cuDNN's convolutions leave the bias to a kernel of its own, whose gradient torch sums slowly over few channels, and a gradient
that is a part of a wider tensor is copied by everyone who reads it.
"""

from typing import Any

import torch
from torch import Tensor, nn

from reshift.nets.beside import beside
from reshift.nets.kernels import run_on
from reshift.nets.pointwise import column_sums

HALF = (torch.bfloat16, torch.float16)


class Conv2d(nn.Conv2d):
    """``nn.Conv2d`` that can also add another tensor to its output."""

    def forward(self, input: Tensor, other: Tensor | None = None) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """``(B, c_in, H, W)`` → ``(B, c_out, h, w)``, plus ``other`` of that shape."""
        if run_on(input):
            return plus(convolved(input, self), self.bias, other)
        y = super().forward(input)
        return y if other is None else other + y


def convolved(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """``x`` by the layer's weight alone."""
    half = x.dtype == layer.weight.dtype and x.dtype in HALF  # and so neither in float32 nor in autocast's hands
    plainly_padded = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if not (half and plainly_padded and layer.weight.requires_grad):
        plain: Tensor = layer._conv_forward(x, layer.weight, None)  # noqa: SLF001
        return plain
    function: Any = _Convolution
    out: Tensor = function.apply(x, layer.weight, (layer.stride, layer.padding, layer.dilation, False, (0, 0), layer.groups))
    return out


class _Convolution(torch.autograd.Function):
    """torch's own convolution; its two gradients, each too small for the whole card, at the same time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, how: tuple[Any, ...]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.how = how
        out: Tensor = torch.ops.aten.convolution(x, weight, None, *how)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        by_x, by_weight, _ = ctx.needs_input_grad
        dy = grads[0].contiguous(memory_format=torch.channels_last)
        given = (dy, x, weight, None, *ctx.how)
        with beside(x) as join:
            dw = torch.ops.aten.convolution_backward(*given, [False, True, False])[1] if by_weight else None
        dx = torch.ops.aten.convolution_backward(*given, [True, False, False])[0] if by_x else None
        join()
        return dx, dw, None


def plus(y: Tensor, bias: Tensor | None, other: Tensor | None) -> Tensor:
    """``y`` plus a bias per channel plus ``other`` by Triton; on the CPU only where Triton interprets its kernels."""
    function: Any = _Plus
    out: Tensor = y if bias is None and other is None else function.apply(y, bias, other)
    return out


class _Plus(torch.autograd.Function):
    """``y + bias + other`` in channels-last order, rounded once."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, bias: Tensor | None, other: Tensor | None) -> Tensor:
        from reshift.nets.conv_triton import added

        ctx.types = None if bias is None else bias.dtype, None if other is None else other.dtype
        return added(y, bias, other)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        bias, other = ctx.types
        dy = grads[0].contiguous(memory_format=torch.channels_last)
        sums = column_sums(dy.permute(0, 2, 3, 1).flatten(0, 2)).to(bias) if bias and ctx.needs_input_grad[1] else None
        return dy, sums, dy.to(other) if other else None
