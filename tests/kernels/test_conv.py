"""Bias and residual sum in one kernel: torch's own on the CPU, to the bit; the kernel, interpreted, where Triton is installed."""

from itertools import product

import pytest
import torch
from helpers import interpret
from torch import Tensor, nn
from torch.nn import functional as F

from reshift.nets import conv
from reshift.nets.conv import Conv2d, convolved, plus
from reshift.nets.unet import UNet


def test_on_the_cpu_it_is_a_convolution_to_the_bit() -> None:
    torch.manual_seed(0)
    torchs, own = nn.Conv2d(3, 5, 3, padding=1), Conv2d(3, 5, 3, padding=1)
    own.load_state_dict(torchs.state_dict())
    x, other = torch.randn(2, 3, 6, 4), torch.randn(2, 5, 6, 4)
    assert torch.equal(own(x), torchs(x))
    assert torch.equal(own(x, other), other + torchs(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_of_input_and_weight_apart_are_those_of_both(dtype: torch.dtype, autocast: bool, stride: int) -> None:
    """Also where autocast is to choose the type, with weights that nobody has halved."""
    torch.manual_seed(0)
    layer = Conv2d(3, 5, 3, stride, 1, bias=False).to(dtype)
    x = torch.randn(2, 3, 6, 4, dtype=dtype, requires_grad=True)
    results = []
    for own in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = convolved(x, layer) if own else F.conv2d(x, layer.weight, None, stride, 1)
        wide = torch.linspace(-1.0, 1.0, 2 * y.numel()).view(2, 10, *y.shape[2:])[:, :5].to(y.dtype)  # no tensor of its own
        results.append((y, *torch.autograd.grad(y, (x, layer.weight), wide)))
    for a, e in zip(*results, strict=True):
        assert a.dtype == e.dtype
        torch.testing.assert_close(a, e, rtol=1e-2 if e.dtype == torch.bfloat16 or autocast else 1e-5, atol=1e-5)


def test_padding_by_other_means_is_torch_s_own() -> None:
    x = torch.randn(1, 3, 6, 6, dtype=torch.bfloat16)
    for how in ({"padding": "same"}, {"padding": 1, "padding_mode": "reflect"}):
        layer = Conv2d(3, 5, 3, bias=False, **how).bfloat16()
        assert torch.equal(convolved(x, layer), nn.Conv2d.forward(layer, x))


def test_a_frozen_weight_has_no_gradient() -> None:
    layer = Conv2d(3, 5, 3, bias=False).bfloat16().requires_grad_(False)
    x = torch.randn(1, 3, 4, 4, dtype=torch.bfloat16, requires_grad=True)
    convolved(x, layer).sum().backward()
    assert x.grad is not None
    assert layer.weight.grad is None


def test_weights_do_not_know_how_they_were_computed() -> None:
    names = [name for name, _ in UNet(4, (32, 64), 1, 2).named_parameters()]
    assert {"stem.bias", "head.1.bias", "down.0.0.second.bias", "down.1.bias", "up.2.bias"} <= set(names)
    assert "down.2.0.second.bias" not in names  # its skip has one


def outcome(y: Tensor, b: Tensor | None, other: Tensor | None, back: Tensor, *, own: bool) -> list[Tensor]:
    """The sum and all gradients, the gradient given as a part of a wider tensor."""
    given = [t.clone().requires_grad_() for t in (y, b, other) if t is not None]
    parts = iter(given)
    y, b, other = next(parts), None if b is None else next(parts), None if other is None else next(parts)
    if own:
        out = plus(y, b, other)
    else:
        out = y.float() if b is None else y.float() + b.float().view(1, -1, 1, 1)
        out = (out if other is None else out + other.float()).to(y.dtype)
    wide = torch.cat([back, back], dim=1)[:, : back.shape[1]]
    return [out.detach(), *torch.autograd.grad(out, given, wide.to(out.dtype))]


def every_kind() -> None:
    torch.manual_seed(0)
    shapes = [(2, 5, 3, 4), (1, 32, 7, 9), (3, 16, 16, 16)]
    for shape, with_bias, with_other, kind in product(shapes, (True, False), (True, False), (torch.float32, torch.float16)):
        y, back = torch.randn(shape).to(kind), torch.randn(shape)
        other = torch.randn(shape).to(kind) if with_other else None
        b = torch.randn(shape[1]).to(kind) if with_bias else None
        ours, theirs = outcome(y, b, other, back, own=True), outcome(y, b, other, back, own=False)
        assert [(t.shape, t.dtype) for t in ours] == [(t.shape, t.dtype) for t in theirs]
        exact = 1e-6 if kind == torch.float32 else 1e-3
        torch.testing.assert_close(ours[0], theirs[0], rtol=exact, atol=1e-6)  # one rounding
        for a, e in zip(ours[1:], theirs[1:], strict=True):
            torch.testing.assert_close(a, e, rtol=10 * exact, atol=20 * exact)


def test_the_sum_and_its_gradients() -> None:
    interpret("test_conv", "every_kind()")


def whole_network() -> None:
    """A U-Net that takes the fused way everywhere gives what it gives otherwise, gradients included."""
    torch.manual_seed(0)
    net = UNet(4, (32, 64), 1, 2)
    for p in net.parameters():
        nn.init.normal_(p, std=0.1)
    z, t = torch.randn(2, 4, 8, 8), torch.tensor([3, 70])
    plain = [net(z, t), *torch.autograd.grad(net(z, t).square().sum(), list(net.parameters()))]
    vars(conv)["run_on"] = lambda _x: True
    fused = [net(z, t), *torch.autograd.grad(net(z, t).square().sum(), list(net.parameters()))]
    for a, e in zip(fused, plain, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5 + 1e-4 * float(e.detach().abs().max()))


def test_a_whole_network_by_it() -> None:
    interpret("test_conv", "whole_network()")
