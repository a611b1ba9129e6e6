"""The kernels of nets/groupnorm.py for small maps: one program holds a whole group of one image, so each way is one launch.

A latent U-Net's step is bound by the number of its kernels, not by what they read. Layout as in groupnorm_triton.py.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202 (a kernel has no types)

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from reshift.nets.groupnorm_triton import _slope

LARGEST = 8192  # elements of a group that one program can hold


def fits(x: Tensor, groups: int) -> bool:
    """Whether a group of ``x (B, C, H, W)`` is small enough."""
    _, c, h, w = x.shape
    return bool(triton.next_power_of_2(h * w) * triton.next_power_of_2(c // groups) <= LARGEST)


@triton.jit
def _load(x, b, g, N, C, k, R: tl.constexpr, K: tl.constexpr):
    """One group of one image, (R, K) in fp32, with its places in memory and which of them exist."""
    row, inner = tl.arange(0, R), tl.arange(0, K)
    at = (b * N + row[:, None]) * C + g * k + inner[None, :]
    inside = (row < N)[:, None] & (inner < k)[None, :]
    return tl.load(x + at, inside, 0.0).to(tl.float32), at, inside


@triton.jit
def _affine(weight, bias, g, k, K: tl.constexpr):
    inner = tl.arange(0, K)
    known = inner < k
    w = tl.load(weight + g * k + inner, known, 0.0).to(tl.float32)
    return w[None, :], tl.load(bias + g * k + inner, known, 0.0).to(tl.float32)[None, :]


@triton.jit
def _forward(x, weight, bias, out, mean, rstd, N, C, G, eps, ACT: tl.constexpr, R: tl.constexpr, K: tl.constexpr):
    """y = silu(w·(x - mean) / deviation + b)."""
    b, g = tl.program_id(0).to(tl.int64), tl.program_id(1)
    k = C // G
    value, at, inside = _load(x, b, g, N, C, k, R, K)
    m = tl.sum(tl.sum(value, 1), 0) / (N * k)
    centred = tl.where(inside, value - m, 0.0)
    r = 1.0 / tl.sqrt(tl.sum(tl.sum(centred * centred, 1), 0) / (N * k) + eps)
    w, shift = _affine(weight, bias, g, k, K)
    u = centred * r * w + shift
    if ACT:
        u = u * tl.sigmoid(u)
    tl.store(out + at, u.to(out.dtype.element_ty), inside)
    tl.store(mean + b * G + g, m)
    tl.store(rstd + b * G + g, r)


@triton.jit
def _backward(
    x, dy, weight, bias, mean, rstd, dx, dw, db, N, C, G, ACT: tl.constexpr, R: tl.constexpr, K: tl.constexpr
):  # fmt: skip
    """dx, and this image's share of the gradients of weight and bias."""
    b, g = tl.program_id(0).to(tl.int64), tl.program_id(1)
    k = C // G
    value, at, inside = _load(x, b, g, N, C, k, R, K)
    m, r = tl.load(mean + b * G + g), tl.load(rstd + b * G + g)
    hat = tl.where(inside, (value - m) * r, 0.0)
    w, shift = _affine(weight, bias, g, k, K)
    du = _slope(hat * w + shift, tl.load(dy + at, inside, 0.0).to(tl.float32), ACT)
    by_weight, by_bias = tl.sum(du * hat, 0), tl.sum(du, 0)
    inner = tl.arange(0, K)
    tl.store(dw + b * C + g * k + inner, by_weight, inner < k)
    tl.store(db + b * C + g * k + inner, by_bias, inner < k)
    du = du * w
    level, slope = tl.sum(tl.sum(du, 1), 0) / (N * k), tl.sum(tl.sum(du * hat, 1), 0) / (N * k)
    tl.store(dx + at, (r * (du - level - hat * slope)).to(dx.dtype.element_ty), inside)


class SmallGroupNormFunction(torch.autograd.Function):
    """``silu(group_norm(x))`` of a channels-last tensor whose groups ``fits``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, act: bool) -> Tensor:
        """Normalise."""
        b, c, h, w = x.shape
        out, facts = torch.empty_like(x), torch.empty(2, b, groups, dtype=torch.float32, device=x.device)
        tile = {"R": triton.next_power_of_2(h * w), "K": triton.next_power_of_2(c // groups)}
        _forward[(b, groups)](x, weight, bias, out, facts[0], facts[1], h * w, c, groups, eps, ACT=act, **tile)
        ctx.save_for_backward(x, weight, bias, facts)
        ctx.act, ctx.tile = act, tile
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Gradients of x, weight and bias."""
        x, weight, bias, facts = ctx.saved_tensors
        (b, c, h, w), (mean, rstd) = x.shape, facts.unbind()
        dy, dx = grads[0].contiguous(memory_format=torch.channels_last), torch.empty_like(x)
        both = torch.empty(2, b, c, dtype=torch.float32, device=x.device)
        groups = mean.shape[1]
        _backward[(b, groups)](
            x, dy, weight, bias, mean, rstd, dx, both[0], both[1], h * w, c, groups, ACT=ctx.act, **ctx.tile
        )  # fmt: skip
        dw, db = both.sum(1).to(weight.dtype).unbind()
        return dx, dw, db, None, None, None
