"""BatchNorm and ReLU. On a GPU one fused operation: torch launches five or six kernels a layer each way, most of them tiny.

Elsewhere, without Triton, and where the batch spans processes, it is torch's own.
"""

from torch import Tensor
from torch.nn import functional as F

from reshift.nets.kernels import run_on
from reshift.nets.norm import BatchNorm


class NormRelu(BatchNorm):
    """``BatchNorm``, then ReLU; the weights are BatchNorm's own."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """``(B, C, H, W)`` → the same shape."""
        if run_on(input) and self.fusible(input):
            return fused(input, self)
        return F.relu(super().forward(input))

    def fusible(self, x: Tensor) -> bool:
        """Whether every statistic is in this process, and there is one: torch refuses to train on one value per channel."""
        enough = x.numel() > (x.shape[1] if self.training else 0)
        return enough and not self.spans_processes()


def fused(x: Tensor, norm: NormRelu) -> Tensor:
    """Run ``norm`` by Triton; on the CPU only where Triton interprets its kernels."""
    from reshift.nets.norm_relu_triton import NormReluFunction

    return norm.by(NormReluFunction, x)
