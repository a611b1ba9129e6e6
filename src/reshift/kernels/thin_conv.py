"""Convolutions from or to one channel, in half precision: the first layer of a grey image's networks, the last of its
decoder.

Replaces ``nn.Conv2d`` and ``nn.ConvTranspose2d``. cuDNN has no kernels for one channel that keep channels last, so it
copies the side with many channels to another order and back. Here a layer has a thin side, with one channel and
``(B, H, W)`` in memory, and a wide side, ``(B, h, w, c)``; its weight is ``(c, k, k)``. Position (i, j) of the wide side
belongs to the pixels (s·i + a - p, s·j + e - p), a and e from 0 to k - 1. A convolution widens by them; a transposed one,
and a convolution's backward pass, narrows; both have the same gradient of the weight.
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
from reshift.kernels.streams import defer

WIDEST = 128  # channels of the wide side that a program can hold
HALF = (torch.bfloat16, torch.float16)
TILE = 4096  # values of the wide side that a program holds
PROGRAMS = 512  # that share the sums of a weight's gradient
CHANNELS = 8  # whose parts a program adds up
LINES = 8  # of the thin side that a program makes, where a step is one pixel
COLUMNS = 16  # that a product of tiles must have


class ThinConv2d(Twin, nn.Conv2d):
    """``nn.Conv2d`` from one channel; in float32 torch's own."""

    @staticmethod
    def replaces(layer: Any) -> bool:
        """One channel in, and nothing unusual."""
        return fits(layer)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """``(B, 1, H, W)`` → ``(B, c, h, w)``."""
        return fused(input, self) if available.on_gpu(input) and self.weight.dtype in HALF else super().forward(input)


class ThinConvTranspose2d(Twin, nn.ConvTranspose2d):
    """``nn.ConvTranspose2d`` to one channel; in float32 torch's own."""

    @staticmethod
    def replaces(layer: Any) -> bool:
        """One channel out, and nothing unusual."""
        return fits(layer)

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """``(B, c, h, w)`` → ``(B, 1, H, W)``."""
        if available.on_gpu(input) and self.weight.dtype in HALF and output_size is None:
            return fused(input, self)
        return super().forward(input, output_size)


def fits(layer: nn.Conv2d | nn.ConvTranspose2d) -> bool:
    """Whether the kernels are made for it: one channel on its thin side, and the same sizes along both axes."""
    wide, thin, k, _ = layer.weight.shape
    alike = all(len(set(pair)) == 1 for pair in (layer.kernel_size, layer.stride, layer.padding))
    simple = layer.groups == 1 and set(layer.dilation) == {1} and set(layer.output_padding) == {0}
    return thin == 1 and alike and simple and wide <= WIDEST and k <= 4 and layer.padding_mode == "zeros"


