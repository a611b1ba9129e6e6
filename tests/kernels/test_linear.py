"""1×1 convolutions as products: torch's own outputs and gradients."""

import pytest
import torch
from torch import Tensor, nn

from reshift.kernels.linear import pointwise


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_a_pointwise_product_is_the_convolution(order: torch.memory_format) -> None:
    torch.manual_seed(0)
    layer, x = nn.Conv2d(6, 10, 1), torch.randn(3, 6, 4, 5).contiguous(memory_format=order)
    back, found = torch.randn(3, 10, 4, 5), []
    for function in (layer, lambda x: pointwise(x, layer.weight, layer.bias)):
        given = x.clone().requires_grad_()
        y = function(given)
        found.append([y, *torch.autograd.grad(y, (given, *layer.parameters()), back)])
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert found[1][0].is_contiguous(memory_format=torch.channels_last)


def test_a_pointwise_product_in_bf16_has_the_gradients_of_float32() -> None:
    torch.manual_seed(0)
    layer, x, back = nn.Conv2d(6, 10, 1).bfloat16(), torch.randn(3, 6, 4, 5).bfloat16(), torch.randn(3, 10, 4, 5).bfloat16()
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        given = x.to(dtype).requires_grad_()
        layer.to(dtype)
        y = pointwise(given, layer.weight, layer.bias)
        found.append([y, *torch.autograd.grad(y, (given, *layer.parameters()), back.to(dtype))])
    for ours, exact in zip(*found, strict=True):
        assert ours.dtype == torch.bfloat16
        torch.testing.assert_close(ours.float(), exact, atol=0.05, rtol=0.02)


def test_a_pointwise_product_copies_nothing_that_lies_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, seen = nn.Conv2d(6, 10, 1).to(memory_format=torch.channels_last), list[int]()  # type: ignore[call-overload]

    def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        seen.extend((x.data_ptr(), weight.data_ptr()))
        return x @ weight.T + bias

    monkeypatch.setattr("reshift.kernels.linear.F.linear", linear)
    x = torch.randn(3, 6, 4, 5).contiguous(memory_format=torch.channels_last)
    assert pointwise(x, layer.weight, layer.bias).shape == (3, 10, 4, 5)
    assert seen == [x.data_ptr(), layer.weight.data_ptr()]
