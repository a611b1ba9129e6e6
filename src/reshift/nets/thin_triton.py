"""The kernels of nets/thin.py. The thin side is ``(B, H, W)`` in memory, the wide one ``(B, h, w, c)``, a weight ``(c, k, k)``.

Position (i, j) of the wide side belongs to the pixels (s·i + a - p, s·j + e - p), a and e from 0 to k - 1. A convolution widens
by them; a transposed one, and a convolution's way back, narrows; both have the same gradient of the weight.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202 (a kernel has no types)

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 4096  # values of the wide side that a program holds
PROGRAMS = 512  # that share the sums of a weight's gradient


@triton.jit
def _position(at, rows, columns):
    """Image, row and column of flat positions."""
    image, rest = at // (rows * columns), at % (rows * columns)
    return image.to(tl.int64), rest // columns, rest % columns


@triton.jit
def _widen(
    x, weight, out, total, H, W, h, w, c, s: tl.constexpr, p: tl.constexpr, k: tl.constexpr, P: tl.constexpr, C: tl.constexpr
):  # fmt: skip
    """out[i, j, :] = Σ x[s·i + a - p, s·j + e - p]·weight[:, a, e]."""
    at, channel = tl.program_id(0) * P + tl.arange(0, P), tl.arange(0, C)
    image, i, j = _position(at, h, w)
    value = tl.zeros((P, C), tl.float32)
    for a in tl.static_range(k):
        for e in tl.static_range(k):
            row, column = i * s + (a - p), j * s + (e - p)
            inside = (at < total) & (row >= 0) & (row < H) & (column >= 0) & (column < W)
            pixel = tl.load(x + image * H * W + row * W + column, inside, 0.0).to(tl.float32)
            value += pixel[:, None] * tl.load(weight + channel * (k * k) + a * k + e, channel < c, 0.0).to(tl.float32)[None, :]
    known = (at < total)[:, None] & (channel < c)[None, :]
    tl.store(out + at.to(tl.int64)[:, None] * c + channel[None, :], value.to(out.dtype.element_ty), known)


@triton.jit
def _narrow(
    z, weight, out, total, H, W, h, w, c, s: tl.constexpr, p: tl.constexpr, k: tl.constexpr, P: tl.constexpr, C: tl.constexpr
):  # fmt: skip
    """out[y, x] = Σ z[i, j, :]·weight[:, a, e] over all that belong to (y, x).

    A program takes pixels that are whole steps apart, since those have the same a and e; there are s·s kinds of them.
    """
    at, channel = tl.program_id(0) * P + tl.arange(0, P), tl.arange(0, C)
    first_y, first_x = tl.program_id(1) // s, tl.program_id(1) % s
    image, i, j = _position(at, (H + s - 1) // s, (W + s - 1) // s)
    y, x = i * s + first_y, j * s + first_x
    first_a, first_e = (first_y + p) % s, (first_x + p) % s
    value = tl.zeros((P, C), tl.float32)
    for m in tl.static_range((k + s - 1) // s):
        for n in tl.static_range((k + s - 1) // s):
            a, e = first_a + m * s, first_e + n * s
            row, column = (y + p - a) // s, (x + p - e) // s  # whole numbers; below 0 only where y + p < a
            inside = (at < total) & (a < k) & (e < k) & (y + p >= a) & (row < h) & (x + p >= e) & (column < w)
            where = (image * h + row) * w + column
            part = tl.load(z + where[:, None] * c + channel[None, :], inside[:, None] & (channel < c)[None, :], 0.0)
            factor = tl.load(weight + channel * (k * k) + a * k + e, (channel < c) & (a < k) & (e < k), 0.0)
            value += part.to(tl.float32) * factor.to(tl.float32)[None, :]
    known = (at < total) & (y < H) & (x < W)
    tl.store(out + (image * H + y) * W + x, tl.sum(value, 1).to(out.dtype.element_ty), known)


@triton.jit
def _weight(
    x, z, out, total, H, W, h, w, c,
    LOOP: tl.constexpr, s: tl.constexpr, p: tl.constexpr, k: tl.constexpr, T: tl.constexpr, P: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """This program's part of Σ x[s·i + a - p, s·j + e - p]·z[i, j, :]."""
    tap, channel = tl.arange(0, T)[:, None], tl.arange(0, C)
    value = tl.zeros((T, C), tl.float32)
    for turn in range(LOOP):
        at = (tl.program_id(0) * LOOP + turn) * P + tl.arange(0, P)
        image, i, j = _position(at, h, w)
        row, column = (i * s - p)[None, :] + tap // k, (j * s - p)[None, :] + tap % k
        inside = (at < total)[None, :] & (tap < k * k) & (row >= 0) & (row < H) & (column >= 0) & (column < W)
        pixels = tl.load(x + image[None, :] * H * W + row * W + column, inside, 0.0)
        known = (at < total)[:, None] & (channel < c)[None, :]
        part = tl.load(z + at.to(tl.int64)[:, None] * c + channel[None, :], known, 0.0)
        value += tl.dot(pixels, part, input_precision="ieee")
    where = (tl.program_id(0) * T + tap) * C + channel[None, :]
    tl.store(out + where, value)


