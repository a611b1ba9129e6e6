"""Where and how things run: device, precision, processes. The one place that decides."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist

from reshift.errors import UserError


class Place(NamedTuple):
    """This process among all of them."""

    rank: int
    world: int


def pick_device(name: str) -> torch.device:
    """Return ``auto`` → the GPU if there is one, else the CPU; under torchrun, each process its own GPU."""
    if name == "auto":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"train.device '{name}' is not a device; use auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"train.device is '{name}' but this machine has no usable GPU; use auto or cpu")
    return device


def precision(device: torch.device, amp: str) -> AbstractContextManager[object]:
    """Autocast to bf16 where asked for. bf16 needs no loss scaling, so there is no scaler whose state a resume must restore."""
    if amp == "off" or (amp == "auto" and device.type != "cuda"):
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


@contextmanager
def processes(device: torch.device) -> Iterator[Place]:
    """Join the other processes when started by torchrun; alone otherwise."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Place(0, 1)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Place(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
