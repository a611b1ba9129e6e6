"""The denoiser's parts: 1×1 convolutions as products, and one product that tells every block the time."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from reshift.kernels.bf16_weights import Halves
from reshift.nets.masked_unet import MaskedUNet
from reshift.nets.pointwise import Pointwise, product
from reshift.nets.unet import ResBlock, UNet, timestep_embedding


def grown(net: nn.Module) -> nn.Module:
    """Zero-initialised branches would hide differences."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d) and not module.weight.any():
            nn.init.normal_(module.weight, std=0.1)
    return net


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_a_pointwise_product_is_the_convolution(order: torch.memory_format) -> None:
    torch.manual_seed(0)
    layer, x = Pointwise(6, 10), torch.randn(3, 6, 4, 5).contiguous(memory_format=order)
    plain = nn.Conv2d(6, 10, 1)
    plain.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x), plain(x))  # the CPU has the convolution itself
    back, found = torch.randn(3, 10, 4, 5), []
    for function in (plain, lambda x: product(x, layer)):
        given = x.clone().requires_grad_()
        y = function(given)
        y.backward(back)
        found.append((y, given.grad))
    for ours, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, theirs)
    for ours, theirs in zip(layer.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert found[1][0].is_contiguous(memory_format=torch.channels_last)


def test_a_pointwise_product_in_bf16_has_the_gradients_of_float32() -> None:
    torch.manual_seed(0)
    layer, x, back = Pointwise(6, 10).bfloat16(), torch.randn(3, 6, 4, 5).bfloat16(), torch.randn(3, 10, 4, 5).bfloat16()
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        given = x.to(dtype).requires_grad_()
        y = product(given, layer.to(dtype))
        found.append([y, *torch.autograd.grad(y, (given, *layer.parameters()), back.to(dtype))])
    for ours, exact in zip(*found, strict=True):
        assert ours.dtype == torch.bfloat16
        torch.testing.assert_close(ours.float(), exact, atol=0.05, rtol=0.02)


def test_a_pointwise_product_copies_nothing_that_lies_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, seen = Pointwise(6, 10), list[int]()

    def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        seen.extend((x.data_ptr(), weight.data_ptr()))
        return x @ weight.T + bias

    monkeypatch.setattr("reshift.nets.pointwise.F.linear", linear)
    x = torch.randn(3, 6, 4, 5).contiguous(memory_format=torch.channels_last)
    layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert product(x, layer).shape == (3, 10, 4, 5)
    assert seen == [x.data_ptr(), layer.weight.data_ptr()]


def test_pointwise_weights_take_part_in_the_halves() -> None:
    net = Pointwise(2, 3)
    with Halves(net).in_use():
        assert {p.dtype for p in (net.weight, net.bias)} == {torch.bfloat16}  # type: ignore[union-attr]
    assert {p.dtype for p in net.parameters()} == {torch.float32}


@pytest.mark.parametrize("make", [lambda: UNet(3, (8, 16), 2), lambda: MaskedUNet(3, (8, 16), 2).trunk], ids=["plain", "masked"])
def test_every_block_is_told_the_time_by_a_part_of_its_own(make: Callable[[], UNet]) -> None:
    torch.manual_seed(0)
    net, told = make(), dict[str, Tensor]()
    grown(net)
    for name, block in net.named_modules():
        if isinstance(block, ResBlock):
            block.register_forward_pre_hook(lambda _block, given, name=name: told.update({name: given[1]}))
    z, t = torch.randn(2, 3, 8, 8), torch.tensor([3, 70])
    net(z, t)
    order = [name for part in ("down", "middle", "up") for name in told if name.startswith(part)]
    assert list(told) == order  # as they run, which is how the widths are listed
    assert [told[name].shape[1] for name in order] == net.offset_widths
    whole = net.offsets(net.time(timestep_embedding(t, net.embedding_dim)))
    torch.testing.assert_close(torch.cat(list(told.values()), dim=1), whole)


def test_a_block_has_no_bias_twice() -> None:
    def biases(block: ResBlock) -> list[str]:
        layers = {name: layer for name, layer in block.named_modules() if isinstance(layer, nn.Conv2d)}
        return [name for name, layer in layers.items() if layer.bias is not None]

    assert biases(ResBlock(8, 8)) == ["second"]
    assert biases(ResBlock(8, 16)) == ["skip"]


def test_every_parameter_of_the_denoiser_learns() -> None:
    torch.manual_seed(0)
    net = UNet(3, (64, 96))  # more than one channel to a group, or the norm would swallow the offset
    grown(net)
    net(torch.randn(2, 3, 8, 8), torch.tensor([3, 70])).square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in net.parameters())
