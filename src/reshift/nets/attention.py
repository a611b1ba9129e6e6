"""Self-attention over few positions. On a GPU in half precision one kernel each way, which reads and writes as the tensors lie.

torch's own kernels are made for long sequences: around each, a U-Net's few positions were copied three times. Elsewhere, without
Triton, in float32 and for larger grids, this is torch's own.
"""

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from reshift.nets.kernels import run_on

LARGEST = 64  # positions, and channels of a head, that one program can hold
HALF = 2  # bytes


def attend(qkv: Tensor, heads: int) -> Tensor:
    """Queries, keys and values of every position side by side, ``(B, n, 3·C)`` → ``(B, n, C)``."""
    return fused(qkv, heads) if run_on(qkv) and fits(qkv, heads) else plain(qkv, heads)


def fits(qkv: Tensor, heads: int) -> bool:
    """Whether the kernels are made for these."""
    _, n, c = qkv.shape
    return qkv.element_size() == HALF and qkv.is_contiguous() and qkv.numel() > 0 and max(n, c // (3 * heads)) <= LARGEST


def plain(qkv: Tensor, heads: int) -> Tensor:
    """Torch's attention."""
    b, n, c = qkv.shape
    q, k, v = qkv.view(b, n, 3, heads, c // (3 * heads)).permute(2, 0, 3, 1, 4)  # (B, heads, n, C / heads) each
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c // 3)


def fused(qkv: Tensor, heads: int) -> Tensor:
    """Attend by Triton; on the CPU only where Triton interprets its kernels."""
    from reshift.nets.attention_triton import AttentionFunction

    function: Any = AttentionFunction
    out: Tensor = function.apply(qkv, heads)
    return out
