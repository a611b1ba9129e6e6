"""The kernel of nets/nearest.py. Latents are (N, D) in memory, channels last; codes are (K, D)."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202 (a kernel has no types)

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 32  # latents of a program
CODES = 128  # that it looks at at once
SMALLEST = 16  # side of a product of tiles


@triton.jit
def _nearest(z, codes, out, N, K, D, TURNS: tl.constexpr, R: tl.constexpr, C: tl.constexpr, DP: tl.constexpr):
    """argmin over k of ‖e_k‖² - 2·z·e_k, the first where several are equal; ‖z‖² is the same for every k."""
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
    """``(B, d_z, h, w)``, ``(K, d_z)`` → ``(B, h, w)``."""
    (b, D, h, w), K = z_e.shape, len(codebook)
    z, codes = z_e.detach().contiguous(memory_format=torch.channels_last), codebook.detach().contiguous()
    out = torch.empty(b, h, w, dtype=torch.int64, device=z.device)
    sizes = {"R": ROWS, "C": min(CODES, max(SMALLEST, triton.next_power_of_2(K)))}
    sizes |= {"TURNS": triton.cdiv(K, sizes["C"]), "DP": max(SMALLEST, triton.next_power_of_2(D))}
    _nearest[(triton.cdiv(out.numel(), ROWS),)](z, codes, out, out.numel(), K, D, **sizes, num_warps=4)
    return out
