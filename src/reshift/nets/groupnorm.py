"""GroupNorm followed by SiLU. On a GPU one fused operation that stays in half precision and in channels-last order.

torch's own GroupNorm does neither: under autocast it turns to fp32, and it wants channels first, so that around every norm of a
U-Net the whole tensor is copied several times. Elsewhere, and without Triton, this is torch's own.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reshift.nets.kernels import run_on


class GroupNorm(nn.GroupNorm):
    """``nn.GroupNorm``, then SiLU unless ``act`` is False."""

    def __init__(self, groups: int, channels: int, *, act: bool = True) -> None:
        super().__init__(groups, channels)
        self.act = act

    def forward(self, input: Tensor, offset: Tensor | None = None) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """``(B, C, H, W)``, to which ``offset``, ``(B, C)`` or ``(1, C)``, is first added → the same shape, fused also type."""
        if run_on(input):
            return fused(input, self, offset)
        y = super().forward(input if offset is None else input + offset[:, :, None, None])
        return F.silu(y) if self.act else y


def fused(x: Tensor, norm: GroupNorm, offset: Tensor | None = None) -> Tensor:
    """Run ``norm`` by Triton; on the CPU only where Triton interprets its kernels."""
    from reshift.nets.groupnorm_small import SmallGroupNormFunction, fits
    from reshift.nets.groupnorm_triton import GroupNormFunction

    function: Any = SmallGroupNormFunction if fits(x, norm.num_groups) else GroupNormFunction
    x = x.contiguous(memory_format=torch.channels_last)
    if offset is not None:  # one row may serve all images: expanded, its step from image to image is 0
        offset = (offset if offset.stride(1) == 1 else offset.contiguous()).expand(len(x), -1)
    out: Tensor = function.apply(x, offset, norm.weight, norm.bias, norm.num_groups, norm.eps, norm.act)
    return out
