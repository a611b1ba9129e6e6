"""The kernel of nets/conv.py. A tensor is (N, C) in memory: N = B·H·W positions of C channels, channels last."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202 (a kernel has no types)

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # elements of a program


@triton.jit
def _added(y, bias, other, out, total, C, BIAS: tl.constexpr, OTHER: tl.constexpr, BLOCK: tl.constexpr):
    """out = y + bias + other, in fp32 and rounded once."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    known = at < total
    value = tl.load(y + at, known, 0.0).to(tl.float32)
    if BIAS:
        value += tl.load(bias + at % C, known, 0.0).to(tl.float32)
    if OTHER:
        value += tl.load(other + at, known, 0.0).to(tl.float32)
    tl.store(out + at, value.to(out.dtype.element_ty), known)


def added(y: Tensor, bias: Tensor | None, other: Tensor | None) -> Tensor:
    """``(B, C, H, W)`` of y's type, channels last."""
    y = y.contiguous(memory_format=torch.channels_last)
    other = None if other is None else other.contiguous(memory_format=torch.channels_last)
    out = torch.empty_like(y)
    _added[(triton.cdiv(y.numel(), BLOCK),)](
        y, y if bias is None else bias, y if other is None else other, out, y.numel(), y.shape[1],
        BIAS=bias is not None, OTHER=other is not None, BLOCK=BLOCK,
    )  # fmt: skip
    return out
