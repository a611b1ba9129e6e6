"""Coarse noise, which denoisers learn to remove."""

import torch
from torch import Tensor
from torch.nn import functional as F

from reshift.methods.detector import Step


def coarse_noise(x: Tensor, grid: int, std: float, step: Step) -> Tensor:
    """Smooth noise shaped like ``x``, independent for every sample and channel."""
    b, c, h, w = x.shape
    points = std * step.normal(b, c, grid, grid)
    noise = F.interpolate(points, size=(h, w), mode="bilinear", align_corners=True)
    return roll_each(noise, step.integers(0, h - 1, b), step.integers(0, w - 1, b))


def roll_each(x: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """``torch.roll`` of every sample by its own shifts ``(B,)``, by index, so that the shifts stay on the GPU."""
    _, _, h, w = x.shape
    rows = (torch.arange(h, device=x.device) - down[:, None]) % h  # (B, H): the source of each row
    cols = (torch.arange(w, device=x.device) - right[:, None]) % w
    x = x.gather(2, rows[:, None, :, None].expand_as(x))
    return x.gather(3, cols[:, None, None, :].expand_as(x))