def _sizes(weight: Tensor, s: int, p: int) -> dict[str, int]:
    c, _, k, _ = weight.shape
    C = max(16, triton.next_power_of_2(c))
    return {"c": c, "s": s, "p": p, "k": k, "P": TILE // C, "C": C, "num_warps": 4}


def widen(x: Tensor, weight: Tensor, s: int, p: int) -> Tensor:
    """``(B, 1, H, W)`` → ``(B, c, h, w)``, channels last."""
    (b, _, H, W), k, x = x.shape, weight.shape[2], x.contiguous()
    h, w = ((side + 2 * p - k) // s + 1 for side in (H, W))
    out = torch.empty(b, len(weight), h, w, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    sizes, total = _sizes(weight, s, p), b * h * w
    _widen[(triton.cdiv(total, sizes["P"]),)](x, weight, out, total, H, W, h, w, **sizes)
    return out


def narrow(z: Tensor, weight: Tensor, s: int, p: int, H: int, W: int) -> Tensor:
    """``(B, c, h, w)``, channels last → ``(B, 1, H, W)``."""
    b, _, h, w = z.shape
    out = torch.empty(b, 1, H, W, dtype=z.dtype, device=z.device)
    sizes, total = _sizes(weight, s, p), b * triton.cdiv(H, s) * triton.cdiv(W, s)
    _narrow[(triton.cdiv(total, sizes["P"]), s * s)](z, weight, out, total, H, W, h, w, **sizes)
    return out


def weight_gradient(x: Tensor, z: Tensor, weight: Tensor, s: int, p: int) -> Tensor:
    """What both sides give the weight; programs sum in a fixed order, so always the same bits."""
    (b, _, h, w), (H, W), k = z.shape, x.shape[2:], weight.shape[2]
    sizes, total, x = _sizes(weight, s, p), b * h * w, x.contiguous()
    loop = triton.cdiv(triton.cdiv(total, sizes["P"]), PROGRAMS)
    programs, T = triton.cdiv(total, sizes["P"] * loop), max(16, triton.next_power_of_2(k * k))
    parts = torch.empty(programs, T, sizes["C"], device=x.device)
    _weight[(programs,)](x, z, parts, total, H, W, h, w, LOOP=loop, T=T, **sizes)
    return parts.sum(0)[: k * k, : len(weight)].t().reshape(weight.shape).to(weight.dtype)


class Widen(torch.autograd.Function):
    """The convolution from one channel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, s: int, p: int) -> Tensor:
        """See ``widen``."""
        ctx.save_for_backward(x, weight)
        ctx.at = s, p
        return widen(x, weight, s, p)

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        """Narrow the gradient."""
        x, weight = ctx.saved_tensors
        dz = dz.contiguous(memory_format=torch.channels_last)
        dx = narrow(dz, weight, *ctx.at, *x.shape[2:]) if ctx.needs_input_grad[0] else None
        return dx, weight_gradient(x, dz, weight, *ctx.at) if ctx.needs_input_grad[1] else None, None, None


class Narrow(torch.autograd.Function):
    """The transposed convolution to one channel."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, weight: Tensor, s: int, p: int) -> Tensor:
        """See ``narrow``."""
        z = z.contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(z, weight)
        ctx.at = s, p
        H, W = ((side - 1) * s - 2 * p + weight.shape[2] for side in z.shape[2:])
        return narrow(z, weight, s, p, H, W)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        """Widen the gradient."""
        z, weight = ctx.saved_tensors
        dz = widen(dx, weight, *ctx.at) if ctx.needs_input_grad[0] else None
        return dz, weight_gradient(dx, z, weight, *ctx.at) if ctx.needs_input_grad[1] else None, None, None
