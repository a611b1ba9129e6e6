"""BatchNorm whose statistics span all processes, on any backend.

torch's SyncBatchNorm runs on CUDA only. Ours also runs under gloo, so that training with two CPU processes gives what one
process gives at the same global batch, and a test can say so.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class _SumOverProcesses(torch.autograd.Function):
    """All-reduce whose gradient is an all-reduce: every process's output depends on every process's input."""

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
        return self._global_forward(input) if self.spans_processes() else super().forward(input)

    def spans_processes(self) -> bool:
        """Whether statistics must now be added up over processes."""
        return self.training and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1

    def by(self, function: Any, x: Tensor) -> Tensor:
        """``x`` through a fused ``autograd.Function`` that wants channels last, and that moves the running statistics itself."""
        running = (self.running_mean, self.running_var, self.num_batches_tracked)
        x = x.contiguous(memory_format=torch.channels_last)
        out: Tensor = function.apply(x, self.weight, self.bias, running, self.training, self.momentum, self.eps)
        return out

    def _global_forward(self, x: Tensor) -> Tensor:
        values = x.float()
        n = values.numel() / values.shape[1] * dist.get_world_size()  # every process holds the same share
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
    total: Tensor = _SumOverProcesses.apply(value)  # type: ignore[no-untyped-call]
    return total
