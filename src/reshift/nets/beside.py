"""A second stream for what need not wait: many kernels here fill a small part of a GPU, and two of them fit beside each other."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor


@contextmanager
def beside(x: Tensor) -> Iterator[Callable[[], None]]:
    """What is computed inside runs beside what comes after it, until the function that this yields is called.

    Only where a step is being recorded on ``x``'s GPU, and out of autograd's sight: launched one by one, kernels would hardly
    meet, and memory would have to be guarded. In a recording nothing is freed for others before both streams are one again.
    """
    if not (x.is_cuda and torch.cuda.is_current_stream_capturing()):
        yield _nothing
        return
    main, side = torch.cuda.current_stream(x.device), _side(x.device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        yield lambda: main.wait_stream(side)


@lru_cache(maxsize=32)
def _side(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _nothing() -> None:
    """There is nothing to wait for."""
