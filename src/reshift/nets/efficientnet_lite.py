"""EfficientNet-Lite0: inverted residual blocks without squeeze-and-excitation, trained on ImageNet.

Tan and Le, "EfficientNet", 2019; the Lite variants are Google's, for devices without fast sigmoids.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from reshift.nets.features import FeatureNet, feature_net

EPS = 1e-3  # of the norms, as in training
LAST = (2, 4, 10)  # the last block at a stride of 4, of 8 and of 16


class Group(NamedTuple):
    """Blocks of one width; the first has the stride."""

    blocks: int
    kernel: int
    stride: int
    expand: int
    width: int


GROUPS = (
    Group(1, 3, 1, 1, 16),
    Group(2, 3, 2, 6, 24),
    Group(2, 5, 2, 6, 40),
    Group(3, 3, 2, 6, 80),
    Group(3, 5, 1, 6, 112),
    Group(4, 5, 2, 6, 192),
    Group(1, 3, 1, 6, 320),
)
STEM, HEAD = 32, 1280


class ConvNorm(nn.Module):
    """Convolution and norm. At stride 2 the padding is TensorFlow's for an even input: one pixel more below and to the right."""

    def __init__(self, c_in: int, c_out: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        before, after = (kernel - stride) // 2, (kernel - stride + 1) // 2
        self.pad = (before, after, before, after) if before != after else None
        self.conv = nn.Conv2d(c_in, c_out, kernel, stride, 0 if self.pad else before, groups=groups, bias=False)
        self.norm: nn.Module = nn.BatchNorm2d(c_out, eps=EPS)

    def fold(self) -> None:
        """Put the frozen norm into the weights of the convolution: half the time for a batch on a CPU."""
        assert isinstance(self.norm, nn.BatchNorm2d)
        self.conv, self.norm = fuse_conv_bn_eval(self.conv.eval(), self.norm.eval()), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """``(B, c_in, h, w)`` → ``(B, c_out, h / stride, w / stride)``."""
        y: Tensor = self.norm(self.conv(F.pad(x, self.pad) if self.pad else x))
        return y


class Block(nn.Module):
    """Widen, filter each channel, narrow; add the input where the shape allows it."""

    def __init__(self, c_in: int, c_out: int, kernel: int, stride: int, expand: int) -> None:
        super().__init__()
        wide = c_in * expand
        self.expand = ConvNorm(c_in, wide) if expand > 1 else None
        self.depthwise = ConvNorm(wide, wide, kernel, stride, groups=wide)
        self.project = ConvNorm(wide, c_out)
        self.residual = stride == 1 and c_in == c_out

    def forward(self, x: Tensor) -> Tensor:
        """``(B, c_in, h, w)`` → ``(B, c_out, h / stride, w / stride)``."""
        y: Tensor = x if self.expand is None else F.relu6(self.expand(x))
        y = self.project(F.relu6(self.depthwise(y)))
        return y + x if self.residual else y


class EfficientNetLite0(FeatureNet):
    """The network without its classifier."""

    channels = (24, 40, 112)
    side, multiple = 224, 32
    # The Lite networks were trained on (pixel - 127) / 128. So scaled, photographs have the variances that the BatchNorms of
    # these weights remember (0.9 to 1.0 times); with ImageNet's usual mean and deviation they have up to 2.5 times those.
    pixel_mean, pixel_std = (127 / 255,) * 3, (128 / 255,) * 3

    def __init__(self, name: str, sha256: str) -> None:
        super().__init__(name, sha256)
        self.stem, self.blocks, width = ConvNorm(3, STEM, 3, 2), nn.ModuleList(), STEM
        for group in GROUPS:
            for i in range(group.blocks):
                self.blocks.append(Block(width, group.width, group.kernel, 1 if i else group.stride, group.expand))
                width = group.width
        self.head = ConvNorm(width, HEAD)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the weights, and fold every norm into its convolution."""
        super().load(tensors)
        for part in self.modules():
            if isinstance(part, ConvNorm):
                part.fold()
        self.requires_grad_(False)

    def _maps(self, x: Tensor) -> list[Tensor]:
        """Outputs of blocks 2, 4 and 10: strides 4, 8 and 16."""
        found, h = [], F.relu6(self.stem(x))
        for i, block in enumerate(self.blocks[: LAST[-1] + 1]):
            h = block(h)
            if i in LAST:
                found.append(h)
        return found

    @torch.no_grad()
    def vector(self, x: Tensor) -> Tensor:
        """The 1280 features before the classifier, averaged over space: ``(B, 1280)``."""
        with torch.autocast(x.device.type, enabled=False):
            h = F.relu6(self.stem(self._input(x, self.side)))
            for block in self.blocks:
                h = block(h)
            return F.relu6(self.head(h)).mean((2, 3))


def efficientnet_lite0(device: str | torch.device = "cpu") -> EfficientNetLite0:
    """The embedded default, by the name that every installation with the extra ``features`` knows."""
    net = feature_net("efficientnet-lite0", str(device))
    assert isinstance(net, EfficientNetLite0)
    return net
