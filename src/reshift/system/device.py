"""Where and how things run: device, precision, ranks, copies to and from a GPU."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from reshift.errors import UserError
from reshift.system.allocator import keep_freed_memory

VARIABLE = "RESHIFT_AMP"


class Rank(NamedTuple):
    """This process's number among those that train together, and how many there are."""

    rank: int
    world: int


def pick_device(name: str) -> torch.device:
    """``auto`` is the GPU if there is one, else the CPU; under torchrun, each rank has its own GPU."""
    if name == "auto":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdigit()):
        raise UserError(f"device '{name}' is not one we run on; use auto, cpu, cuda or cuda:1")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise UserError(f"device '{name}' is not here: this machine has {torch.cuda.device_count()} usable GPUs; use auto or cpu")
    if kind == "cpu":
        keep_freed_memory()
    return torch.device(name)


def device_scope(device: torch.device) -> AbstractContextManager[object]:
    """Make ``device`` current for this thread: our own kernels, streams and graphs go there."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def half_precision(device: torch.device, amp: str) -> bool:
    """Whether to compute in bf16: where asked for or, ``auto``, on a GPU."""
    return amp != "off" and (amp != "auto" or device.type == "cuda")


def precision(device: torch.device, amp: str) -> AbstractContextManager[object]:
    """Autocast to bf16 where asked for. bf16 needs no loss scaling, so there is no scaler whose state a resume must restore."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if half_precision(device, amp) else nullcontext()


def scoring(device: torch.device, detector: object) -> AbstractContextManager[object]:
    """Precision of ``predict``: bf16 on a GPU where the method allows it (``bf16``), else float32.

    The environment variable RESHIFT_AMP changes that: ``off`` is float32 everywhere; ``bf16`` is bf16 on the CPU, too, where the
    method allows it (``bf16_cpu``). That is never the default: results should not depend on what a processor can do.
    """
    wish = os.environ.get(VARIABLE) or "auto"
    if wish not in ("auto", "bf16", "off"):
        raise UserError(f"{VARIABLE}='{wish}' is unknown; use auto, bf16 or off")
    allowed = getattr(detector, "bf16_cpu" if device.type == "cpu" else "bf16", False)
    return precision(device, wish) if allowed else nullcontext()


def to_device(module: nn.Module, device: torch.device) -> nn.Module:
    """Move a network; on a GPU also to channels-last, the layout its convolution kernels want."""
    module = module.to(device)
    if device.type == "cuda":
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return module


def upload(array: NDArray[np.float32], device: torch.device) -> Tensor:
    """Copy to a device; to a GPU from pinned memory, without waiting for it."""
    return pinned_copy(array, device).to(device, non_blocking=True)


def pinned_copy(array: NDArray[np.float32], device: torch.device) -> Tensor:
    """A copy in host memory; for a GPU in pinned memory, from which it copies by itself."""
    copy = torch.empty(array.shape, pin_memory=device.type == "cuda")
    copy.numpy()[:] = array  # by one thread: torch's own copy wakes one on every core, and those keep spinning
    return copy


class AsyncCopy:
    """A copy from a GPU that runs in the background. Launch the next work before reading it, and the GPU does not wait."""

    def __init__(self, values: Tensor) -> None:
        self.host, self.event = values, torch.cuda.Event() if values.is_cuda else None
        if self.event is not None:
            self.host = torch.empty_like(values, device="cpu", pin_memory=True).copy_(values, non_blocking=True)
            self.event.record()

    def wait(self) -> Tensor:
        """Wait for the copy, but not for work that was launched after it."""
        if self.event is not None:
            self.event.synchronize()
        return self.host

    def read(self) -> list[float]:
        """Wait, and return the numbers as a list."""
        numbers: list[float] = self.wait().tolist()
        return numbers


def barrier(rank: Rank) -> None:
    """Wait until every rank has come this far."""
    if rank.world > 1:
        dist.barrier()


@contextmanager
def ranks(device: torch.device) -> Iterator[Rank]:
    """Join the other ranks when started by torchrun; one rank alone otherwise."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Rank(0, 1)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Rank(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
