"""Attention over few positions: the plain layer against a loop, the fused kernels, interpreted, against the plain layer."""

import pytest
import torch
from interpreted import interpret
from torch import Tensor

from reshift.nets.unet import Attention

SHAPES = [(2, 64, 4, 48), (3, 16, 2, 64), (1, 1, 1, 8), (2, 5, 3, 7), (1, 36, 2, 33)]  # images, positions, heads, channels each


def plain(qkv: Tensor, heads: int) -> Tensor:
    return Attention(heads, heads).attend(qkv)


def by_hand(qkv: Tensor, heads: int) -> Tensor:
    """Position by position."""
    b, n, c = qkv.shape
    parts = qkv.view(b, n, 3, heads, -1)
    out = torch.empty(b, n, heads, c // (3 * heads), dtype=qkv.dtype)
    for i in range(b):
        for head in range(heads):
            q, k, v = parts[i, :, :, head].unbind(1)
            for at in range(n):
                weights = torch.softmax((k @ q[at]) / q.shape[1] ** 0.5, 0)
                out[i, at, head] = weights @ v
    return out.flatten(2)


@pytest.mark.parametrize("shape", SHAPES)
def test_attention_is_the_softmax_of_products(shape: tuple[int, int, int, int]) -> None:
    torch.manual_seed(0)
    b, n, heads, d = shape
    qkv = torch.randn(b, n, 3 * heads * d, dtype=torch.float64)
    torch.testing.assert_close(plain(qkv, heads), by_hand(qkv, heads))


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_a_layer_attends_whatever_the_order_in_memory(order: torch.memory_format) -> None:
    torch.manual_seed(0)
    layer, x = Attention(32, 4), torch.randn(2, 32, 3, 5)
    torch.nn.init.normal_(layer.out.weight)
    y = layer.norm(x)
    rows = layer.qkv(y).flatten(2).transpose(1, 2).contiguous()
    expected = x + layer.out(by_hand(rows, 4).transpose(1, 2).reshape(2, 32, 3, 5))
    torch.testing.assert_close(layer(x.contiguous(memory_format=order)), expected)


def half_precision_and_few_positions_only() -> None:
    from reshift.kernels.attention import LARGEST, fits

    assert fits(torch.zeros(2, LARGEST, 3 * 4 * 48, dtype=torch.bfloat16), 4)
    assert not fits(torch.zeros(2, LARGEST, 3 * 4 * 48), 4)
    assert not fits(torch.zeros(2, LARGEST + 1, 3 * 4 * 48, dtype=torch.bfloat16), 4)
    assert not fits(torch.zeros(2, 16, 3 * (LARGEST + 8), dtype=torch.bfloat16), 1)
    assert not fits(torch.zeros(2, 3 * 16, 16, dtype=torch.bfloat16).transpose(1, 2), 1)
    assert not fits(torch.zeros(0, 16, 48, dtype=torch.bfloat16), 1)


def outcome(qkv: Tensor, heads: int, back: Tensor, way: str) -> tuple[Tensor, Tensor]:
    from reshift.kernels.attention import fused

    given = qkv.clone().requires_grad_()
    y = fused(given, heads) if way == "fused" else plain(given, heads)
    (gradient,) = torch.autograd.grad(y, given, back)
    return y.detach(), gradient


def compare(dtype: torch.dtype, tolerance: float) -> None:
    """Output and gradient against torch's in float32, in shapes that fill no tile."""
    for b, n, heads, d in SHAPES:
        torch.manual_seed(0)
        qkv, back = torch.randn(b, n, 3 * heads * d).to(dtype), torch.randn(b, n, heads * d).to(dtype)
        ours, exact = outcome(qkv, heads, back, "fused"), outcome(qkv.float(), heads, back.float(), "plain")
        for found, value in zip(ours, exact, strict=True):
            assert found.dtype == dtype
            torch.testing.assert_close(found.float(), value, atol=tolerance, rtol=tolerance)


def compare_all() -> None:
    half_precision_and_few_positions_only()
    compare(torch.float32, 1e-5)
    compare(torch.float16, 4e-3)  # not bf16: the interpreter multiplies its bits


def test_fused_kernels_agree_with_torch() -> None:
    interpret("test_attention", "compare_all")
