"""Eq. 2's search on a GPU: one kernel, where torch writes all distances and reads them again. Elsewhere it is core's."""

from torch import Tensor

from reshift.core.quantize import nearest_code
from reshift.nets.kernels import run_on

WIDEST = 256  # numbers of a code that a program can hold


def nearest(z_e: Tensor, codebook: Tensor) -> Tensor:
    """``nearest_code``: ``(B, d_z, h, w)``, ``(K, d_z)`` → ``(B, h, w)``."""
    if run_on(z_e) and z_e.dtype == codebook.dtype and 0 < z_e.shape[1] <= WIDEST:
        return fused(z_e, codebook)
    return nearest_code(z_e, codebook)


def fused(z_e: Tensor, codebook: Tensor) -> Tensor:
    """Search by Triton; on the CPU only where Triton interprets its kernels."""
    from reshift.nets.nearest_triton import search

    return search(z_e, codebook)
