"""Weight gradients on a second stream: many kernels of a backward pass fill a small part of a GPU, and two fit side
by side.

Only while a step is being recorded: launched one by one, kernels would hardly overlap, and memory would have to be
guarded. Autograd sums gradients without waiting for other streams, so these gradients do not pass through it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache

import torch
from torch import Tensor

from reshift.kernels.available import switched_on

Gradients = Sequence[Tensor | None]


class _Deferred:
    """Gradients that are computed on ``side`` while the backward pass goes on: only the optimiser needs them."""

    def __init__(self, side: torch.cuda.Stream | None) -> None:
        self.side, self.used = side, False
        self.inputs: list[Tensor] = []  # kept alive, or their memory would be reused before the side stream has read it
        self.found: dict[int, tuple[Tensor, Tensor]] = {}

    def compute(self, weights: Gradients, function: Callable[[], Gradients], inputs: Sequence[Tensor]) -> None:
        self.used = True
        self.inputs += inputs
        if self.side is not None:
            self.side.wait_stream(torch.cuda.current_stream(self.side.device))
        with torch.cuda.stream(self.side) if self.side else nullcontext(), torch.no_grad():
            for weight, grad in zip(weights, function(), strict=True):
                if weight is not None and grad is not None:
                    before = self.found.get(id(weight))
                    self.found[id(weight)] = weight, grad if before is None else before[1] + grad

    def join(self) -> None:
        """Wait for the side stream and add its gradients to the weights' own."""
        if self.used:  # waiting for a stream that took no part in a recording would end the recording
            _wait_for(self.side)
        for weight, grad in self.found.values():
            weight.grad = grad if weight.grad is None else weight.grad + grad


_deferred: _Deferred | None = None  # of the one step that is being recorded; autograd works in a thread of its own


@contextmanager
def overlap_weight_gradients(x: Tensor) -> Iterator[None]:
    """Around ``backward()``: gradients given to ``defer`` run beside it, and are in the weights' ``grad`` at the end."""
    global _deferred  # noqa: PLW0603 (a process records one step at a time)
    if not (switched_on("streams") and _recording(x)):
        yield
        return
    _deferred = _Deferred(_side_stream(x.device))
    try:
        yield
        _deferred.join()
    finally:
        _deferred = None


def defer(weights: Gradients, function: Callable[[], Gradients], *inputs: Tensor) -> Gradients:
    """What a ``backward`` returns for its ``weights``: the gradients that ``function`` computes from ``inputs``.

    Inside ``overlap_weight_gradients`` they are computed beside the backward pass instead, and this returns None for each.
    """
    if _deferred is None or not all(weight is None or weight.is_leaf for weight in weights):
        return function()
    _deferred.compute(weights, function, inputs)
    return [None] * len(weights)


def _recording(x: Tensor) -> bool:
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


@lru_cache(maxsize=32)
def _side_stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None


def _wait_for(side: torch.cuda.Stream | None) -> None:
    if side is not None:
        torch.cuda.current_stream(side.device).wait_stream(side)
