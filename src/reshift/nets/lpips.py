"""LPIPS (Zhang et al. 2018) on AlexNet, version 0.1: the perceptual distance with heads fitted to human judgement.

The weights are not part of this package. ``tools/convert_lpips.py`` says where they come from and converts them once;
the environment variable ``RESHIFT_LPIPS`` then names the file. Unchecked against the published pair (0.722 and 0.138 for
the example images of PerceptualSimilarity): those images are not available here.
"""

import os
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reshift.errors import UserError
from reshift.nets.features import as_rgb, unit_difference, upsampled_sum

VARIABLE = "RESHIFT_LPIPS"
# channels, kernel, stride, padding; before the second and third convolution, a max-pool
CONVS = ((64, 11, 4, 2), (192, 5, 1, 2), (384, 3, 1, 1), (256, 3, 1, 1), (256, 3, 1, 1))
POOLED = (1, 2)
SMALLEST = 31  # pixels a side; below, the second pool has nothing left


class Distance(NamedTuple):
    """``scalar (B,)`` and ``spatial (B, H, W)``."""

    scalar: Tensor
    spatial: Tensor


class Lpips(nn.Module):
    """AlexNet's five convolutions and a non-negative weight per channel of each."""

    name = "lpips-alexnet"
    shift: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.convs, self.heads, c_in = nn.ModuleList(), nn.ParameterList(), 3
        for width, kernel, stride, padding in CONVS:
            self.convs.append(nn.Conv2d(c_in, width, kernel, stride, padding))
            self.heads.append(torch.zeros(width))
            c_in = width
        self.register_buffer("shift", torch.tensor([-0.030, -0.088, -0.188]).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("scale", torch.tensor([0.458, 0.448, 0.450]).view(1, 3, 1, 1), persistent=False)
        self.eval().requires_grad_(False)

    @torch.no_grad()
    def maps(self, x: Tensor) -> list[Tensor]:
        """The five ReLU outputs for ``x (B, C, H, W)`` in [-1, 1], at the image's own resolution as LPIPS has it."""
        if min(x.shape[-2:]) < SMALLEST:
            raise UserError(f"LPIPS needs images of at least {SMALLEST}×{SMALLEST} pixels, not {x.shape[-2]}×{x.shape[-1]}")
        found, h = [], (as_rgb(x.to(self.shift)) - self.shift) / self.scale
        for i, conv in enumerate(self.convs):
            h = F.relu(conv(F.max_pool2d(h, 3, 2) if i in POOLED else h))
            found.append(h)
        return found

    @torch.no_grad()
    def forward(self, a: Tensor, b: Tensor) -> Distance:
        """Distance of each pair of images, and where it comes from."""
        layers = [
            (unit_difference(f, g) * head.view(1, -1, 1, 1)).sum(1, keepdim=True)
            for f, g, head in zip(self.maps(a), self.maps(b), self.heads, strict=True)
        ]
        scalar = torch.stack([m.mean((1, 2, 3)) for m in layers]).sum(0)
        return Distance(scalar, upsampled_sum(layers, *a.shape[-2:]))


def lpips_alexnet(device: str | torch.device = "cpu") -> Lpips:
    """LPIPS with the weights of the file that ``RESHIFT_LPIPS`` names."""
    named = os.environ.get(VARIABLE)
    if not named:
        raise UserError(f"LPIPS needs weights: make the .npz with tools/convert_lpips.py and set {VARIABLE} to its path")
    net = Lpips()
    try:
        with np.load(Path(named), allow_pickle=False) as arrays:
            net.load_state_dict({key: torch.from_numpy(arrays[key]) for key in arrays.files})
    except FileNotFoundError as err:
        raise UserError(f"{VARIABLE} names {named}, which does not exist") from err
    except (OSError, ValueError, AttributeError, RuntimeError, zipfile.BadZipFile) as err:
        raise UserError(f"{VARIABLE} names {named}, which is not what tools/convert_lpips.py writes") from err
    return net.to(device)
