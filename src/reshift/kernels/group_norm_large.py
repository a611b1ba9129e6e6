"""The kernels of group_norm.py for large maps. A tensor is (B, N, C) in memory: N = H·W positions of C channels,
channels last.

Forward: sums per channel over slabs of positions → per group mean and deviation, hence y = silu(a·x + c) with a, c
per image and channel → apply. The backward pass has the same three passes. All arithmetic is fp32, whatever the
tensors are. An offset per image and channel changes a, c and the like, not the passes over x.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202 (a kernel has no types)

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 4096  # elements a program looks at at once
SLABS = 32  # per image at most; not by batch size, since every other number of tiles is another kernel to compile


@triton.jit
def _slope(u, dy, ACT: tl.constexpr):
    """d loss / d u from d loss / d silu(u)."""
    if ACT:
        s = tl.sigmoid(u)
        dy = dy * s * (1.0 + u * (1.0 - s))
    return dy


@triton.jit
def _sums(x, dy, a, c, part, N, C, LOOP: tl.constexpr, BACK: tl.constexpr, ACT: tl.constexpr, R: tl.constexpr, CP: tl.constexpr):
    """Per channel Σx and Σx² or, in the backward pass, Σdu and Σdu·x, over one slab of positions of one image."""
    b, slab = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel = tl.arange(0, CP)
    known = channel < C
    first, second = tl.zeros([CP], tl.float32), tl.zeros([CP], tl.float32)
    if BACK:
        scale = tl.load(a + b * C + channel, known, 0.0)[None, :]
        offset = tl.load(c + b * C + channel, known, 0.0)[None, :]
    for i in range(LOOP):
        row = (slab * LOOP + i) * R + tl.arange(0, R)
        at = (b * N + row[:, None]) * C + channel[None, :]
        inside = (row < N)[:, None] & known[None, :]
        value = tl.load(x + at, inside, 0.0).to(tl.float32)
        if BACK:
            du = _slope(scale * value + offset, tl.load(dy + at, inside, 0.0).to(tl.float32), ACT)
            first += tl.sum(du, 0)
            second += tl.sum(du * value, 0)
        else:
            first += tl.sum(value, 0)
            second += tl.sum(value * value, 0)
    out = part + (b * tl.num_programs(1) + slab) * 2 * C + channel
    tl.store(out, first, known)
    tl.store(out + C, second, known)


@triton.jit
def _total(part, b, slabs, C, channel, known, S: tl.constexpr):
    """Add up the slabs of one group's channels."""
    slab = tl.arange(0, S)
    at = part + (b * slabs + slab[:, None]) * 2 * C + channel[None, :]
    inside = (slab < slabs)[:, None] & known[None, :]
    return tl.sum(tl.load(at, inside, 0.0), 0), tl.sum(tl.load(at + C, inside, 0.0), 0)


