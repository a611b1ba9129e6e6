"""Operations that ONNX does not have, in terms of those that it has. While a detector is traced, they take their place.

Each gives what torch's own gives, to the rounding of float32; tests/export/test_operations.py compares them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class Found(NamedTuple):
    """What torch's reductions return."""

    values: Tensor
    indices: Tensor


def cdist(a: Tensor, b: Tensor, p: float = 2.0, compute_mode: str = "") -> Tensor:  # noqa: ARG001
    """Euclidean distances; there is no such operation."""
    if p != 2.0:
        raise NotImplementedError(f"cdist with p = {p}")
    return (a[..., :, None, :] - b[..., None, :, :]).square().sum(-1).sqrt()


def searchsorted(levels: Tensor, values: Tensor) -> Tensor:
    """How many of the ascending ``levels (n,)`` are below each value, by halving."""
    n = levels.shape[0]
    step = 1 << (n.bit_length() - 1)
    padded = torch.cat([levels, levels.new_full((2 * step - 1,), torch.inf)])
    place = torch.zeros_like(values, dtype=torch.int64)
    while step:
        place = torch.where(padded[place + (step - 1)] < values, place + step, place)
        step //= 2
    return place


def sort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Found:  # noqa: ARG001
    """ONNX's TopK is stable: of equal values the first comes first."""
    return Found(*x.topk(x.shape[dim], dim, largest=descending, sorted=True))


def nanmedian(x: Tensor, dim: int) -> Found:
    """The lower median of what is not NaN; NaN where nothing is."""
    missing = x.isnan()
    count = (~missing).sum(dim, keepdim=True)
    place = ((count - 1) // 2).clamp(min=0)
    median = sort(torch.where(missing, torch.inf, x), dim).values.gather(dim, place)
    return Found(torch.where(count > 0, median, torch.nan).squeeze(dim), place.squeeze(dim))


def cummax(x: Tensor, dim: int) -> Found:
    """The largest so far: over 2, 4, 8, … neighbours. Its indices are not known, and nobody asks for them."""
    length, reach = x.shape[dim], 1
    while reach < length:
        joined = torch.maximum(x.narrow(dim, reach, length - reach), x.narrow(dim, 0, length - reach))
        x = torch.cat([x.narrow(dim, 0, reach), joined], dim)
        reach *= 2
    return Found(x, torch.empty(0))


def interpolate(x: Tensor, size: Any = None, *args: Any, antialias: bool = False, **options: Any) -> Tensor:
    """With antialiasing, two matrix products: resizing is linear, and runtimes differ in how they weigh pixels."""
    if not antialias:
        return F.interpolate(x, size, *args, **options)
    rows, columns = (_resizing(n, m, **options) for n, m in zip(x.shape[-2:], size, strict=True))
    return rows @ x @ columns.T


def _resizing(n: int, m: int, **options: Any) -> Tensor:
    """The matrix ``(m, n)`` that resizes n values to m."""
    return F.interpolate(torch.eye(n)[None, None], size=(m, n), antialias=True, **options)[0, 0]


def avg_pool2d(
    x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """With a divisor of its own, a convolution: whole numbers then stay whole, which comparisons may rely on."""
    if divisor_override is None:
        return F.avg_pool2d(x, kernel_size, stride, padding, ceil_mode, count_include_pad)
    weight = torch.full((x.shape[1], 1, *kernel_size), 1.0 / divisor_override)
    return F.conv2d(x, weight, None, stride or kernel_size, padding, groups=x.shape[1])


TWINS: dict[Any, Callable[..., Any]] = {
    torch.cdist: cdist, torch.searchsorted: searchsorted, F.interpolate: interpolate, F.avg_pool2d: avg_pool2d,
    torch.sort: sort, Tensor.sort: sort, torch.nanmedian: nanmedian, Tensor.nanmedian: nanmedian,
    torch.cummax: cummax, Tensor.cummax: cummax,
}  # fmt: skip


class _Twins(TorchFunctionMode):
    """Calls a twin where there is one. Inside a twin torch's own operations are called."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return TWINS.get(func, func)(*args, **(kwargs or {}))


@contextmanager
def exportable_operations() -> Iterator[None]:
    """Replace operations by their twins, and leave out autocast, which is off and would stay in the graph as a block."""
    autocast = torch.autocast
    torch.autocast = lambda *_args, **_options: nullcontext()  # type: ignore[assignment, misc]
    try:
        with _Twins():
            yield
    finally:
        torch.autocast = autocast  # type: ignore[misc]
