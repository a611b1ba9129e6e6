"""Normalisation layers: BatchNorm over all ranks, and norms with the activation that follows them.

torch's SyncBatchNorm runs on CUDA only. Ours also runs under gloo, so training with two CPU ranks gives what one process gives
at the same global batch. A norm and its activation are one layer so that ``kernels`` can replace both by one operation.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F


class _SumOverRanks(torch.autograd.Function):
    """All-reduce whose gradient is an all-reduce: every rank's output depends on every rank's input."""

    @staticmethod
    def forward(_ctx: object, value: Tensor) -> Tensor:
        total = value.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(_ctx: object, *grads: Tensor) -> Tensor:
        total = grads[0].clone()
        dist.all_reduce(total)
        return total


class BatchNorm(nn.BatchNorm2d):
    """``nn.BatchNorm2d``, with the batch being the global batch."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """Normalise; ``(B, C, H, W)`` → the same shape."""
        return self._global_forward(input) if self.spans_ranks() else super().forward(input)

    def spans_ranks(self) -> bool:
        """Whether statistics must be summed over ranks now."""
        return self.training and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1

    def _global_forward(self, x: Tensor) -> Tensor:
        values = x.float()
        n = values.numel() / values.shape[1] * dist.get_world_size()  # every rank holds the same share
        mean = _sum(values.sum((0, 2, 3))) / n
        centred = values - mean.view(1, -1, 1, 1)
        var = _sum(centred.square().sum((0, 2, 3))) / n
        with torch.no_grad():
            momentum = self.momentum or 0.0
            self.num_batches_tracked.add_(1)  # type: ignore[union-attr]
            self.running_mean.lerp_(mean, momentum)  # type: ignore[union-attr]
            self.running_var.lerp_(var * (n / (n - 1)), momentum)  # type: ignore[union-attr]
        scale = (self.weight / (var + self.eps).sqrt()).view(1, -1, 1, 1)
        return (centred * scale + self.bias.view(1, -1, 1, 1)).to(x.dtype)


def _sum(value: Tensor) -> Tensor:
    total: Tensor = _SumOverRanks.apply(value)  # type: ignore[no-untyped-call]
    return total


class BatchNormReLU(BatchNorm):
    """BatchNorm, then ReLU."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """``(B, C, H, W)`` → the same shape."""
        return F.relu(super().forward(input))


class BatchNormReLUPool(BatchNorm):
    """BatchNorm, then ReLU and 2×2 max-pooling."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """``(B, C, H, W)`` → ``(B, C, H // 2, W // 2)``."""
        return F.max_pool2d(F.relu(super().forward(input)), 2)


class GroupNorm(nn.GroupNorm):
    """``nn.GroupNorm`` by another name: ``kernels`` replaces this one and leaves torch's own alone."""


class GroupNormSiLU(GroupNorm):
    """GroupNorm, then SiLU."""

    def forward(self, input: Tensor, offset: Tensor | None = None) -> Tensor:  # noqa: A002 (nn.Module's own name)
        """``(B, C, H, W)`` → the same shape; ``offset``, ``(B, C)`` or ``(1, C)``, is added first."""
        return F.silu(super().forward(input if offset is None else input + offset[:, :, None, None]))
