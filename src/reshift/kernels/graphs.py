"""Recorded GPU work: a training step or a prediction is recorded once as a CUDA graph, then replayed."""

from collections import Counter
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from reshift.kernels.available import switched_on


class Recording(NamedTuple):
    """A recorded function: fill ``x``, replay, read ``out``."""

    graph: torch.cuda.CUDAGraph
    x: Tensor
    out: Any

    def __call__(self, x: Tensor) -> Any:
        """The function's output for ``x``, in tensors that the next call overwrites."""
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
        self.generator = generator
        self.enabled = enabled and generator.device.type == "cuda" and switched_on("graphs")
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
        main = torch.cuda.Stream(priority=-1)  # goes before the weight gradients on their side stream
        with torch.cuda.graph(graph, stream=main, capture_error_mode="thread_local"):  # others may be reading images
            out = function(static)
        return Recording(graph, static, out)


Output = TypeVar("Output", bound=tuple[Tensor, ...])  # a NamedTuple


class GraphCache:
    """Calls of pure functions, replayed as CUDA graphs where they are frequent: the launches cost more than the kernels.

    The first calls of a key run plainly, so a rare shape, such as a smaller last batch, is never recorded. A graph reads the
    weights at their addresses when it was recorded: they may change in place, but not move. What cannot be recorded, for lack
    of memory or otherwise, runs plainly. Threads take turns: a graph has one input and one output.
    """

    WARM_UP = 3  # calls before recording, for kernels to be compiled and chosen and for tables to be made
    KEPT = 4  # graphs; then the least recently used one is dropped

    def __init__(self) -> None:
        self.calls: Counter[Hashable] = Counter()
        self.recordings: dict[Hashable, Recording] = {}  # the most recently used last
        self.refused = set[Hashable]()
        self.lock = Lock()
        self.stream: torch.cuda.Stream | None = None

    def __call__(self, key: Hashable, function: Callable[[Tensor], Output], x: Tensor) -> Output:
        """``function(x)``, in new tensors; one key always stands for the same function and shape."""
        with self.lock:
            self.calls[key] += 1
            if switched_on("graphs") and self.calls[key] > self.WARM_UP and self._ready(key, function, x):
                out: Output = self.recordings[key](x)
                return type(out)(*(value.clone() for value in out))
        return function(x)

    def _ready(self, key: Hashable, function: Callable[[Tensor], Output], x: Tensor) -> bool:
        """Whether there is a recording; if so it becomes the most recently used."""
        if key in self.refused:
            return False
        if key not in self.recordings and len(self.recordings) == self.KEPT:
            oldest = next(iter(self.recordings))
            del self.recordings[oldest], self.calls[oldest]  # it has to become frequent again, or two would evict each other
        try:
            known = self.recordings.pop(key, None)
            self.recordings[key] = known or self._record(function, x)
        except RuntimeError:
            self.refused.add(key)
        return key in self.recordings

    def _record(self, function: Callable[[Tensor], Output], x: Tensor) -> Recording:
        """Graphs share memory, since an output is copied before another runs; other threads may use the GPU meanwhile."""
        graph, static = torch.cuda.CUDAGraph(), x.clone()
        pool = next((each.graph.pool() for each in self.recordings.values()), None)
        with torch.cuda.device(x.device):
            self.stream = self.stream or torch.cuda.Stream()  # our own: torch's is on whichever GPU recorded first
            with torch.cuda.graph(graph, pool, self.stream, capture_error_mode="thread_local"):
                out = function(static)
        return Recording(graph, static, out)
