"""GroupNorm with SiLU: torch's own on the CPU; the fused kernels, interpreted, wherever Triton is installed."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from torch.nn import functional as F

from reshift.nets.groupnorm import GroupNorm, fused

SHAPES = [  # the last two are too large for one program to hold a group
    (2, 96, 8, 8, 32, True),
    (3, 48, 5, 7, 4, False),
    (1, 384, 4, 4, 32, True),
    (2, 8, 40, 60, 2, True),
    (1, 12, 90, 33, 2, False),
]


@pytest.mark.parametrize("act", [True, False])
def test_on_the_cpu_it_is_torch_to_the_bit(act: bool) -> None:
    norm, x = GroupNorm(4, 16, act=act), torch.randn(2, 16, 6, 6)
    torch.nn.init.uniform_(norm.weight)
    plain = F.group_norm(x, 4, norm.weight, norm.bias)
    assert torch.equal(norm(x), F.silu(plain) if act else plain)
    assert set(norm.state_dict()) == {"weight", "bias"}  # a GroupNorm's own: weights do not know how they were computed


def compare_with_torch() -> None:
    """Outputs and all gradients, in shapes that fill no tile, some tiles and several slabs."""
    torch.manual_seed(0)
    for b, c, h, w, groups, act in SHAPES:
        norm = GroupNorm(groups, c, act=act)
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
        torch.nn.init.uniform_(norm.bias, -1.0, 1.0)
        x = (2.0 * torch.randn(b, c, h, w) + 0.7).contiguous(memory_format=torch.channels_last)
        back, found = torch.randn_like(x), []
        for function in (norm, lambda x, norm=norm: fused(x, norm)):
            given = x.clone().requires_grad_()
            y = function(given)
            grads = torch.autograd.grad(y, (given, norm.weight, norm.bias), back)
            found.append((y, *grads))
        assert found[1][0].is_contiguous(memory_format=torch.channels_last)
        for ours, theirs in zip(found[1], found[0], strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed (it comes with torch for CUDA)")
def test_fused_kernels_agree_with_torch() -> None:
    code = "import sys; sys.path.insert(0, 'tests'); from test_groupnorm import compare_with_torch; compare_with_torch()"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "TRITON_INTERPRET": "1"})
