"""bf16 copies of weights: the same numbers as autocast gives, to the bit, and the weights themselves untouched."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import TINY_DMD
from safetensors.torch import load_file
from torch import nn

from reshift.config import merge
from reshift.data.phantom import write_phantom
from reshift.kernels.bf16_weights import Bf16Weights
from reshift.kernels.linear import PointwiseConv2d
from reshift.nets.dae_unet import StandardisedConv
from reshift.training.run import resolve, train_run


class Net(nn.Module):
    """A trained and a frozen part; one layer is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.back = (
            nn.Conv2d(1, 8, 3, padding=1),
            nn.GroupNorm(2, 8),
            nn.ConvTranspose2d(8, 1, 3, padding=1),
        )
        self.frozen = nn.Conv2d(1, 1, 3, padding=1).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.frozen(self.back(self.norm(self.conv(x)).relu()))
        out: torch.Tensor = y + self.back(self.norm(self.conv(y)))
        return out


def gradients(net: Net, x: torch.Tensor, bf16: Bf16Weights | None) -> dict[str, torch.Tensor]:
    net.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16):
        if bf16 is None:
            loss = net(x).float().square().mean()
        else:
            with bf16.in_use():
                assert net.conv.weight.dtype == torch.bfloat16
                loss = net(x).float().square().mean()
    loss.backward()
    if bf16 is not None:
        bf16.copy_grads_back()
    return {name: p.grad for name, p in net.named_parameters() if p.grad is not None} | {"loss": loss.detach()}


def test_gradients_are_those_of_autocast_to_the_bit() -> None:
    torch.manual_seed(0)
    net, x = Net(), torch.randn(2, 1, 8, 8)
    bf16 = Bf16Weights(net)
    plain = gradients(net, x, None)
    assert set(plain) == {"conv.weight", "conv.bias", "norm.weight", "norm.bias", "back.weight", "back.bias", "loss"}
    for _ in range(2):  # the second time with gradients of the first gone
        found = gradients(net, x, bf16)
        assert set(found) == set(plain)
        assert all(torch.equal(found[name], plain[name]) for name in plain)
        assert all(value.dtype == torch.float32 for name, value in found.items())
    assert net.conv.weight is dict(net.named_parameters())["conv.weight"]
    assert isinstance(net.conv.weight, nn.Parameter)


def test_copies_follow_the_weights() -> None:
    net, x = Net(), torch.randn(1, 1, 8, 8)
    with torch.no_grad():
        net.frozen.weight.mul_(3.0)
    bf16 = Bf16Weights(net)
    with torch.no_grad():
        net.conv.bias.fill_(1.0)  # type: ignore[union-attr]
    plain, found = gradients(net, x, None), gradients(net, x, bf16)
    assert all(torch.equal(found[name], plain[name]) for name in plain)


def test_layers_that_compute_with_their_weight_keep_it() -> None:
    net = nn.Sequential(StandardisedConv(1, 4), nn.Conv2d(4, 1, 1))
    with Bf16Weights(net).in_use():
        kinds = [p.dtype for p in net[0].parameters()], [p.dtype for p in net[1].parameters()]
    assert set(kinds[0]) == {torch.float32}
    assert set(kinds[1]) == {torch.bfloat16}


def test_an_error_in_the_step_leaves_the_weights_in_place() -> None:
    net = Net()
    weight = net.conv.weight
    with pytest.raises(RuntimeError, match="broken"), Bf16Weights(net).in_use():
        raise RuntimeError("broken")
    assert net.conv.weight is weight


def test_a_whole_training_is_the_same_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_phantom(tmp_path / "data", train=12, test_normal=1, test_abnormal=1, size=32)
    layer: dict[str, Any] = merge(TINY_DMD, {"train": {"amp": "bf16"}})
    weights = []
    for name in ("copies", "autocast"):
        if name == "autocast":
            monkeypatch.setenv("RESHIFT_KERNELS", "bf16_weights")
        train_run(resolve(None, "paper", [layer]), tmp_path / "data" / "manifest.csv", tmp_path / name)
        weights.append(load_file(tmp_path / name / "bundle" / "model.safetensors"))
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert any(value.dtype == torch.float32 for value in weights[0].values())
    assert not any(value.dtype == torch.bfloat16 for value in weights[0].values())


def test_a_network_without_such_layers_has_nothing_to_copy() -> None:
    norm = nn.GroupNorm(1, 2)
    bf16 = Bf16Weights(norm)
    with bf16.in_use():
        norm(torch.randn(1, 2, 3, 3)).sum().backward()
    bf16.copy_grads_back()
    assert norm.weight.grad is not None
    assert norm.weight.dtype == torch.float32


def test_copies_follow_a_method_that_changes_weights_between_steps() -> None:
    net = Net()
    bf16 = Bf16Weights(net)
    bf16.updated_by_optimiser = True
    with torch.no_grad():
        net.conv.weight.mul_(2.0)
    bf16.sync()
    assert all(torch.equal(copy, p.detach().bfloat16()) for copy, p in zip(bf16.copies, bf16.weights, strict=True))


def test_twins_of_layers_have_copies_too() -> None:
    net = nn.Conv2d(2, 3, 1)
    net.__class__ = PointwiseConv2d
    with Bf16Weights(net).in_use():
        assert {p.dtype for p in (net.weight, net.bias)} == {torch.bfloat16}  # type: ignore[union-attr]
    assert {p.dtype for p in net.parameters()} == {torch.float32}
