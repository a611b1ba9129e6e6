"""Eq. 2 on a GPU: the search in one kernel, where torch writes all distances and reads them again. Replaces
``VQVAE.quantize``.

The gradient of the codebook is a product with one-hot rows: with few codes a GPU has that sooner than torch's, which
sorts.
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
from reshift.nets.vqvae import VQVAE

WIDEST = 256  # numbers of a code that a program can hold
ROWS = 32  # latents of a program
CODES = 128  # that it looks at at once
SMALLEST = 16  # side of a product of tiles


class FusedVQVAE(Twin, VQVAE):
    """``VQVAE`` with a faster search; its other layers have twins of their own."""

    def quantize(self, z_e: Tensor) -> tuple[Tensor, Tensor]:
        """Eq. 2: indices ``(B, h, w)`` of the nearest codes, and the codes ``(B, d_z, h, w)``."""
        fits = z_e.dtype == self.codebook.dtype and 0 < z_e.shape[1] <= WIDEST
        if not (available.on_gpu(z_e) and fits):
            return super().quantize(z_e)
        k = search(z_e, self.codebook)
        return k, lookup(k, self.codebook)


def lookup(k: Tensor, codebook: Tensor) -> Tensor:
    """``core.quantize.lookup``: ``(B, h, w)`` → ``(B, d_z, h, w)``."""
    function: Any = _Rows
    rows: Tensor = function.apply(k, codebook)
    return rows.permute(0, 3, 1, 2)


class _Rows(torch.autograd.Function):
    """``codebook[k]``."""

    @staticmethod
    def forward(ctx: Any, k: Tensor, codebook: Tensor) -> Tensor:
        ctx.save_for_backward(k, codebook)
        return codebook[k]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (k, codebook), (gradient,) = ctx.saved_tensors, grads
        one_hot = gradient.new_zeros(k.numel(), len(codebook)).scatter_(1, k.reshape(-1, 1), 1.0)
        return None, one_hot.t() @ gradient.flatten(0, -2)


@triton.jit
def _nearest(z, codes, out, N, K, D, TURNS: tl.constexpr, R: tl.constexpr, C: tl.constexpr, DP: tl.constexpr):
    """argmin over k of ‖e_k‖² - 2·z·e_k, the first where several are equal. Latents are (N, D) in memory, codes (K, D)."""
    row, d = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, DP)
    known = (row < N)[:, None] & (d < D)[None, :]
    latents = tl.load(z + row.to(tl.int64)[:, None] * D + d[None, :], known, 0.0)
    best, index = tl.full((R,), float("inf"), tl.float32), tl.zeros((R,), tl.int64)
    for turn in tl.static_range(TURNS):
        code = turn * C + tl.arange(0, C)
        some = tl.load(codes + code[None, :] * D + d[:, None], (code < K)[None, :] & (d < D)[:, None], 0.0)  # (DP, C)
        distance = tl.sum(some * some, 0)[None, :] - 2.0 * tl.dot(latents, some, input_precision="tf32x3")
        distance = tl.where((code < K)[None, :], distance, float("inf"))
        least, where = tl.min(distance, 1), tl.argmin(distance, 1) + turn * C
        index = tl.where(least < best, where.to(tl.int64), index)
        best = tl.minimum(least, best)
    tl.store(out + row, index, row < N)


def search(z_e: Tensor, codebook: Tensor) -> Tensor:
    """``core.quantize.nearest_code``: ``(B, d_z, h, w)``, ``(K, d_z)`` → ``(B, h, w)``."""
    (b, D, h, w), K = z_e.shape, len(codebook)
    z, codes = z_e.detach().contiguous(memory_format=torch.channels_last), codebook.detach().contiguous()
    out = torch.empty(b, h, w, dtype=torch.int64, device=z.device)
    sizes = {"R": ROWS, "C": min(CODES, max(SMALLEST, triton.next_power_of_2(K)))}
    sizes |= {"TURNS": triton.cdiv(K, sizes["C"]), "DP": max(SMALLEST, triton.next_power_of_2(D))}
    _nearest[(triton.cdiv(out.numel(), ROWS),)](z, codes, out, out.numel(), K, D, **sizes, num_warps=4)
    return out
