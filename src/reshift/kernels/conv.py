"""Convolutions in training: bias and residual sum in one kernel, and the weight's gradient beside the backward pass.

Replaces ``nn.Conv2d`` and ``nets.unet.ResBlock``. cuDNN's convolutions leave the bias to a kernel of its own, whose
gradient torch sums slowly over few channels, and a gradient that is a part of a wider tensor is copied by every
kernel that reads it.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202 (a kernel has no types)

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from reshift.kernels import available
from reshift.kernels.available import Twin
from reshift.kernels.linear import column_sums
from reshift.kernels.streams import defer
from reshift.nets.unet import ResBlock

HALF = (torch.bfloat16, torch.float16)
BLOCK = 1024  # elements of a program


class FusedConv2d(Twin, nn.Conv2d):
    """``nn.Conv2d`` of more than one pixel; a 1×1 convolution is a product (linear.py)."""

    @staticmethod
    def replaces(layer: Any) -> bool:
        """Kernels of more than one pixel."""
        return bool(layer.kernel_size != (1, 1))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """``(B, c_in, H, W)`` → ``(B, c_out, h, w)``."""
        return add(convolve(input, self), self.bias, None) if available.on_gpu(input) else super().forward(input)


class FusedResBlock(Twin, ResBlock):
    """``ResBlock`` whose last bias and skip are added in one kernel."""

    def forward(self, x: Tensor, offset: Tensor) -> Tensor:
        """``(B, c_in, h, w)``, ``(B, c_out)`` → ``(B, c_out, h, w)``."""
        if not available.on_gpu(x):
            return super().forward(x, offset)
        y = convolve(self.norm(self.first(x), offset), self.second)
        return add(y, self.second.bias, self.skip(x))


def convolve(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """``x`` by the layer's weight, without the bias."""
    half = layer.weight.dtype in HALF  # and so neither in float32 nor left to autocast
    x = x.to(layer.weight.dtype) if half else x
    zero_padded = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if not (half and zero_padded and layer.weight.requires_grad):
        plain: Tensor = layer._conv_forward(x, layer.weight, None)  # noqa: SLF001
        return plain
    function: Any = _Convolution
    out: Tensor = function.apply(x, layer.weight, (layer.stride, layer.padding, layer.dilation, False, (0, 0), layer.groups))
    return out


class _Convolution(torch.autograd.Function):
    """torch's own convolution; its two gradients, each too small for the whole GPU, can run beside each other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, options: tuple[Any, ...]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.options = options
        out: Tensor = torch.ops.aten.convolution(x, weight, None, *options)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        by_x, by_weight, _ = ctx.needs_input_grad
        dy = grads[0].contiguous(memory_format=torch.channels_last)
        given = (dy, x, weight, None, *ctx.options)
        back = torch.ops.aten.convolution_backward
        (dw,) = defer((weight,), lambda: (back(*given, [False, True, False])[1] if by_weight else None,), dy, x)
        dx = back(*given, [True, False, False])[0] if by_x else None
        return dx, dw, None


def add(y: Tensor, bias: Tensor | None, other: Tensor | None) -> Tensor:
    """``y`` plus a bias per channel plus ``other``, rounded once."""
    function: Any = _Add
    out: Tensor = y if bias is None and other is None else function.apply(y, bias, other)
    return out


class _Add(torch.autograd.Function):
    """``y + bias + other`` in channels-last order."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, bias: Tensor | None, other: Tensor | None) -> Tensor:
        ctx.save_for_backward(bias)
        ctx.other_dtype = None if other is None else other.dtype
        y = y.contiguous(memory_format=torch.channels_last)
        other = None if other is None else other.contiguous(memory_format=torch.channels_last)
        out = torch.empty_like(y)
        _add[(triton.cdiv(y.numel(), BLOCK),)](
            y, y if bias is None else bias, y if other is None else other, out, y.numel(), y.shape[1],
            BIAS=bias is not None, OTHER=other is not None, BLOCK=BLOCK,
        )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (bias,), sums = ctx.saved_tensors, None
        dy = grads[0].contiguous(memory_format=torch.channels_last)
        if bias is not None and ctx.needs_input_grad[1]:
            rows = dy.permute(0, 2, 3, 1).flatten(0, 2)
            (sums,) = defer((bias,), lambda: (column_sums(rows).to(bias.dtype),), dy)
        return dy, sums, dy.to(ctx.other_dtype) if ctx.other_dtype else None


@triton.jit
def _add(y, bias, other, out, total, C, BIAS: tl.constexpr, OTHER: tl.constexpr, BLOCK: tl.constexpr):
    """out = y + bias + other, in fp32 and rounded once. A tensor is (N, C) in memory, channels last."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    known = at < total
    value = tl.load(y + at, known, 0.0).to(tl.float32)
    if BIAS:
        value += tl.load(bias + at % C, known, 0.0).to(tl.float32)
    if OTHER:
        value += tl.load(other + at, known, 0.0).to(tl.float32)
    tl.store(out + at, value.to(out.dtype.element_ty), known)
