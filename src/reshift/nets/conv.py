"""A convolution for training in half precision on a GPU: its bias, and what is added to its output, in one kernel of ours, and
on the way back the gradient of the weight beside whatever comes next.

cuDNN's convolutions leave the bias to a kernel of its own, whose gradient torch sums slowly over few channels, and a gradient
that is a part of a wider tensor is copied by everyone who reads it.
"""

from typing import Any

import torch
from torch import Tensor, nn

from reshift.nets.beside import later
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
    half = layer.weight.dtype in HALF  # and so neither in float32 nor in autocast's hands
    x = x.to(layer.weight.dtype) if half else x
    plainly_padded = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if not (half and plainly_padded and layer.weight.requires_grad):
        plain: Tensor = layer._conv_forward(x, layer.weight, None)  # noqa: SLF001
        return plain
    function: Any = _Convolution
    out: Tensor = function.apply(x, layer.weight, (layer.stride, layer.padding, layer.dilation, False, (0, 0), layer.groups))
    return out


class _Convolution(torch.autograd.Function):
    """torch's own convolution; its two gradients, each too small for the whole card, apart from each other."""

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
        back = torch.ops.aten.convolution_backward
        (dw,) = later((weight,), lambda: (back(*given, [False, True, False])[1] if by_weight else None,), dy, x)
        dx = back(*given, [True, False, False])[0] if by_x else None
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

        ctx.save_for_backward(bias)
        ctx.other = None if other is None else other.dtype
        return added(y, bias, other)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (bias,), sums = ctx.saved_tensors, None
        dy = grads[0].contiguous(memory_format=torch.channels_last)
        if bias is not None and ctx.needs_input_grad[1]:
            rows = dy.permute(0, 2, 3, 1).flatten(0, 2)
            (sums,) = later((bias,), lambda: (column_sums(rows).to(bias.dtype),), dy)
        return dy, sums, dy.to(ctx.other) if ctx.other else None
