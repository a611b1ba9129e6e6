"""Linear layers and 1×1 convolutions in bf16. Replace ``nn.Linear`` and ``nn.Conv2d`` with a kernel of one pixel.

A 1×1 convolution is a matrix product, for which cuDNN adds the bias in a kernel of its own. The gradient of a bias is
a product with ones: over few columns a GPU has that sooner than a sum. Gradients of weights run beside the backward
pass (streams.py).
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reshift.kernels import available
from reshift.kernels.available import Twin
from reshift.kernels.streams import defer


class PointwiseConv2d(Twin, nn.Conv2d):
    """``nn.Conv2d(c_in, c_out, 1)`` as a matrix product."""

    @staticmethod
    def replaces(layer: Any) -> bool:
        """Kernels of one pixel, and nothing unusual."""
        return bool(layer.kernel_size == (1, 1) and layer.stride == (1, 1) and layer.padding == (0, 0) and layer.groups == 1)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """``(B, c_in, H, W)`` → ``(B, c_out, H, W)``."""
        return pointwise(input, self.weight, self.bias) if available.on_gpu(input) else super().forward(input)


class FusedLinear(Twin, nn.Linear):
    """``nn.Linear``."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """``(n, c_in)`` → ``(n, c_out)``."""
        return linear(input, self.weight, self.bias) if available.on_gpu(input) and input.dim() == 2 else super().forward(input)


def pointwise(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply a 1×1 convolution as a matrix to every position; a channels-last tensor is not copied."""
    b, c, h, w = x.shape
    y = linear(x.permute(0, 2, 3, 1).reshape(b * h * w, c), weight, bias)
    return y.view(b, h, w, -1).permute(0, 3, 1, 2)


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``F.linear``, also with a 1×1 convolution's weight."""
    if weight.dtype != torch.bfloat16:
        return F.linear(rows, weight.flatten(1), bias)
    y: Tensor = _Linear.apply(rows.to(weight.dtype), weight, bias)  # type: ignore[no-untyped-call]
    return y


class _Linear(torch.autograd.Function):
    """``F.linear`` with gradients of weight and bias that can be deferred."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        return F.linear(x, weight.flatten(1), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x, weight, bias), (dy,) = ctx.saved_tensors, grads
        by_x, by_weight, by_bias = ctx.needs_input_grad

        def gradients() -> tuple[Tensor | None, Tensor | None]:
            return (dy.t() @ x).view_as(weight) if by_weight else None, column_sums(dy) if by_bias else None

        dw, db = defer((weight, bias), gradients, dy, x)
        return dy @ weight.flatten(1) if by_x else None, dw, db


def column_sums(rows: Tensor) -> Tensor:
    """``(n, c)`` → ``(c,)``, as a product with ones."""
    return _ones(len(rows), rows.dtype, rows.device).mm(rows)[0]


@lru_cache(maxsize=32)
def _ones(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.ones(1, count, dtype=dtype, device=device)
