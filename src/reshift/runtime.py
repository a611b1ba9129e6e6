"""Where and how things run: device, precision, processes. The one place that decides."""

import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from reshift.errors import UserError

VARIABLE = "RESHIFT_AMP"


class Place(NamedTuple):
    """This process among all of them."""

    rank: int
    world: int


def pick_device(name: str) -> torch.device:
    """Return ``auto`` → the GPU if there is one, else the CPU; under torchrun, each process its own GPU."""
    if name == "auto":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdigit()):
        raise UserError(f"device '{name}' is not one we run on; use auto, cpu, cuda or cuda:1")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise UserError(f"device '{name}' is not here: this machine has {torch.cuda.device_count()} usable GPUs; use auto or cpu")
    return torch.device(name)


def at(device: torch.device) -> AbstractContextManager[object]:
    """Make ``device`` the one this thread works on: kernels of our own, streams and graphs go there, wherever tensors lie."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def half_precision(device: torch.device, amp: str) -> bool:
    """Whether to compute in bf16: where asked for or, ``auto``, on a GPU."""
    return amp != "off" and (amp != "auto" or device.type == "cuda")


def precision(device: torch.device, amp: str) -> AbstractContextManager[object]:
    """Autocast to bf16 where asked for. bf16 needs no loss scaling, so there is no scaler whose state a resume must restore."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if half_precision(device, amp) else nullcontext()


def scoring(device: torch.device, detector: object) -> AbstractContextManager[object]:
    """Precision of ``predict``: bf16 on a GPU where the method allows it (``bf16``), else float32.

    The environment variable RESHIFT_AMP says otherwise: ``off`` is float32 everywhere; ``bf16`` is bf16 on the CPU, too, where
    the method allows that (``bf16_cpu``). Not by itself: results should not depend on what a processor can do.
    """
    wish = os.environ.get(VARIABLE) or "auto"
    if wish not in ("auto", "bf16", "off"):
        raise UserError(f"{VARIABLE}='{wish}' is none of auto, bf16 and off")
    allowed = getattr(detector, "bf16_cpu" if device.type == "cpu" else "bf16", False)
    return precision(device, wish) if allowed else nullcontext()


def to_device(module: nn.Module, device: torch.device) -> nn.Module:
    """Move a network; on a GPU also to channels-last, the layout its convolution kernels want."""
    module = module.to(device)
    if device.type == "cuda":
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return module


def upload(array: NDArray[np.float32], device: torch.device) -> Tensor:
    """Copy to a device; to a GPU from pinned memory, so that nobody waits for it."""
    return staged(array, device).to(device, non_blocking=True)


def staged(array: NDArray[np.float32], device: torch.device) -> Tensor:
    """A copy where ``device`` can fetch it by itself."""
    copy = torch.empty(array.shape, pin_memory=device.type == "cuda")
    copy.numpy()[:] = array  # by one thread: torch's own copy wakes one on every core, and those then wait busily
    return copy


class Arriving:
    """Numbers on their way from a GPU. Who reads them after the next work is launched does not make the GPU wait for it."""

    def __init__(self, values: Tensor) -> None:
        self.host, self.event = values, torch.cuda.Event() if values.is_cuda else None
        if self.event is not None:
            self.host = torch.empty_like(values, device="cpu", pin_memory=True).copy_(values, non_blocking=True)
            self.event.record()

    def wait(self) -> Tensor:
        """Wait for them, but not for what was launched since."""
        if self.event is not None:
            self.event.synchronize()
        return self.host

    def read(self) -> list[float]:
        """Wait, and return them as they are written."""
        numbers: list[float] = self.wait().tolist()
        return numbers


class Recording(NamedTuple):
    """A recorded function: fill ``x``, replay, read ``out``."""

    graph: torch.cuda.CUDAGraph
    x: Tensor
    out: Any

    def __call__(self, x: Tensor) -> Any:
        """What the function returns for ``x``, in tensors that the next call overwrites."""
        self.x.copy_(x)
        self.graph.replay()
        return self.out


