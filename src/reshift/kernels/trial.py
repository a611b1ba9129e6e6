"""The smallest kernel there is: does Triton work on this machine?"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202 (a kernel has no types)

import torch
import triton
import triton.language as tl


@triton.jit
def _double(x):
    """x ← 2·x."""
    tl.store(x, tl.load(x) * 2.0)


def doubled(value: float, device: torch.device) -> float:
    """``2 * value``, computed on ``device``."""
    x = torch.full((1,), value, device=device)
    _double[(1,)](x)
    return float(x)
