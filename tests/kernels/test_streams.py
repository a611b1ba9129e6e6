"""Deferred gradients of weights are those of autograd."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from reshift.kernels import streams
from reshift.kernels.linear import linear
from reshift.kernels.streams import defer, overlap_weight_gradients

HALF = torch.bfloat16


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a step were being recorded. A CPU has no second stream: gradients only come later."""
    monkeypatch.setattr(streams, "_recording", lambda _x: True)


def layers() -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(8, 8).to(HALF), nn.Linear(8, 4).to(HALF)]


def loss(layers: list[nn.Linear], x: Tensor) -> Tensor:
    """The first weight is used twice."""
    first, last = layers
    rows = linear(linear(x, first.weight, first.bias).tanh(), first.weight, None)
    return linear(rows.tanh(), last.weight, last.bias).float().square().mean()


def gradients(backward: Callable[[Tensor], None]) -> list[Tensor]:
    made, x = layers(), torch.randn(6, 8, generator=torch.Generator().manual_seed(1)).to(HALF)
    backward(loss(made, x))
    return [p.grad for layer in made for p in layer.parameters() if p.grad is not None]


def overlapped(value: Tensor) -> None:
    with overlap_weight_gradients(value):
        value.backward()


@pytest.mark.usefixtures("recording")
def test_deferred_gradients_are_the_same() -> None:
    expected = gradients(lambda value: value.backward())
    found = gradients(overlapped)
    assert len(found) == len(expected) == 4
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.usefixtures("recording")
def test_gradients_come_at_the_end_only() -> None:
    weight, x = torch.ones(3, requires_grad=True), torch.ones(3)
    with overlap_weight_gradients(x):
        assert defer((weight, None), lambda: (torch.ones(3), None), x) == [None, None]
        assert weight.grad is None
    assert torch.equal(weight.grad, torch.ones(3))  # type: ignore[arg-type]


@pytest.mark.usefixtures("recording")
def test_deferred_gradients_are_added_to_those_of_autograd() -> None:
    weight, x = torch.ones(3, requires_grad=True), torch.ones(3)
    with overlap_weight_gradients(x):
        defer((weight,), lambda: (torch.ones(3),), x)
        (2.0 * weight).sum().backward()
    assert torch.equal(weight.grad, torch.full((3,), 3.0))  # type: ignore[arg-type]


@pytest.mark.usefixtures("recording")
def test_a_gradient_inside_the_loss_gives_weights_nothing() -> None:
    """A penalty on a gradient runs backwards inside the loss: what that gives the weights is not part of the step."""
    made = layers()
    x = torch.randn(6, 8).to(HALF).requires_grad_()
    torch.autograd.grad(loss(made, x), x)
    assert all(p.grad is None for layer in made for p in layer.parameters())


@pytest.mark.usefixtures("recording")
def test_a_computed_weight_is_not_deferred() -> None:
    weight, x = torch.ones(3, requires_grad=True) * 2.0, torch.ones(3)
    with overlap_weight_gradients(x):
        (grad,) = defer((weight,), lambda: (torch.ones(3),), x)
    assert grad is not None


def test_nothing_is_deferred_unless_recorded() -> None:
    weight, x = torch.ones(3, requires_grad=True), torch.ones(3)
    with overlap_weight_gradients(x):
        (grad,) = defer((weight,), lambda: (torch.ones(3),), x)
    assert grad is not None
    assert weight.grad is None


@pytest.mark.usefixtures("recording")
def test_a_failed_step_leaves_nothing_behind() -> None:
    weight, x = torch.ones(3, requires_grad=True), torch.ones(3)
    with pytest.raises(ValueError, match="no"), overlap_weight_gradients(x):
        raise ValueError("no")
    assert defer((weight,), lambda: (torch.ones(3),), x) != [None]


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize("given", [True, False])
def test_the_side_stream_is_waited_for_only_if_it_was_used(given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for a stream that took no part in a recording would end the recording."""
    joined = list[object]()
    monkeypatch.setattr(streams, "_wait_for", joined.append)
    weight, x = torch.ones(3, requires_grad=True), torch.ones(3)
    with overlap_weight_gradients(x):
        if given:
            defer((weight,), lambda: (None,), x)
    assert len(joined) == given


@pytest.mark.usefixtures("recording")
def test_nothing_is_deferred_where_streams_are_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHIFT_KERNELS", "streams")
    weight, x = torch.ones(3, requires_grad=True), torch.ones(3)
    with overlap_weight_gradients(x):
        assert defer((weight,), lambda: (torch.ones(3),), x) != [None]
