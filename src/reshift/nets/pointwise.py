"""The linear layer, and the 1×1 convolution as one: on a GPU one kernel, where cuDNN's adds the bias in another."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from reshift.nets.beside import later


class Pointwise(nn.Conv2d):
    """``nn.Conv2d(c_in, c_out, 1)``; off the GPU to the bit."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__(c_in, c_out, 1)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """``(B, c_in, H, W)`` → ``(B, c_out, H, W)``."""
        return product(input, self) if input.is_cuda else super().forward(input)


class Linear(nn.Linear):
    """``nn.Linear``; off the GPU to the bit."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """``(n, c_in)`` → ``(n, c_out)``."""
        return linear(input, self.weight, self.bias) if input.is_cuda else super().forward(input)


def product(x: Tensor, layer: Pointwise) -> Tensor:
    """Apply ``layer`` as a matrix to every position; of a channels-last tensor nothing is copied."""
    b, c, h, w = x.shape
    y = linear(x.permute(0, 2, 3, 1).reshape(b * h * w, c), layer.weight, layer.bias)
    return y.view(b, h, w, -1).permute(0, 3, 1, 2)


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``F.linear``, also of a 1×1 convolution's weight."""
    if weight.dtype != torch.bfloat16:
        return F.linear(rows, weight.flatten(1), bias)
    y: Tensor = _Linear.apply(rows.to(weight.dtype), weight, bias)  # type: ignore[no-untyped-call]
    return y


class _Linear(Function):
    """``F.linear``, but for the bias' gradient: of few columns a GPU has a product with ones sooner than a sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        return F.linear(x, weight.flatten(1), bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight, bias = ctx.saved_tensors
        dx, dw, db = ctx.needs_input_grad

        def made() -> tuple[Tensor | None, Tensor | None]:
            return (dy.t() @ x).view_as(weight) if dw else None, column_sums(dy) if db else None

        by_weight, by_bias = later((weight, bias), made, dy, x)
        return dy @ weight.flatten(1) if dx else None, by_weight, by_bias


def column_sums(rows: Tensor) -> Tensor:
    """``(n, c)`` → ``(c,)``, as a product."""
    return _ones(len(rows), rows.dtype, rows.device).mm(rows)[0]


@lru_cache(maxsize=32)
def _ones(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.ones(1, count, dtype=dtype, device=device)
