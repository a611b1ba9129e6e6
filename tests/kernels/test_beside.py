"""Gradients of weights that are put off until the end of a backward pass are autograd's own."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from reshift.nets import beside
from reshift.nets.beside import later, weights_last
from reshift.nets.conv import Conv2d, convolved
from reshift.nets.pointwise import Linear, Pointwise, linear

HALF = torch.bfloat16


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a step were being recorded; there is no second stream on a CPU, so that things only come later."""
    monkeypatch.setattr(beside, "_recording", lambda _x: True)


def layers() -> list[nn.Module]:
    torch.manual_seed(0)
    return [layer.to(HALF) for layer in (Conv2d(8, 8, 3, padding=1), Pointwise(8, 8), Linear(8, 4))]


def loss(layers: list[nn.Module], x: Tensor) -> Tensor:
    """The convolution's weight is used twice."""
    conv, point, last = layers
    assert isinstance(conv, Conv2d)
    y = convolved(convolved(x, conv).tanh(), conv)
    rows = linear(y.permute(0, 2, 3, 1).flatten(0, 2), point.weight, point.bias)  # type: ignore[arg-type]
    return linear(rows.tanh(), last.weight, last.bias).float().square().mean()  # type: ignore[arg-type]


def gradients(backward: Callable[[Tensor], None]) -> list[Tensor]:
    made, x = layers(), torch.randn(2, 8, 4, 4, generator=torch.Generator().manual_seed(1)).to(HALF)
    backward(loss(made, x))
    return [p.grad for layer in made for p in layer.parameters() if p.grad is not None]


def late(value: Tensor) -> None:
    with weights_last(value):
        value.backward()


@pytest.mark.usefixtures("recording")
def test_late_gradients_are_the_same() -> None:
    expected = gradients(lambda value: value.backward())
    found = gradients(late)
    assert len(found) == len(expected) == 5  # all but the bias that ``convolved`` leaves to others
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.usefixtures("recording")
def test_they_come_at_the_end_only() -> None:
    weight, x = torch.ones(3, requires_grad=True), torch.ones(3)
    with weights_last(x):
        assert later((weight, None), lambda: (torch.ones(3), None), x) == [None, None]
        assert weight.grad is None
    assert torch.equal(weight.grad, torch.ones(3))  # type: ignore[arg-type]


@pytest.mark.usefixtures("recording")
def test_what_autograd_found_is_added_to() -> None:
    weight, x = torch.ones(3, requires_grad=True), torch.ones(3)
    with weights_last(x):
        later((weight,), lambda: (torch.ones(3),), x)
        (2.0 * weight).sum().backward()
    assert torch.equal(weight.grad, torch.full((3,), 3.0))  # type: ignore[arg-type]


@pytest.mark.usefixtures("recording")
def test_a_gradient_asked_for_on_the_way_is_nobodys_weights() -> None:
    """A penalty on a gradient runs backwards inside the loss: what that gives the weights is not part of the step."""
    made = layers()
    x = torch.randn(2, 8, 4, 4).to(HALF).requires_grad_()
    torch.autograd.grad(loss(made, x), x)
    assert all(p.grad is None for layer in made for p in layer.parameters())


@pytest.mark.usefixtures("recording")
def test_a_weight_that_is_made_of_others_does_not_wait() -> None:
    weight, x = torch.ones(3, requires_grad=True) * 2.0, torch.ones(3)
    with weights_last(x):
        (grad,) = later((weight,), lambda: (torch.ones(3),), x)
    assert grad is not None


def test_nothing_is_late_unless_recorded() -> None:
    weight, x = torch.ones(3, requires_grad=True), torch.ones(3)
    with weights_last(x):
        (grad,) = later((weight,), lambda: (torch.ones(3),), x)
    assert grad is not None
    assert weight.grad is None


@pytest.mark.usefixtures("recording")
def test_a_step_that_fails_leaves_nothing_behind() -> None:
    weight, x = torch.ones(3, requires_grad=True), torch.ones(3)
    with pytest.raises(ValueError, match="no"), weights_last(x):
        raise ValueError("no")
    assert later((weight,), lambda: (torch.ones(3),), x) != [None]


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize("given", [True, False])
def test_another_stream_is_waited_for_only_if_it_was_used(given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """To wait for a stream that took no part in a recording ends the recording."""
    joined = list[object]()
    monkeypatch.setattr(beside, "_join", joined.append)
    weight, x = torch.ones(3, requires_grad=True), torch.ones(3)
    with weights_last(x):
        if given:
            later((weight,), lambda: (None,), x)
    assert len(joined) == given
