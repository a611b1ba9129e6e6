"""Random affine transforms of training images, from uniform numbers that the caller draws."""

import torch
from torch import Tensor
from torch.nn import functional as F


def random_affine(x: Tensor, u: Tensor, degrees: float = 10.0, shift: float = 0.1, zoom: float = 0.1) -> Tensor:
    """Rotate, shift (as a share of the side), zoom and mirror each image of ``x (B, C, H, W)`` by ``u (B, 5)`` in [0, 1).

    Pixels from outside repeat the border.
    """
    angle = (2.0 * u[:, 0] - 1.0) * degrees * torch.pi / 180.0
    scale = 1.0 + (2.0 * u[:, 1] - 1.0) * zoom
    mirror = torch.where(u[:, 2] < 0.5, -1.0, 1.0)
    offset = (2.0 * u[:, 3:5] - 1.0) * 2.0 * shift  # grid coordinates run over two units
    cos, sin = angle.cos() / scale, angle.sin() / scale
    rows = [torch.stack([mirror * cos, -sin, offset[:, 0]], 1), torch.stack([mirror * sin, cos, offset[:, 1]], 1)]
    grid = F.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid.to(x.dtype), padding_mode="border", align_corners=False)