def fused(x: Tensor, layer: nn.Conv2d | nn.ConvTranspose2d) -> Tensor:
    """Run ``layer`` by Triton; on the CPU only where Triton interprets its kernels."""
    x, weight, bias, s, p = x.to(layer.weight.dtype), layer.weight, layer.bias, layer.stride[0], int(layer.padding[0])
    narrow: Any = Narrow.apply
    widen: Any = Widen.apply
    if isinstance(layer, nn.ConvTranspose2d):
        pixels: Tensor = narrow(x, weight, bias, s, p)
        return pixels
    out: Tensor = widen(x, weight, s, p)
    return out if bias is None else out + bias.view(1, -1, 1, 1)


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
    z, weight, bias, out, H, W, h, w, c, first, step,
    BIAS: tl.constexpr, s: tl.constexpr, p: tl.constexpr, k: tl.constexpr, P: tl.constexpr, C: tl.constexpr,
    LOW: tl.constexpr, D: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """out[y, x] = bias + Σ z[i, j, :]·weight[:, a, e] over all that belong to (y, x).

    A program takes L // s lines of ``step`` times s columns, x = s·m + f. It reads a row of z once, P positions j, and multiplies
    it by all that it gives any of these lines: the product has a column for every shift j - m, line and f, most of them 0. Once
    all rows are added up, the columns are shifted and added, too. (A NaN in z thus spoils more pixels than belong to it.)
    """
    lines: tl.constexpr = L // s
    bands = tl.cdiv(H, lines)
    image, top = (tl.program_id(0) // bands).to(tl.int64), tl.program_id(0) % bands * lines
    start = tl.program_id(1) * step
    place, channel, use = tl.arange(0, P), tl.arange(0, C), tl.arange(0, D * L)
    line, f, shift = use % L // s, use % L % s, use // L + LOW
    j, e = start + first + place, f + p - shift * s
    wanted = (line < lines) & (e >= 0) & (e < k)
    value = tl.zeros((P, D * L), tl.float32)
    for turn in range((lines + s - 2) // s + (k - 1) // s + 1):
        i = (top + p) // s - (k - 1) // s + turn
        known = ((j >= 0) & (j < w) & (i >= 0) & (i < h))[:, None] & (channel < c)[None, :]
        row = tl.load(z + ((image * h + i) * w + j)[:, None] * c + channel[None, :], known, 0.0)
        a = top + line + p - i * s
        at = channel[:, None] * (k * k) + (a * k + e)[None, :]
        factor = tl.load(weight + at, (channel < c)[:, None] & (wanted & (a >= 0) & (a < k))[None, :], 0.0)
        value = tl.dot(row, factor, value, input_precision="ieee")
    where = place[:, None] + (shift - first)[None, :]
    there = (where >= 0) & (where < P)
    value = tl.where(there, tl.gather(value, tl.where(there, where, 0), 0), 0.0)
    total = tl.sum(tl.reshape(value, (P, D, L)), 1)
    if BIAS:
        total += tl.load(bias).to(tl.float32)
    y, x = top + tl.arange(0, L) // s, ((start + place) * s)[:, None] + (tl.arange(0, L) % s)[None, :]
    inside = ((tl.arange(0, L) // s < lines) & (y < H))[None, :] & (place < step)[:, None] & (x < W)
    tl.store(out + (image * H + y)[None, :] * W + x, total.to(out.dtype.element_ty), inside)


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


@triton.jit
def _add_up(parts, out, programs, c, k: tl.constexpr, T: tl.constexpr, C: tl.constexpr, S: tl.constexpr, K: tl.constexpr):
    """All programs' parts of one tap and some channels, into the weight's own order."""
    tap, channel, program = tl.program_id(0), tl.program_id(1) * K + tl.arange(0, K), tl.arange(0, S)
    at = (program[:, None] * T + tap) * C + channel[None, :]
    total = tl.sum(tl.load(parts + at, (program < programs)[:, None] & (channel < C)[None, :], 0.0), 0)
    tl.store(out + channel * (k * k) + tap, total.to(out.dtype.element_ty), channel < c)


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


def narrow(z: Tensor, weight: Tensor, bias: Tensor | None, s: int, p: int, H: int, W: int) -> Tensor:
    """``(B, c, h, w)``, channels last → ``(B, 1, H, W)``."""
    (b, _, h, w), k, steps, sizes = z.shape, weight.shape[2], triton.cdiv(W, s), _sizes(weight, s, p)
    low, high = -((k - 1 - p) // s), (s - 1 + p) // s  # the shifts at which some e is from 0 to k - 1
    D = triton.next_power_of_2(high - low + 1)
    L = max(min(LINES * s, COLUMNS), COLUMNS // D, triton.next_power_of_2(s))
    sizes["P"] = P = min(sizes["P"], max(16, triton.next_power_of_2(max(w, steps))))
    # One program has whole lines, or neighbours overlap by what is shifted out.
    first, step = (0, P) if max(w, steps) <= P else (low, P - (high - low))
    out = torch.empty(b, 1, H, W, dtype=z.dtype, device=z.device)
    grid = b * triton.cdiv(H, L // s), triton.cdiv(steps, step)
    given, sizes["BIAS"] = weight if bias is None else bias, bias is not None
    _narrow[grid](z, weight, given, out, H, W, h, w, first=first, step=step, LOW=low, D=D, L=L, **sizes)
    return out


def weight_gradient(x: Tensor, z: Tensor, weight: Tensor, s: int, p: int) -> Tensor:
    """What both sides give the weight; programs sum in a fixed order, so always the same bits."""
    (b, _, h, w), (H, W), k = z.shape, x.shape[2:], weight.shape[2]
    sizes, total, x = _sizes(weight, s, p), b * h * w, x.contiguous()
    loop = triton.cdiv(triton.cdiv(total, sizes["P"]), PROGRAMS)
    programs, T = triton.cdiv(total, sizes["P"] * loop), max(16, triton.next_power_of_2(k * k))
    parts = torch.empty(programs, T, sizes["C"], device=x.device)
    _weight[(programs,)](x, z, parts, total, H, W, h, w, LOOP=loop, T=T, **sizes)
    out, S = torch.empty_like(weight), triton.next_power_of_2(programs)
    grid = k * k, triton.cdiv(len(weight), CHANNELS)
    _add_up[grid](parts, out, programs, len(weight), k=k, T=T, C=sizes["C"], S=S, K=CHANNELS, num_warps=4)
    return out


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
        dx = narrow(dz, weight, None, *ctx.at, *x.shape[2:]) if ctx.needs_input_grad[0] else None
        trained = ctx.needs_input_grad[1]
        (dw,) = defer((weight,), lambda: (weight_gradient(x, dz, weight, *ctx.at) if trained else None,), x, dz)
        return dx, dw, None, None


class Narrow(torch.autograd.Function):
    """The transposed convolution to one channel."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, weight: Tensor, bias: Tensor | None, s: int, p: int) -> Tensor:
        """See ``narrow``."""
        z = z.contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(z, weight, bias)
        ctx.at = s, p
        H, W = ((side - 1) * s - 2 * p + weight.shape[2] for side in z.shape[2:])
        return narrow(z, weight, bias, s, p, H, W)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
        """Widen the gradient."""
        z, weight, bias = ctx.saved_tensors
        _, trained, moved, *_ = ctx.needs_input_grad

        def gradients() -> tuple[Tensor | None, Tensor | None]:
            return weight_gradient(dx, z, weight, *ctx.at) if trained else None, dx.sum().view(1) if moved else None

        dw, db = defer((weight, bias), gradients, dx, z)
        return widen(dx, weight, *ctx.at) if ctx.needs_input_grad[0] else None, dw, db, None, None
