"""GroupNorm with SiLU: the plain layers are torch's own; the fused kernels, interpreted, agree with them."""

from itertools import product

import torch
from interpreted import interpret
from torch.nn import functional as F

from reshift.nets.norm import GroupNorm, GroupNormSiLU

SHAPES = [  # the last two are too large for one program to hold a group
    (2, 96, 8, 8, 32, True),
    (3, 48, 5, 7, 4, False),
    (1, 384, 4, 4, 32, True),
    (2, 18, 3, 2, 6, True),
    (1, 20, 1, 1, 5, False),
    (2, 8, 40, 60, 2, True),
    (1, 12, 90, 33, 2, False),
]


def test_the_plain_layers_are_torch_s_own() -> None:
    norm, x, offset = GroupNormSiLU(4, 16), torch.randn(2, 16, 6, 6), torch.randn(2, 16)
    torch.nn.init.uniform_(norm.weight)
    plain = F.group_norm(x, 4, norm.weight, norm.bias)
    assert torch.equal(norm(x), F.silu(plain))
    assert torch.equal(GroupNorm.forward(norm, x), plain)
    assert torch.equal(norm(x, offset), norm(x + offset[:, :, None, None]))


def compare_with_torch() -> None:
    """Outputs and all gradients, in shapes that fill no tile, some tiles and several slabs; offsets: none, each its own, one."""
    from reshift.kernels.group_norm import fused

    torch.manual_seed(0)
    for (b, c, h, w, groups, act), rows in product(SHAPES, ("none", "each", "one for all")):
        if rows != "none" and not act:
            continue  # only GroupNormSiLU takes an offset
        norm = GroupNormSiLU(groups, c) if act else GroupNorm(groups, c)
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
        torch.nn.init.uniform_(norm.bias, -1.0, 1.0)
        x = (2.0 * torch.randn(b, c, h, w) + 0.7).contiguous(memory_format=torch.channels_last)
        back, wide, found = torch.randn_like(x), torch.randn(b if rows == "each" else 1, c + 5), []
        for way in ("plain", "fused"):
            given, offset = x.clone().requires_grad_(), wide.clone().requires_grad_()
            given_offset = () if rows == "none" else (offset[:, 2:-3],)  # a part of a wider tensor, as in the U-Net
            y = norm(given, *given_offset) if way == "plain" else fused(given, norm, *given_offset, act=act)
            wanted = (given, norm.weight, norm.bias, *([] if rows == "none" else [offset]))
            found.append((y, *torch.autograd.grad(y, wanted, back)))
        assert found[1][0].is_contiguous(memory_format=torch.channels_last)
        for ours, theirs in zip(found[1], found[0], strict=True):
            torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-4)


def check_tiles() -> None:
    """From memory programs read whole sectors where a map allows it; all take every group once and stay within their limit."""
    from reshift.kernels.group_norm import LARGEST, tile

    many = ((128, 16, 32, 4), (128, 32, 32, 2), (192, 8, 32, 8), (512, 4, 32, 2), (30, 4, 10, 2))
    few = ((128, 16, 32, 2), (256, 16, 32, 1), (192, 8, 32, 4), (512, 4, 32, 2), (30, 4, 10, 2))
    for images, shapes in ((10**5, many), (22, few)):
        for c, side, groups, expected in shapes:
            form = tile(torch.empty(images, c, side, side, dtype=torch.bfloat16, device="meta"), groups, LARGEST, LARGEST // 4)
            assert form["J"] == expected, (images, c, side)
            assert groups % form["J"] == 0
            assert form["R"] * form["J"] * form["K"] <= LARGEST


def compare() -> None:
    compare_with_torch()
    check_tiles()


def test_fused_kernels_agree_with_torch() -> None:
    interpret("test_group_norm", "compare")
