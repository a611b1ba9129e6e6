"""Latent masks: the random square of Eq. A1 (training) and the covering grid of Appendix A.3 (inference)."""

import torch
from torch import Tensor


def square_side(rho: Tensor, h: int, w: int) -> Tensor:
    """Eq. A1, first line: :math:`\\ell = \\min(\\min(h, w), \\max(1, \\mathrm{round}(\\sqrt{\\rho h w})))`, per sample."""
    return (rho * (h * w)).sqrt().round().long().clamp(min=1, max=min(h, w))


def square_start(u: Tensor, side: Tensor, length: int) -> Tensor:
    """Eq. A1, second line: map u ~ U[0, 1) to a start uniform on {0, …, length - ℓ}."""
    free = length - side
    return torch.minimum((u * (free + 1)).long(), free)  # the minimum guards u·(free+1) rounding up to free+1


def square_mask(side: Tensor, a: Tensor, b: Tensor, h: int, w: int) -> Tensor:
    """Eq. A1, third line: M[i, j] = 1 where a ≤ i < a + ℓ and b ≤ j < b + ℓ. Returns ``(B, 1, h, w)`` of 0. and 1."""
    i, j = torch.arange(h, device=side.device), torch.arange(w, device=side.device)
    rows = (a[:, None] <= i) & (i < (a + side)[:, None])  # (B, h)
    columns = (b[:, None] <= j) & (j < (b + side)[:, None])  # (B, w)
    return (rows[:, None, :, None] & columns[:, None, None, :]).float()


def random_square(u: Tensor, rho_min: float, rho_max: float, n: int) -> Tensor:
    """Eq. A1 on an n×n grid, from ``u (B, 3)`` ~ U[0, 1): the area's share, uniform from ρ_min to ρ_max, and both starts."""
    side = square_side(rho_min + (rho_max - rho_min) * u[:, 0], n, n)
    return square_mask(side, square_start(u[:, 1], side, n), square_start(u[:, 2], side, n), n, n)


def grid_starts(length: int, side: int, stride: int) -> list[int]:
    """Starts along one axis: 0, s, 2s, … and, always, length - ℓ, so that every position is covered."""
    if not 1 <= side <= length:
        raise ValueError(f"the mask side must lie in 1…{length} (the latent grid), got {side}")
    if not 1 <= stride <= side:
        raise ValueError(f"the mask stride must lie in 1…{side} (the mask side), got {stride}")
    last = length - side
    starts = list(range(0, last, stride))
    return [*starts, last]


def grid_masks(h: int, w: int, side: int, stride: int) -> Tensor:
    """All K_M inference masks, row by row, as ``(K_M, 1, h, w)``. A 16×16 grid with ℓ_M = 4, s_M = 2 gives 49."""
    rows, columns = torch.tensor(grid_starts(h, side, stride)), torch.tensor(grid_starts(w, side, stride))
    a, b = torch.cartesian_prod(rows, columns).unbind(1)
    return square_mask(torch.full_like(a, side), a, b, h, w)
