"""GroupNorm and SiLU in one operation that keeps half precision and channels-last order.

Replaces ``nets.norm.GroupNorm`` and ``GroupNormSiLU``. torch's own GroupNorm turns to fp32 under autocast and wants
channels first, so around every norm of a U-Net the whole tensor is copied several times. The kernels here are for
small maps: one program holds whole groups of one image, so each way is one launch. A group alone is only a few
channels wide; a program takes J neighbouring groups, enough for whole sectors of memory. group_norm_large.py has the
kernels for larger maps, and the memory layout.
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
from reshift.kernels.group_norm_large import LargeGroupNormFunction, _slope, pointer
from reshift.kernels.streams import defer
from reshift.nets.norm import GroupNorm, GroupNormSiLU

LARGEST = 8192  # elements that one program can hold; going back it holds twice as many tensors
CACHED = 2**24  # bytes of a tensor that stays in the card's cache
COLUMNS = 32  # channels of which a program adds up the images' shares
STRETCH, SECTOR = 64, 32  # bytes of neighbouring channels that a program should read, and must not read less than


class FusedGroupNorm(Twin, GroupNorm):
    """``GroupNorm``; the output has the input's type."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """``(B, C, H, W)`` → the same shape."""
        return fused(input, self, act=False) if available.on_gpu(input) else super().forward(input)


class FusedGroupNormSiLU(Twin, GroupNormSiLU):
    """``GroupNormSiLU``; the output has the input's type."""

    def forward(self, input: Tensor, offset: Tensor | None = None) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """``(B, C, H, W)`` → the same shape; ``offset``, ``(B, C)`` or ``(1, C)``, is added first."""
        return fused(input, self, offset, act=True) if available.on_gpu(input) else super().forward(input, offset)


def fused(x: Tensor, norm: GroupNorm, offset: Tensor | None = None, *, act: bool) -> Tensor:
    """Run ``norm`` by Triton; on the CPU only where Triton interprets its kernels."""
    function: Any = SmallGroupNormFunction if fits(x, norm.num_groups) else LargeGroupNormFunction
    x = x.contiguous(memory_format=torch.channels_last)
    if offset is not None:  # one row may serve all images: expanded, its step from image to image is 0
        offset = (offset if offset.stride(1) == 1 else offset.contiguous()).expand(len(x), -1)
    out: Tensor = function.apply(x, offset, norm.weight, norm.bias, norm.num_groups, norm.eps, act)
    return out