class Recorder:
    """Run a step eagerly until it is warm, then record it once as a CUDA graph and replay it.

    A training step here is some thousand kernels of a few microseconds each: launching them costs several times what running
    them does. Off the GPU this calls the function and nothing else. ``generator`` may be seeded anew before every call.
    """

    WARM_UP = 3  # calls before recording, for cuDNN to choose its kernels and the optimiser to make its state

    def __init__(self, generator: torch.Generator, *, enabled: bool) -> None:
        self.generator, self.enabled = generator, enabled and generator.device.type == "cuda"
        self.calls: Counter[Hashable] = Counter()
        self.recordings: dict[Hashable, Recording] = {}

    def __call__(self, key: Hashable, function: Callable[[Tensor], dict[str, Tensor]], x: Tensor) -> dict[str, Tensor]:
        """``function(x)``; ``key`` names the kind of step, and one kind always does the same to tensors of the same shapes."""
        if not self.enabled:
            return function(x)
        self.calls[key] += 1
        if self.calls[key] <= self.WARM_UP:
            return self._warm(function, x)
        if key not in self.recordings:
            self.recordings[key] = self._record(function, x)
        out: dict[str, Tensor] = self.recordings[key](x)
        return out

    def _warm(self, function: Callable[[Tensor], dict[str, Tensor]], x: Tensor) -> dict[str, Tensor]:
        side = torch.cuda.Stream()  # recording happens on a side stream, so warming up must too
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            out = function(x)
        torch.cuda.current_stream().wait_stream(side)
        return out

    def _record(self, function: Callable[[Tensor], dict[str, Tensor]], x: Tensor) -> Recording:
        graph, static = torch.cuda.CUDAGraph(), x.clone()
        graph.register_generator_state(self.generator)
        first = torch.cuda.Stream(priority=-1)  # before what runs beside it
        with torch.cuda.graph(graph, stream=first, capture_error_mode="thread_local"):  # others may be reading images
            out = function(static)
        return Recording(graph, static, out)


Answer = TypeVar("Answer", bound=tuple[Tensor, ...])  # a NamedTuple


class Replays:
    """Calls of pure functions, replayed as CUDA graphs where they come often: the launches cost more than the kernels.

    The first calls of a key run as they are, so whatever comes seldom, such as a smaller last batch, always does. A graph reads
    the weights where they lay when it was recorded: they may change in place, but not move. What cannot be recorded, for want of
    memory or otherwise, goes on as it is. Threads take turns: a graph has one place for its input and one for its answer.
    """

    WARM_UP = 3  # calls before recording, for kernels to be compiled and chosen and for tables to be made
    KEPT = 4  # graphs; then the one not used for longest goes

    def __init__(self) -> None:
        self.calls: Counter[Hashable] = Counter()
        self.recordings: dict[Hashable, Recording] = {}  # the last used last
        self.refused = set[Hashable]()
        self.lock = Lock()
        self.stream: torch.cuda.Stream | None = None

    def __call__(self, key: Hashable, function: Callable[[Tensor], Answer], x: Tensor) -> Answer:
        """``function(x)``, in tensors of its own; one key always stands for the same function and shape."""
        with self.lock:
            self.calls[key] += 1
            if self.calls[key] > self.WARM_UP and self._ready(key, function, x):
                out: Answer = self.recordings[key](x)
                return type(out)(*(value.clone() for value in out))
        return function(x)

    def _ready(self, key: Hashable, function: Callable[[Tensor], Answer], x: Tensor) -> bool:
        """Whether there is a recording, now the last used."""
        if key in self.refused:
            return False
        if key not in self.recordings and len(self.recordings) == self.KEPT:
            oldest = next(iter(self.recordings))
            del self.recordings[oldest], self.calls[oldest]  # it has to come often again, or two would drive each other out
        try:
            known = self.recordings.pop(key, None)
            self.recordings[key] = known or self._record(function, x)
        except RuntimeError:
            self.refused.add(key)
        return key in self.recordings

    def _record(self, function: Callable[[Tensor], Answer], x: Tensor) -> Recording:
        """Graphs may share memory, since an answer is copied before another runs; other threads may use the GPU meanwhile."""
        graph, static = torch.cuda.CUDAGraph(), x.clone()
        pool = next((each.graph.pool() for each in self.recordings.values()), None)
        with torch.cuda.device(x.device):
            self.stream = self.stream or torch.cuda.Stream()  # our own: torch's is on whichever GPU recorded first
            with torch.cuda.graph(graph, pool, self.stream, capture_error_mode="thread_local"):
                out = function(static)
        return Recording(graph, static, out)


def meet(place: Place) -> None:
    """Wait until every process has come this far."""
    if place.world > 1:
        dist.barrier()


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
