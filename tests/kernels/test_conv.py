"""Convolution with bias and residual sum in one kernel, interpreted, against torch."""

from itertools import product

import torch
from interpreted import interpret
from torch import Tensor, nn
from torch.nn import functional as F

from reshift.kernels import accelerate, available, table
from reshift.nets.unet import UNet


def gradients_apart_are_those_of_both() -> None:
    """Also where autocast chooses the type, with weights that have no bf16 copy."""
    from reshift.kernels.conv import convolve

    for dtype, autocast, stride in product((torch.float32, torch.bfloat16), (True, False), (1, 2)):
        torch.manual_seed(0)
        layer = nn.Conv2d(3, 5, 3, stride, 1, bias=False).to(dtype)
        x = torch.randn(2, 3, 6, 4, dtype=dtype, requires_grad=True)
        results = []
        for own in (True, False):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                y = convolve(x, layer) if own else F.conv2d(x, layer.weight, None, stride, 1)
            wide = torch.linspace(-1.0, 1.0, 2 * y.numel()).view(2, 10, *y.shape[2:])[:, :5].to(y.dtype)  # part of a wider one
            results.append((y, *torch.autograd.grad(y, (x, layer.weight), wide)))
        for a, e in zip(*results, strict=True):
            assert a.dtype == e.dtype
            torch.testing.assert_close(a, e, rtol=1e-2 if e.dtype == torch.bfloat16 or autocast else 1e-5, atol=1e-5)


def other_padding_and_frozen_weights() -> None:
    from reshift.kernels.conv import convolve

    x = torch.randn(1, 3, 6, 6, dtype=torch.bfloat16, requires_grad=True)
    for how in ({"padding": "same"}, {"padding": 1, "padding_mode": "reflect"}):
        layer = nn.Conv2d(3, 5, 3, bias=False, **how).bfloat16()
        assert torch.equal(convolve(x, layer), layer(x))
    layer = nn.Conv2d(3, 5, 3, bias=False).bfloat16().requires_grad_(False)
    convolve(x, layer).sum().backward()
    assert x.grad is not None
    assert layer.weight.grad is None


def outcome(y: Tensor, b: Tensor | None, other: Tensor | None, back: Tensor, *, own: bool) -> list[Tensor]:
    """The sum and all gradients, the gradient given as a part of a wider tensor."""
    from reshift.kernels.conv import add

    given = [t.clone().requires_grad_() for t in (y, b, other) if t is not None]
    parts = iter(given)
    y, b, other = next(parts), None if b is None else next(parts), None if other is None else next(parts)
    if own:
        out = add(y, b, other)
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


def whole_network() -> None:
    """A U-Net with fused convolutions everywhere gives what the plain one gives, gradients included."""
    torch.manual_seed(0)
    net = UNet(4, (32, 64), 1, 2)
    for p in net.parameters():
        nn.init.normal_(p, std=0.1)
    z, t = torch.randn(2, 4, 8, 8), torch.tensor([3, 70])
    plain = [net(z, t), *torch.autograd.grad(net(z, t).square().sum(), list(net.parameters()))]
    vars(table)["runs_on"] = vars(available)["on_gpu"] = lambda _: True
    accelerate(net, torch.device("cpu"), skip={name for name in table.NAMES if name != "conv"})
    assert {type(block).__name__ for block in net.middle} == {"FusedResBlock", "Attention"}
    fused = [net(z, t), *torch.autograd.grad(net(z, t).square().sum(), list(net.parameters()))]
    for a, e in zip(fused, plain, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5 + 1e-4 * float(e.detach().abs().max()))


def compare() -> None:
    gradients_apart_are_those_of_both()
    other_padding_and_frozen_weights()
    every_kind()
    whole_network()


def test_fused_convolutions_agree_with_torch() -> None:
    interpret("test_conv", "compare")
