"""Frozen pretrained networks that turn an image into feature maps: their common base, and ``feature_net``, which loads one.

A network compares images by more than their pixels. It is never trained, and its weights are no part of a detector's.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reshift.errors import UserError
from reshift.weights.find import in_use, read_tensors
from reshift.weights.registry import WHEEL

EXTRA = WHEEL  # there, if the extra ``features`` is installed

# architecture → module and class; imported when asked for, because each of these imports the base class from here
ARCHITECTURES = {
    "efficientnet-lite0": ("efficientnet_lite", "EfficientNetLite0"),
    "tinyvit": ("tinyvit", "TinyViT"),
    "dinov2-vits14": ("dinov2", "DinoV2"),
}


class FeatureNet(nn.Module):
    """The base of the frozen networks. Images are ``(B, C, H, W)`` in [-1, 1] with one or three channels.

    After the first call with a side, ``maps`` neither waits for a GPU nor copies to it, so a caller may record it.
    """

    channels: ClassVar[tuple[int, int, int]]  # of the three maps, shallow to deep
    side: ClassVar[int]  # of the input in pixels, unless a caller asks for another
    multiple: ClassVar[int]  # every side must be one of these
    pixel_mean: ClassVar[tuple[float, float, float]]  # of pixels in [0, 1], as the network was trained
    pixel_std: ClassVar[tuple[float, float, float]]
    mean: Tensor
    std: Tensor

    def __init__(self, name: str, sha256: str) -> None:
        super().__init__()
        self.name, self.sha256 = name, sha256  # what it was asked for by; of the file its weights came from
        self.register_buffer("mean", torch.tensor(self.pixel_mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(self.pixel_std).view(1, 3, 1, 1), persistent=False)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the weights and freeze, for good."""
        self.load_state_dict({name: value.float() for name, value in tensors.items()})
        self.eval().requires_grad_(False)

    def train(self, mode: bool = True) -> "FeatureNet":  # noqa: ARG002
        """Stay in ``eval()``: batch statistics would make features depend on the batch."""
        return super().train(False)

    @torch.no_grad()
    def maps(self, x: Tensor, side: int | None = None) -> list[Tensor]:
        """Three maps ``(B, c, h, w)``, shallow to deep, of the image resized to ``side`` pixels; never in bf16."""
        with torch.autocast(x.device.type, enabled=False), fast_products(x.device):
            return self._maps(self._input(x, self.side if side is None else side))

    def _maps(self, x: Tensor) -> list[Tensor]:
        raise NotImplementedError

    def check_side(self, side: int) -> None:
        """Refuse a side that the network cannot take."""
        if side < self.multiple or side % self.multiple:
            raise UserError(f"{self.name} takes images whose side is a multiple of {self.multiple} pixels, not {side}")

    def side_for(self, size: int) -> int:
        """The side at which an image of ``size`` pixels loses none of them; at least the network's own."""
        return max(self.side, -(-size // self.multiple) * self.multiple)

    def _input(self, x: Tensor, side: int) -> Tensor:
        """Resize and scale as in the network's training."""
        self.check_side(side)
        _check_channels(x)
        x = F.interpolate(x.to(self.mean) / 2 + 0.5, size=(side, side), mode="bilinear", antialias=True)
        # Channels last: an eighth to a sixth faster on a CPU for networks that begin with convolutions.
        return ((as_rgb(x) - self.mean) / self.std).contiguous(memory_format=torch.channels_last)


@contextmanager
def fast_products(device: torch.device) -> Iterator[None]:
    """On a GPU, multiply float32 matrices in TF32, as convolutions do by default: much faster, at a relative error of 3e-4."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        if device.type == "cuda":
            torch.set_float32_matmul_precision(before)


@lru_cache(maxsize=8)
def feature_net(name: str, device: str) -> FeatureNet:
    """The frozen network ``name`` (or that of a local .safetensors file) on ``device``; read once and kept."""
    found = in_use(name)
    if found.architecture not in ARCHITECTURES:
        raise UserError(f"{name} is a distance of images, not a feature network; choose one of {', '.join(ARCHITECTURES)}")
    module, cls = ARCHITECTURES[found.architecture]
    with torch.inference_mode(False), torch.random.fork_rng(devices=[]):
        # Kept for callers of every kind, so never made of inference tensors. Its initial weights are thrown away, and must not
        # move another network's.
        net: FeatureNet = getattr(import_module(f"reshift.nets.{module}"), cls)(name, found.sha256)
        try:
            net.load(read_tensors(found))
        except RuntimeError as err:
            line = " ".join(str(err).split())[:200]
            raise UserError(f"{found.path}: these are not the weights of {found.architecture} ({line})") from None
        return net.to(device)


def as_rgb(x: Tensor) -> Tensor:
    """Repeat grey to three channels."""
    _check_channels(x)
    return x.expand(-1, 3, -1, -1)


def _check_channels(x: Tensor) -> None:
    if x.shape[1] not in (1, 3):
        raise UserError(f"pretrained features take images of 1 or 3 channels, not {x.shape[1]}")


def unit_difference(a: Tensor, b: Tensor) -> Tensor:
    """Squared difference of two feature maps, each scaled to unit length over the channels at every place."""
    return (_unit(a) - _unit(b)).square()


def upsampled_sum(layers: Sequence[Tensor], H: int, W: int) -> Tensor:
    """Add maps ``(B, 1, h, w)`` of several resolutions up at ``(B, H, W)``."""
    return torch.stack([F.interpolate(m, size=(H, W), mode="bilinear").squeeze(1) for m in layers]).sum(0)


def _unit(features: Tensor) -> Tensor:
    return features / (features.square().sum(1, keepdim=True).sqrt() + 1e-10)  # LPIPS' own epsilon
