"""From restorations to an anomaly map: residual (Eq. 13) and overlap average (Eq. 14)."""

from torch import Tensor
from torch.nn import functional as F


def residual_map(x: Tensor, x_r: Tensor) -> Tensor:
    """Eq. 13: :math:`R_k(i,j) = \\frac1C \\sum_c |x_{ijc} - x^r_{k,ijc}|`. ``(…, C, H, W)`` → ``(…, H, W)``."""
    return (x - x_r).abs().mean(-3)


def upsample_mask(M: Tensor, H: int, W: int) -> Tensor:
    """:math:`M_k^\\uparrow`: nearest-neighbour upsampling to image space, ``(K_M, 1, h, w)`` → ``(K_M, H, W)``."""
    return F.interpolate(M, size=(H, W), mode="nearest").squeeze(1)


def overlap_average(N_pix: Tensor, D_pix: Tensor, delta: float) -> Tensor:
    """Eq. 14 with the sums of Algorithm 2: :math:`A_{pix} = N_{pix} / (D_{pix} + \\delta)`."""
    return N_pix / (D_pix + delta)
