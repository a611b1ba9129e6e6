"""LPIPS (Zhang et al. 2018) on AlexNet, version 0.1: the perceptual distance with heads fitted to human judgement.

The weights are not part of this package; ``reshift weights pull lpips-alexnet`` gets them. docs/evaluation.md says against what
this network has been checked.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reshift.errors import UserError
from reshift.nets.features import as_rgb, unit_difference, upsampled_sum
from reshift.weights.find import in_use, read_tensors

NAME = "lpips-alexnet"
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

    name = NAME
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


@lru_cache(maxsize=4)
def lpips_alexnet(device: str = "cpu") -> Lpips:
    """LPIPS with its published weights on ``device``; read once and kept."""
    found = in_use(NAME)
    with torch.inference_mode(False), torch.random.fork_rng(devices=[]):  # as in ``feature_net``
        net = Lpips()
        try:
            net.load_state_dict(read_tensors(found))
        except RuntimeError as err:
            line = " ".join(str(err).split())[:200]
            raise UserError(f"{found.path}: these are not the weights of {NAME} ({line})") from None
        return net.to(device)
