"""The twins of operations that ONNX lacks give what torch gives."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from reshift.export.operations import TWINS, exportable_operations


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def with_gaps() -> Tensor:
    """Rows with an even and an odd number of values, and one of NaN alone."""
    x = values(4, 10)
    x[0, :3], x[1, 5:], x[2] = torch.nan, torch.nan, torch.nan
    return x


LEVELS = torch.tensor([-1.0, -0.5, -0.5, 0.0, 2.0])
CASES: dict[str, Callable[[], Tensor]] = {
    "cdist": lambda: torch.cdist(values(5, 1, 7), values(5, 9, 7, seed=1)),
    "searchsorted": lambda: torch.searchsorted(LEVELS, torch.tensor([[-9.0, -1.0, -0.5, -0.4], [0.0, 1.9, 2.0, 2.1]])),
    "searchsorted of many": lambda: torch.searchsorted(values(8192).sort().values, values(3, 50, seed=1)),
    "sort": lambda: values(3, 20).sort(dim=1, stable=True).indices,
    "nanmedian": lambda: with_gaps().nanmedian(1).values,
    "cummax": lambda: values(2, 1, 13, 5).cummax(2).values,
    "shrunk": lambda: F.interpolate(values(2, 1, 40, 30), size=(16, 16), mode="bilinear", antialias=True),
    "enlarged": lambda: F.interpolate(values(2, 3, 16, 16), size=(28, 28), mode="bilinear", antialias=True),
    "not antialiased": lambda: F.interpolate(values(2, 1, 8, 8), size=(16, 16), mode="bilinear"),
    "counted": lambda: F.avg_pool2d((values(2, 3, 20, 20) > 0.5).float(), (7, 15), 1, (3, 7), divisor_override=1),
    "pooled": lambda: F.avg_pool2d(values(2, 3, 20, 20), 3, 1, 1, count_include_pad=False),
}


@pytest.mark.parametrize("case", CASES)
def test_a_twin_is_torchs_own(case: str) -> None:
    expected = CASES[case]()
    with exportable_operations():
        found = CASES[case]()
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    if not found.dtype.is_floating_point or case in ("counted", "cummax", "nanmedian"):
        assert torch.equal(found.nan_to_num(9.0), expected.nan_to_num(9.0))


def test_everything_is_as_before_afterwards() -> None:
    before = torch.autocast
    with exportable_operations():
        assert torch.autocast is not before
    assert torch.autocast is before
    assert {torch.cdist, torch.searchsorted, F.interpolate, F.avg_pool2d} <= set(TWINS)
