"""Other streams for what need not wait: many kernels here fill a small part of a GPU, and two of them fit beside each other.

Only where a step is being recorded: launched one by one, kernels would hardly meet, and memory would have to be guarded. Nothing
here is seen by autograd, whose nodes all belong to the stream that records.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial

import torch
from torch import Tensor

Gradients = Sequence[Tensor | None]


@contextmanager
def beside(x: Tensor) -> Iterator[Callable[[], None]]:
    """What is computed inside runs beside what comes after it, until the function that this yields is called.

    Without gradients, and for ``x``'s GPU. What it reads must live until then, what it makes may be used from then on.
    """
    if not _recording(x):
        yield _nothing
        return
    side = _stream(x.device, 0)
    with _on(side):
        yield partial(_join, side)


class _Late:
    """Gradients of weights on their way: nobody needs them before the optimiser does."""

    def __init__(self, side: torch.cuda.Stream | None) -> None:
        self.side, self.used = side, False
        self.read: list[Tensor] = []  # kept, or the memory would be given to others that do not wait for us
        self.found: dict[int, tuple[Tensor, Tensor]] = {}

    def take(self, weights: Gradients, made: Callable[[], Gradients], reads: Sequence[Tensor]) -> None:
        self.used = True
        self.read += reads
        with _on(self.side), torch.no_grad():
            for weight, grad in zip(weights, made(), strict=True):
                if weight is not None and grad is not None:
                    before = self.found.get(id(weight))
                    self.found[id(weight)] = weight, grad if before is None else before[1] + grad

    def hand_over(self) -> None:
        if self.used:  # else the other stream takes no part in the recording, and to wait for it would end that
            _join(self.side)
        for weight, grad in self.found.values():
            weight.grad = grad if weight.grad is None else weight.grad + grad


_late: _Late | None = None  # of the one step that is being recorded; autograd works in a thread of its own


@contextmanager
def weights_last(x: Tensor) -> Iterator[None]:
    """Around ``backward()``: what ``later`` is given runs beside it, and is in the weights' ``grad`` at the end."""
    global _late  # noqa: PLW0603 (a process records one step at a time)
    if not _recording(x):
        yield
        return
    _late = _Late(_stream(x.device, 1))
    try:
        yield
        _late.hand_over()
    finally:
        _late = None


def later(weights: Gradients, made: Callable[[], Gradients], *reads: Tensor) -> Gradients:
    """What a ``backward`` returns for its weights: the gradients that ``made`` computes from ``reads``, or None for each, since
    ``weights_last`` will hand them over.
    """
    if _late is None or not all(weight is None or weight.is_leaf for weight in weights):
        return made()
    _late.take(weights, made, reads)
    return [None] * len(weights)


def _recording(x: Tensor) -> bool:
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


@lru_cache(maxsize=32)
def _stream(device: torch.device, _number: int) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None


@contextmanager
def _on(side: torch.cuda.Stream | None) -> Iterator[None]:
    """Inside, kernels go to ``side``, after all that was launched before."""
    if side is None:
        yield
        return
    side.wait_stream(torch.cuda.current_stream(side.device))
    with torch.cuda.stream(side):
        yield


def _join(side: torch.cuda.Stream | None) -> None:
    if side is not None:
        torch.cuda.current_stream(side.device).wait_stream(side)


def _nothing() -> None:
    """There is nothing to wait for."""
