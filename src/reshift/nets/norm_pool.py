"""BatchNorm, ReLU and 2×2 max-pooling. On a GPU one fused operation that writes nothing but the pooled map.

torch writes four whole maps and their indices for this, and reads them again on the way back. Elsewhere, without Triton, and
where the batch spans processes, it is torch's own, with ReLU last: it commutes with the maximum, and has a quarter to do there.
"""

from torch import Tensor
from torch.nn import functional as F

from reshift.nets.kernels import run_on
from reshift.nets.norm import BatchNorm


class NormPool(BatchNorm):
    """``BatchNorm``, then ReLU and ``MaxPool2d(2)``; the weights are BatchNorm's own."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """``(B, C, H, W)`` → ``(B, C, H // 2, W // 2)``."""
        if run_on(input) and self.fusible(input):
            return fused(input, self)
        return F.relu(F.max_pool2d(super().forward(input), 2))

    def fusible(self, x: Tensor) -> bool:
        """Whether every position is in one window, and every statistic in this process."""
        return x.numel() > 0 and x.shape[2] % 2 == x.shape[3] % 2 == 0 and not self.spans_processes()


def fused(x: Tensor, norm: NormPool) -> Tensor:
    """Run ``norm`` by Triton; on the CPU only where Triton interprets its kernels."""
    from reshift.nets.norm_pool_triton import NormPoolFunction

    return norm.by(NormPoolFunction, x)