@triton.jit
def _coefficients(
    part, offset, weight, bias, a, c, sums, mean, rstd, stride, slabs, N, C, G, eps,
    OFFSET: tl.constexpr, S: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """One group of one image: its mean and 1 / deviation; y = a·x + c. ``sums`` are those of x + offset, per channel."""
    b, g = tl.program_id(0).to(tl.int64), tl.program_id(1)
    k = C // G
    channel = g * k + tl.arange(0, K)
    known = tl.arange(0, K) < k
    first, second = _total(part, b, slabs, C, channel, known, S)
    o = tl.zeros([K], tl.float32)
    if OFFSET:
        o = tl.load(offset + b * stride + channel, known, 0.0).to(tl.float32)
        second += o * (2.0 * first + N * o)
        first += N * o
        tl.store(sums + b * C + channel, first, known)
    m = tl.sum(first) / (N * k)
    r = 1.0 / tl.sqrt(tl.maximum(tl.sum(second) / (N * k) - m * m, 0.0) + eps)
    scale = tl.load(weight + channel, known, 0.0).to(tl.float32) * r
    tl.store(a + b * C + channel, scale, known)
    tl.store(c + b * C + channel, tl.load(bias + channel, known, 0.0).to(tl.float32) + (o - m) * scale, known)
    tl.store(mean + b * G + g, m)
    tl.store(rstd + b * G + g, r)


@triton.jit
def _back_coefficients(
    part, offset, weight, sums, mean, rstd, doffset, dw, db, cx, c0, stride, slabs, N, C, G,
    OFFSET: tl.constexpr, S: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """One group of one image: dx = a·du + cx·x + c0, dx's sum, and its share of the gradients of weight and bias."""
    b, g = tl.program_id(0).to(tl.int64), tl.program_id(1)
    k = C // G
    channel = g * k + tl.arange(0, K)
    known = tl.arange(0, K) < k
    du, du_x = _total(part, b, slabs, C, channel, known, S)
    m, r = tl.load(mean + b * G + g), tl.load(rstd + b * G + g)
    w = tl.load(weight + channel, known, 0.0).to(tl.float32)
    o = tl.zeros([K], tl.float32)
    if OFFSET:
        o = tl.load(offset + b * stride + channel, known, 0.0).to(tl.float32)
    du_xhat = (du_x + (o - m) * du) * r
    level, slope = tl.sum(du * w) / (N * k), tl.sum(du_xhat * w) / (N * k)
    if OFFSET:
        hats = (tl.load(sums + b * C + channel, known, 0.0) - N * m) * r
        total = r * (w * du - N * level - slope * hats)
        tl.store(doffset + b * C + channel, total.to(doffset.dtype.element_ty), known)
    tl.store(dw + b * C + channel, du_xhat, known)
    tl.store(db + b * C + channel, du, known)
    tl.store(cx + b * C + channel, tl.zeros([K], tl.float32) - r * r * slope, known)
    tl.store(c0 + b * C + channel, r * (r * (m - o) * slope - level), known)


@triton.jit
def _apply(x, dy, a, c, cx, c0, out, N, C, BACK: tl.constexpr, ACT: tl.constexpr, R: tl.constexpr, CP: tl.constexpr):
    """y = silu(a·x + c) or, backwards, dx = a·du + cx·x + c0."""
    b, channel = tl.program_id(0).to(tl.int64), tl.arange(0, CP)
    row = tl.program_id(1) * R + tl.arange(0, R)
    known = channel < C
    at = (b * N + row[:, None]) * C + channel[None, :]
    inside = (row < N)[:, None] & known[None, :]
    scale = tl.load(a + b * C + channel, known, 0.0)[None, :]
    value = tl.load(x + at, inside, 0.0).to(tl.float32)
    u = scale * value + tl.load(c + b * C + channel, known, 0.0)[None, :]
    if BACK:
        du = _slope(u, tl.load(dy + at, inside, 0.0).to(tl.float32), ACT)
        level = tl.load(c0 + b * C + channel, known, 0.0)[None, :]
        u = scale * du + tl.load(cx + b * C + channel, known, 0.0)[None, :] * value + level
    elif ACT:
        u = u * tl.sigmoid(u)
    tl.store(out + at, u.to(out.dtype.element_ty), inside)


class _Shape:
    """How a tensor is divided among programs."""

    def __init__(self, x: Tensor, groups: int) -> None:
        self.b, self.c, h, w = x.shape
        self.n, self.g = h * w, groups
        self.padded = triton.next_power_of_2(self.c)
        self.rows = max(1, min(triton.next_power_of_2(self.n), TILE // self.padded))
        self.loop = triton.cdiv(triton.cdiv(self.n, self.rows), SLABS)  # tiles in a slab
        self.slabs = triton.cdiv(self.n, self.loop * self.rows)
        self.tiles = {"R": self.rows, "CP": self.padded}
        self.group = {"S": triton.next_power_of_2(self.slabs), "K": triton.next_power_of_2(self.c // groups)}

    def new(self, like: Tensor, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=like.device)


def pointer(x: Tensor, offset: Tensor | None) -> tuple[Tensor, int]:
    """What a kernel is given as ``offset (B, C)``, often a part of a wider tensor, and the step from image to image."""
    return (x, 0) if offset is None else (offset, offset.stride(0))


class LargeGroupNormFunction(torch.autograd.Function):
    """``silu(group_norm(x + offset))`` of a channels-last tensor."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, offset: Tensor | None, weight: Tensor, bias: Tensor, groups: int, eps: float, act: bool
    ) -> Tensor:
        """Normalise; what backward needs are x and a few numbers per image and channel."""
        s, (given, stride) = _Shape(x, groups), pointer(x, offset)
        part, out = s.new(x, s.b, s.slabs, 2, s.c), torch.empty_like(x)
        a, c, mean, rstd = s.new(x, s.b, s.c), s.new(x, s.b, s.c), s.new(x, s.b, s.g), s.new(x, s.b, s.g)
        sums = a if offset is None else s.new(x, s.b, s.c)
        _sums[(s.b, s.slabs)](x, x, a, c, part, s.n, s.c, LOOP=s.loop, BACK=False, ACT=act, **s.tiles)
        _coefficients[(s.b, s.g)](
            part, given, weight, bias, a, c, sums, mean, rstd, stride, s.slabs, s.n, s.c, s.g, eps,
            OFFSET=offset is not None, **s.group, num_warps=1,
        )  # fmt: skip
        _apply[(s.b, triton.cdiv(s.n, s.rows))](x, x, a, c, a, c, out, s.n, s.c, BACK=False, ACT=act, **s.tiles)
        ctx.save_for_backward(x, offset, weight, a, c, sums, mean, rstd)
        ctx.groups, ctx.act = groups, act
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Gradients of x, offset, weight and bias."""
        x, offset, weight, a, c, sums, mean, rstd = ctx.saved_tensors
        s, (given, stride) = _Shape(x, ctx.groups), pointer(x, offset)
        dy, dx = grads[0].contiguous(memory_format=torch.channels_last), torch.empty_like(x)
        part, doffset = s.new(x, s.b, s.slabs, 2, s.c), None
        dw, db, cx, c0 = (s.new(x, s.b, s.c) for _ in range(4))
        if offset is not None:
            doffset = torch.empty(s.b, s.c, dtype=offset.dtype, device=x.device)
        _sums[(s.b, s.slabs)](x, dy, a, c, part, s.n, s.c, LOOP=s.loop, BACK=True, ACT=ctx.act, **s.tiles)
        _back_coefficients[(s.b, s.g)](
            part, given, weight, sums, mean, rstd, dw if doffset is None else doffset, dw, db, cx, c0, stride, s.slabs, s.n,
            s.c, s.g, OFFSET=doffset is not None, **s.group, num_warps=1,
        )  # fmt: skip
        _apply[(s.b, triton.cdiv(s.n, s.rows))](x, dy, a, c, cx, c0, dx, s.n, s.c, BACK=True, ACT=ctx.act, **s.tiles)
        return dx, doffset, dw.sum(0).to(weight.dtype), db.sum(0).to(weight.dtype), None, None, None
