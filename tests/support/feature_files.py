"""Feature networks for tests: random weights in a file, and the real ones where this machine has them."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from reshift.errors import UserError
from reshift.nets.dinov2 import DinoV2
from reshift.nets.features import FeatureNet, feature_net
from reshift.nets.lpips import lpips_alexnet
from reshift.nets.tinyvit import TinyViT
from reshift.weights import find

NETS: dict[str, type[FeatureNet]] = {"tinyvit": TinyViT, "dinov2-vits14": DinoV2}
HOME = Path.home() / ".cache" / "reshift" / "weights"


def forget() -> None:
    """Let names be looked up again, as in a new process."""
    find._in_use.clear()
    feature_net.cache_clear()
    lpips_alexnet.cache_clear()


def random_net(architecture: str, seed: int = 0) -> FeatureNet:
    """A network with random weights, norms included."""
    torch.manual_seed(seed)
    net = NETS[architecture]("random", "")
    state = {name: value for name, value in net.state_dict().items() if not name.endswith("num_batches_tracked")}
    net.load({name: torch.rand(value.shape) * 0.1 + (value if value.ndim == 1 else value * 3) for name, value in state.items()})
    return net


def random_file(path: Path, architecture: str, seed: int = 0) -> Path:
    """The weights of ``random_net`` as a .safetensors file."""
    state = random_net(architecture, seed).state_dict()
    save_file({name: value for name, value in state.items() if not name.endswith("num_batches_tracked")}, path)
    return path


def real_net(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The network with its real weights; skips the test where they are not here."""
    monkeypatch.setenv("RESHIFT_WEIGHTS", os.environ.get("RESHIFT_WEIGHTS", str(HOME)))
    forget()
    try:
        return feature_net(name, "cpu")
    except UserError as err:
        pytest.skip(str(err))


def waves(n: int = 2, side: int = 64, channels: int = 1) -> Tensor:
    """Images that need no random numbers, for figures that were written down."""
    y, x = torch.meshgrid(torch.arange(side).double() / side, torch.arange(side).double() / side, indexing="ij")
    rows = [
        torch.sin(2 * torch.pi * ((i + 1) * y + 2 * x * x + c / 3)) * torch.cos(5 * x * y * (i + 1))
        for i in range(n)
        for c in range(channels)
    ]
    return torch.stack(rows).view(n, channels, side, side).float()


def figures(features: Tensor) -> list[float]:
    """Mean, standard deviation and three values."""
    values = features.double().flatten()
    n = len(values)
    return [float(v) for v in (values.mean(), values.std(), values[n // 7], values[n // 2 + 3], values[-5])]