def fits(x: Tensor, groups: int) -> bool:
    """Whether a group of ``x (B, C, H, W)`` is small enough."""
    _, c, h, w = x.shape
    return bool(triton.next_power_of_2(h * w) * triton.next_power_of_2(c // groups) <= LARGEST)


def tile(x: Tensor, groups: int, most: int, least: int) -> dict[str, int]:
    """What a program holds: R positions (padded) of J groups of k channels (padded to K), and its warps."""
    _, c, h, w = x.shape
    k, j = c // groups, 1
    R, K = triton.next_power_of_2(h * w), triton.next_power_of_2(k)
    cached = x.numel() * x.element_size() <= CACHED
    while (
        groups % (2 * j) == 0
        and R * 2 * j * K <= most
        and not _wide_enough(j * k * x.element_size(), R * j * K, most, least, cached)
    ):
        j *= 2
    warps = 2 if cached and R * j * K <= 2048 else 4 if R * j * K <= most // 2 else 8
    return {"k": k, "R": R, "J": j, "K": K, "num_warps": warps}


def _wide_enough(stretch: int, size: int, most: int, least: int, cached: bool) -> bool:
    """Whether a program reads enough neighbouring channels, in bytes.

    From memory whole sectors, and a large tile only where a small one would read less than one: many small programs hide each
    other's waiting. What fits into the card's cache is quickest by as many programs as still hold a few bytes a row.
    """
    if stretch >= STRETCH:
        return True
    return stretch >= SECTOR // 2 and size >= least if cached else stretch >= SECTOR and 2 * size > most // 2


@triton.jit
def _places(N, C, G, k: tl.constexpr, R: tl.constexpr, J: tl.constexpr, K: tl.constexpr):
    """This program's image and J groups, where those lie in the image and in a row of channels, and which places exist."""
    b = tl.program_id(0) // (G // J)  # programs next to each other take channels next to each other
    first = tl.program_id(0) % (G // J)
    group, inner = tl.arange(0, J)[:, None], tl.arange(0, K)[None, :]
    channel = first * (J * k) + group * k + inner  # (J, K)
    known = tl.broadcast_to(inner < k, (J, K))
    row = tl.arange(0, R)[:, None, None]
    groups = b.to(tl.int64) * G + first * J + tl.arange(0, J)
    return b.to(tl.int64), groups, row * C + channel[None, :, :], (row < N) & known[None, :, :], channel, known


@triton.jit
def _load(x, offset, b, stride, at, inside, channel, known, OFFSET: tl.constexpr):
    """The program's (R, J, K) values in fp32, its image's offset added where there is one."""
    value = tl.load(x + at, inside, 0.0).to(tl.float32)
    if OFFSET:
        value += tl.load(offset + b * stride + channel, known, 0.0).to(tl.float32)[None, :, :]
        value = tl.where(inside, value, 0.0)
    return value


@triton.jit
def _forward(
    x, offset, weight, bias, out, mean, rstd, stride, N, C, G, eps,
    ACT: tl.constexpr, OFFSET: tl.constexpr, k: tl.constexpr, R: tl.constexpr, J: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """y = silu(w·(x + offset - mean) / deviation + b)."""
    b, group, at, inside, channel, known = _places(N, C, G, k, R, J, K)
    value = _load(x + b * N * C, offset, b, stride, at, inside, channel, known, OFFSET)
    m = tl.sum(tl.sum(value, 0), 1) / (N * k)  # (J,)
    centred = tl.where(inside, value - m[None, :, None], 0.0)
    r = 1.0 / tl.sqrt(tl.sum(tl.sum(centred * centred, 0), 1) / (N * k) + eps)
    w = tl.load(weight + channel, known, 0.0).to(tl.float32) * r[:, None]
    u = centred * w[None, :, :] + tl.load(bias + channel, known, 0.0).to(tl.float32)[None, :, :]
    if ACT:
        u = u * tl.sigmoid(u)
    tl.store(out + b * N * C + at, u.to(out.dtype.element_ty), inside)
    tl.store(mean + group, m)
    tl.store(rstd + group, r)


@triton.jit
def _backward(
    x, offset, dy, weight, bias, mean, rstd, dx, doffset, dw, db, stride, N, C, G,
    ACT: tl.constexpr, OFFSET: tl.constexpr, k: tl.constexpr, R: tl.constexpr, J: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """dx, its sum over the positions for the offset, and this image's share of the gradients of weight and bias."""
    b, group, at, inside, channel, known = _places(N, C, G, k, R, J, K)
    r = tl.load(rstd + group)[None, :, None]
    value = _load(x + b * N * C, offset, b, stride, at, inside, channel, known, OFFSET)
    hat = tl.where(inside, (value - tl.load(mean + group)[None, :, None]) * r, 0.0)
    w = tl.load(weight + channel, known, 0.0).to(tl.float32)
    u = hat * w[None, :, :] + tl.load(bias + channel, known, 0.0).to(tl.float32)[None, :, :]
    du = _slope(u, tl.load(dy + b * N * C + at, inside, 0.0).to(tl.float32), ACT)
    by_weight, by_bias = tl.sum(du * hat, 0), tl.sum(du, 0)  # (J, K)
    tl.store(dw + b * C + channel, by_weight, known)
    tl.store(db + b * C + channel, by_bias, known)
    level, slope = tl.sum(by_bias * w, 1) / (N * k), tl.sum(by_weight * w, 1) / (N * k)
    back = r * (du * w[None, :, :] - level[None, :, None] - hat * slope[None, :, None])
    tl.store(dx + b * N * C + at, back.to(dx.dtype.element_ty), inside)
    if OFFSET:
        total = tl.sum(tl.where(inside, back, 0.0), 0)
        tl.store(doffset + b * C + channel, total.to(doffset.dtype.element_ty), known)


@triton.jit
def _over_images(part, out, B, C, IMAGES: tl.constexpr, BLOCK: tl.constexpr):
    """Sum over the images; the second dimension of the grid says which tensor."""
    image, channel = tl.arange(0, IMAGES)[:, None], tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    which = tl.program_id(1)
    inside = (image < B) & (channel < C)[None, :]
    total = tl.sum(tl.load(part + (which * B + image) * C + channel[None, :], inside, 0.0), 0)
    tl.store(out + which * C + channel, total.to(out.dtype.element_ty), channel < C)


def over_images(part: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """``(n, B, C)`` → n times ``(C,)``; torch's own sum takes twice as long as this, and there is one for every norm."""
    n, b, c = part.shape
    out = torch.empty(n, c, dtype=dtype, device=part.device)
    _over_images[(triton.cdiv(c, COLUMNS), n)](part, out, b, c, IMAGES=triton.next_power_of_2(b), BLOCK=COLUMNS)
    return out.unbind()


class SmallGroupNormFunction(torch.autograd.Function):
    """``silu(group_norm(x + offset))`` of a channels-last tensor whose groups ``fits``."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, offset: Tensor | None, weight: Tensor, bias: Tensor, groups: int, eps: float, act: bool
    ) -> Tensor:
        """Normalise."""
        b, c, h, w = x.shape
        out, facts = torch.empty_like(x), torch.empty(2, b, groups, dtype=torch.float32, device=x.device)
        given, stride = pointer(x, offset)
        form = tile(x, groups, LARGEST, LARGEST // 4)
        _forward[(b * groups // form["J"],)](
            x, given, weight, bias, out, facts[0], facts[1], stride, h * w, c, groups, eps,
            ACT=act, OFFSET=offset is not None, **form,
        )  # fmt: skip
        ctx.save_for_backward(x, offset, weight, bias, facts)
        ctx.act = act
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Gradients of x, offset, weight and bias."""
        x, offset, weight, bias, facts = ctx.saved_tensors
        (b, c, h, w), (mean, rstd) = x.shape, facts.unbind()
        dy, dx = grads[0].contiguous(memory_format=torch.channels_last), torch.empty_like(x)
        both = torch.empty(2, b, c, dtype=torch.float32, device=x.device)
        doffset = None if offset is None else torch.empty(b, c, dtype=offset.dtype, device=x.device)
        (given, stride), groups = pointer(x, offset), mean.shape[1]
        form = tile(x, groups, LARGEST // 2, LARGEST // 16)
        _backward[(b * groups // form["J"],)](
            x, given, dy, weight, bias, mean, rstd, dx, dx if doffset is None else doffset, both[0], both[1], stride,
            h * w, c, groups, ACT=ctx.act, OFFSET=offset is not None, **form,
        )  # fmt: skip
        dw, db = defer((weight, bias), lambda: over_images(both, weight.dtype), both)
        return dx, doffset, dw, db, None, None, None
