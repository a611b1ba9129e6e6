"""The first three stages of TinyViT-5M, the image encoder of MobileSAM.

Wu et al., "TinyViT", 2022; Zhang et al., "Faster Segment Anything", 2023. Module names are those of MobileSAM's weights.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reshift.nets.features import FeatureNet

STEM, WIDTHS = 32, (64, 128, 160)
DEPTHS, HEADS, WINDOWS = (2, 2, 6), (0, 4, 5), (0, 7, 14)  # the first stage has convolutions, and no attention


class ConvNorm(nn.Sequential):
    """Convolution and norm."""

    def __init__(self, c_in: int, c_out: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.add_module("c", nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, groups=groups, bias=False))
        self.add_module("bn", nn.BatchNorm2d(c_out))


class ConvBlock(nn.Module):
    """Widen four times, filter each channel, narrow, add the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = ConvNorm(width, 4 * width)
        self.conv2 = ConvNorm(4 * width, 4 * width, 3, groups=4 * width)
        self.conv3 = ConvNorm(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, c, h, w)`` → the same shape."""
        return F.gelu(x + self.conv3(F.gelu(self.conv2(F.gelu(self.conv1(x))))))


class Downsample(nn.Module):
    """Halve the resolution between two stages."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.conv1, self.conv3 = ConvNorm(c_in, c_out), ConvNorm(c_out, c_out)
        self.conv2 = ConvNorm(c_out, c_out, 3, 2, groups=c_out)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, c_in, h, w)`` → ``(B, c_out, h / 2, w / 2)``."""
        y: Tensor = self.conv3(F.gelu(self.conv2(F.gelu(self.conv1(x)))))
        return y


class WindowAttention(nn.Module):
    """Attention among the pixels of a window, with a learned bias for every distance in rows and columns."""

    index: Tensor

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.attention_biases = nn.Parameter(torch.zeros(heads, window * window))
        row, column = (torch.arange(window * window) // window, torch.arange(window * window) % window)
        apart = (row[:, None] - row).abs() * window + (column[:, None] - column).abs()
        self.register_buffer("index", apart, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, n, c)`` → the same shape; n is the number of pixels of a window."""
        B, n, c = x.shape
        q, k, v = self.qkv(self.norm(x)).view(B, n, self.heads, 3, c // self.heads).permute(3, 0, 2, 1, 4)
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=self.attention_biases[:, self.index])
        y: Tensor = self.proj(found.transpose(1, 2).reshape(B, n, c))
        return y


class Mlp(nn.Module):
    """Norm and two layers, pixel by pixel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``(…, c)`` → the same shape."""
        y: Tensor = self.fc2(F.gelu(self.fc1(self.norm(x))))
        return y


class AttentionBlock(nn.Module):
    """Attention within windows, a 3×3 filter across their borders, and two layers per pixel."""

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.attn, self.mlp = WindowAttention(width, heads, window), Mlp(width)
        self.local_conv = ConvNorm(width, width, 3, groups=width)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, c, h, w)`` → the same shape."""
        x = self.local_conv(x + self._attended(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
        y: Tensor = x + self.mlp(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return y

    def _attended(self, x: Tensor) -> Tensor:
        """Attention in every window of ``x (B, h, w, c)``, padded with zeros below and to the right to whole windows."""
        (B, h, w, c), s = x.shape, self.window
        x = F.pad(x, (0, 0, 0, -w % s, 0, -h % s))
        rows, columns = x.shape[1] // s, x.shape[2] // s
        windows = x.view(B, rows, s, columns, s, c).transpose(2, 3).reshape(-1, s * s, c)
        y: Tensor = self.attn(windows).view(B, rows, columns, s, s, c).transpose(2, 3)
        return y.reshape(B, rows * s, columns * s, c)[:, :h, :w]


class Stage(nn.Module):
    """Blocks at one resolution, and the way down to the next."""

    def __init__(self, i: int) -> None:
        super().__init__()
        width = WIDTHS[i]
        self.blocks = nn.Sequential(
            *(ConvBlock(width) if i == 0 else AttentionBlock(width, HEADS[i], WINDOWS[i]) for _ in range(DEPTHS[i]))
        )
        self.downsample = Downsample(width, WIDTHS[i + 1]) if i + 1 < len(WIDTHS) else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """``(B, c, h, w)`` → the same shape: the stage without its way down."""
        y: Tensor = self.blocks(x)
        return y


class Stem(nn.Module):
    """Two convolutions of stride 2."""

    def __init__(self) -> None:
        super().__init__()
        self.seq = nn.Sequential(ConvNorm(3, STEM, 3, 2), nn.GELU(), ConvNorm(STEM, WIDTHS[0], 3, 2))


class TinyViT(FeatureNet):
    """Stages 0, 1 and 2, each before its way down: strides 4, 8 and 16."""

    channels = WIDTHS
    side, multiple = 224, 16
    pixel_mean = (123.675 / 255, 116.28 / 255, 103.53 / 255)
    pixel_std = (58.395 / 255, 57.12 / 255, 57.375 / 255)

    def __init__(self, name: str, sha256: str) -> None:
        super().__init__(name, sha256)
        self.patch_embed, self.layers = Stem(), nn.ModuleList(Stage(i) for i in range(len(WIDTHS)))

    def _maps(self, x: Tensor) -> list[Tensor]:
        found, h = [], self.patch_embed.seq(x)
        for stage in self.layers:
            found.append(stage(h))
            h = stage.get_submodule("downsample")(found[-1])  # of the last stage: nothing
        return found
