"""Vector quantisation: nearest code (Eq. 2) and straight-through estimator (Eq. 3)."""

import torch
from torch import Tensor


def nearest_code(z_e: Tensor, codebook: Tensor) -> Tensor:
    """Eq. 2, left: :math:`k^*_{ij} = \\arg\\min_k \\|z_e[i,j] - e_k\\|^2`. ``(B, d_z, h, w)``, ``(K, d_z)`` → ``(B, h, w)``."""
    z = z_e.permute(0, 2, 3, 1)  # (B, h, w, d_z)
    # ‖z‖² is the same for every k, so it cannot change the argmin.
    distance = torch.addmm(codebook.square().sum(1), z.flatten(0, 2), codebook.t(), alpha=-2)  # (B·h·w, K)
    return distance.argmin(1).view(z.shape[:3])


def lookup(k: Tensor, codebook: Tensor) -> Tensor:
    """Eq. 2, right: :math:`z_q[i,j] = e_{k^*_{ij}}`. ``(B, h, w)`` → ``(B, d_z, h, w)``; differentiable in the codebook."""
    return codebook[k].permute(0, 3, 1, 2)


def straight_through(z_e: Tensor, z_q: Tensor) -> Tensor:
    """Eq. 3: :math:`z_q^{st} = z_e + \\mathrm{sg}[z_q - z_e]`; the value of z_q, the gradient of z_e."""
    return z_e + (z_q - z_e).detach()
