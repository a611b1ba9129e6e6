"""Self-attention over few positions in half precision, one kernel each way. Replaces ``nets.unet.Attention``.

torch's own kernels are made for long sequences: around each, a U-Net's few positions are copied three times. One
program here holds all positions of one head of one image. ``qkv`` is ``(B, n, 3, heads, d)`` in memory; the output is
``(B, n, heads, d)``. The backward pass computes the attention weights again.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202 (a kernel has no types)

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from reshift.kernels import available
from reshift.kernels.available import Twin
from reshift.nets.unet import Attention

LARGEST = 64  # positions, and channels of a head, that one program can hold
HALF = 2  # bytes


class FusedAttention(Twin, Attention):
    """``Attention``; in float32 and for larger grids torch's own."""

    def attend(self, qkv: Tensor) -> Tensor:
        """``(B, n, 3·C)`` → ``(B, n, C)``."""
        return fused(qkv, self.heads) if available.on_gpu(qkv) and fits(qkv, self.heads) else super().attend(qkv)


def fits(qkv: Tensor, heads: int) -> bool:
    """Whether the kernels are made for these."""
    _, n, c = qkv.shape
    return qkv.element_size() == HALF and qkv.is_contiguous() and qkv.numel() > 0 and max(n, c // (3 * heads)) <= LARGEST


def fused(qkv: Tensor, heads: int) -> Tensor:
    """Attend by Triton; on the CPU only where Triton interprets its kernels."""
    function: Any = AttentionFunction
    out: Tensor = function.apply(qkv, heads)
    return out


@triton.jit
def _places(n, heads, d: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    """Where this program's queries and its output begin, rows and columns within, and which of them exist."""
    image, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    row, column = tl.arange(0, N)[:, None], tl.arange(0, D)[None, :]
    width = heads * d
    return image * n * 3 * width + head * d, image * n * width + head * d, row, column, (row < n) & (column < d)


@triton.jit
def _weights(q, k, n, scale, N: tl.constexpr):
    """Softmax of q·kᵀ over the positions there are."""
    logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    logits = tl.where(tl.arange(0, N)[None, :] < n, logits, float("-inf"))
    share = tl.exp(logits - tl.max(logits, 1)[:, None])
    return share / tl.sum(share, 1)[:, None]


@triton.jit
def _forward(qkv, out, n, heads, scale, d: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    """softmax(q·kᵀ / √d)·v."""
    start, begin, row, column, inside = _places(n, heads, d, N, D)
    width = heads * d
    at = qkv + start + row * 3 * width + column
    q, k, v = tl.load(at, inside, 0.0), tl.load(at + width, inside, 0.0), tl.load(at + 2 * width, inside, 0.0)
    p = _weights(q, k, n, scale, N)
    y = tl.dot(p.to(v.dtype), v, input_precision="ieee")
    tl.store(out + begin + row * width + column, y.to(out.dtype.element_ty), inside)


@triton.jit
def _backward(qkv, dout, dqkv, n, heads, scale, d: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    """Gradients of all three, to where they came from."""
    start, begin, row, column, inside = _places(n, heads, d, N, D)
    width = heads * d
    at, to = qkv + start + row * 3 * width + column, dqkv + start + row * 3 * width + column
    q, k, v = tl.load(at, inside, 0.0), tl.load(at + width, inside, 0.0), tl.load(at + 2 * width, inside, 0.0)
    dy = tl.load(dout + begin + row * width + column, inside, 0.0)
    p = _weights(q, k, n, scale, N)
    dv = tl.dot(tl.trans(p.to(dy.dtype)), dy, input_precision="ieee")
    dp = tl.dot(dy, tl.trans(v), input_precision="ieee")
    slope = (p * (dp - tl.sum(p * dp, 1)[:, None]) * scale).to(q.dtype)
    dq, dk = tl.dot(slope, k, input_precision="ieee"), tl.dot(tl.trans(slope), q, input_precision="ieee")
    tl.store(to, dq.to(dqkv.dtype.element_ty), inside)
    tl.store(to + width, dk.to(dqkv.dtype.element_ty), inside)
    tl.store(to + 2 * width, dv.to(dqkv.dtype.element_ty), inside)


def _sizes(qkv: Tensor, heads: int) -> tuple[int, dict[str, Any]]:
    """The number of programs, and their arguments; a product of tiles needs at least 16 rows and columns."""
    b, n, c = qkv.shape
    d = c // (3 * heads)
    N, D = (max(16, triton.next_power_of_2(size)) for size in (n, d))
    return b * heads, {"n": n, "heads": heads, "scale": d**-0.5, "d": d, "N": N, "D": D, "num_warps": 4}


class AttentionFunction(torch.autograd.Function):
    """``(B, n, 3·C)`` → ``(B, n, C)``."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int) -> Tensor:
        """See ``_forward``."""
        programs, sizes = _sizes(qkv, heads)
        out = qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3)
        _forward[(programs,)](qkv, out, **sizes)
        ctx.save_for_backward(qkv)
        ctx.heads = heads
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, None]:
        """See ``_backward``."""
        (qkv,) = ctx.saved_tensors
        programs, sizes = _sizes(qkv, ctx.heads)
        dqkv = torch.empty_like(qkv)
        _backward[(programs,)](qkv, dout.contiguous(), dqkv, **sizes)
        return dqkv, None
