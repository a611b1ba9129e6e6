"""GroupNorm with SiLU: torch's own on the CPU; the fused kernels, interpreted, wherever Triton is installed."""

from itertools import product

import pytest
import torch
from helpers import interpret
from torch.nn import functional as F

from reshift.nets.groupnorm import GroupNorm, fused

SHAPES = [  # the last two are too large for one program to hold a group
    (2, 96, 8, 8, 32, True),
    (3, 48, 5, 7, 4, False),
    (1, 384, 4, 4, 32, True),
    (2, 18, 3, 2, 6, True),
    (1, 20, 1, 1, 5, False),
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
    offset = torch.randn(2, 16)
    assert torch.equal(norm(x, offset), norm(x + offset[:, :, None, None]))


def compare_with_torch() -> None:
    """Outputs and all gradients, in shapes that fill no tile, some tiles and several slabs; offsets: none, each its own, one."""
    torch.manual_seed(0)
    for (b, c, h, w, groups, act), rows in product(SHAPES, ("none", "each", "one for all")):
        norm = GroupNorm(groups, c, act=act)
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
        torch.nn.init.uniform_(norm.bias, -1.0, 1.0)
        x = (2.0 * torch.randn(b, c, h, w) + 0.7).contiguous(memory_format=torch.channels_last)
        back, wide, found = torch.randn_like(x), torch.randn(b if rows == "each" else 1, c + 5), []
        for function in (norm, lambda x, offset, norm=norm: fused(x, norm, offset)):
            given, offset = x.clone().requires_grad_(), wide.clone().requires_grad_()
            y = function(given, None if rows == "none" else offset[:, 2:-3])  # a part of a wider tensor, as in the U-Net
            wanted = (given, norm.weight, norm.bias, *([] if rows == "none" else [offset]))
            found.append((y, *torch.autograd.grad(y, wanted, back)))
        assert found[1][0].is_contiguous(memory_format=torch.channels_last)
        for ours, theirs in zip(found[1], found[0], strict=True):
            torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-4)


def check_tiles() -> None:
    """From memory programs read whole sectors where a map allows it; all take every group once and stay within their limit."""
    from reshift.nets.groupnorm_small import LARGEST, tile

    many = ((128, 16, 32, 4), (128, 32, 32, 2), (192, 8, 32, 8), (512, 4, 32, 2), (30, 4, 10, 2))
    few = ((128, 16, 32, 2), (256, 16, 32, 1), (192, 8, 32, 4), (512, 4, 32, 2), (30, 4, 10, 2))
    for images, shapes in ((10**5, many), (22, few)):
        for c, side, groups, expected in shapes:
            form = tile(torch.empty(images, c, side, side, dtype=torch.bfloat16, device="meta"), groups, LARGEST, LARGEST // 4)
            assert form["J"] == expected, (images, c, side)
            assert groups % form["J"] == 0
            assert form["R"] * form["J"] * form["K"] <= LARGEST


@pytest.mark.parametrize("check", ["compare_with_torch", "check_tiles"])
def test_fused_kernels_agree_with_torch(check: str) -> None:
    interpret("test_groupnorm", f"{check}()")
