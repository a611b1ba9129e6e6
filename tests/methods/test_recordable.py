"""What a GPU records must not wait for it or copy to it. Tensors without values show that on any computer.

On the device "meta" an operation that needs a value raises, and so does one that mixes devices; copies are counted here.
"""

from contextlib import nullcontext
from typing import Any

import pytest
import small_reshift
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from reshift.methods.detector import Detector, Step
from reshift.methods.dmd.method import DMD
from reshift.methods.dmd.settings import DMDSettings
from reshift.nets.dinov2 import DinoV2
from reshift.nets.efficientnet_lite import EfficientNetLite0
from reshift.nets.features import FeatureNet
from reshift.nets.tinyvit import TinyViT


class NoCopies(TorchDispatchMode):
    """Refuse copies from the CPU to the device: a recording would keep the first call's values for ever."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = [a for a in args if isinstance(a, Tensor)]
        arrived = isinstance(out, Tensor) and out.device.type == "meta"
        assert not (arrived and any(a.device.type == "cpu" and a.dim() for a in given)), f"{func} copies to the device"
        return out


class MetaStep(Step):
    """Random numbers without values: there is no generator for this device."""

    def __init__(self) -> None:
        super().__init__(torch.Generator())

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, device="meta")

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, device="meta")

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high + 1, shape, device="meta")


@pytest.fixture(autouse=True)
def _no_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # not known on this device


def check(detector: Detector) -> None:
    """One prediction, and one step of every objective."""
    assert detector.recordable
    x = torch.empty(4, 1, small_reshift.SIZE, small_reshift.SIZE, device="meta")
    detector.to("meta")(x)  # fills caches, which is allowed: the first calls are not recorded
    with NoCopies():
        assert detector(x).heatmap.device.type == "meta"
    for stage in detector.stages():
        for objective in stage.objectives:
            nn.ModuleList(objective.modules).requires_grad_(True)
            with NoCopies():
                objective.loss(x, MetaStep())["loss"].backward()


def test_the_default_method_can_be_recorded() -> None:
    check(small_reshift.filled(polarity="bright", exposure=1.25, strokes=0.5, overall="on", symmetry="on"))


def test_the_papers_method_can_be_recorded() -> None:
    check(DMD(DMDSettings(**small_reshift.DMD), small_reshift.SIZE, 1).eval())


@pytest.mark.parametrize("kind", [EfficientNetLite0, TinyViT, DinoV2])
def test_feature_networks_can_be_recorded(kind: type[FeatureNet]) -> None:
    network, x = kind("name", "hash").eval().to("meta"), torch.empty(2, 1, 64, 64, device="meta")
    network.maps(x)
    with NoCopies():
        assert all(found.device.type == "meta" for found in network.maps(x))


def test_this_would_notice() -> None:
    x = torch.empty(3, device="meta")
    with NoCopies(), pytest.raises(AssertionError, match="copies"):
        x + torch.ones(3).to("meta")
    with pytest.raises((RuntimeError, NotImplementedError)):
        bool(x.sum() > 0)
