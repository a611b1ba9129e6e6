"""The noise schedule of Section 3.3, with the paper's 1-based t: β linear, α = 1 - β, ᾱ = ∏ α."""

import torch
from torch import Tensor


def linear_alpha_bar(T_d: int = 1000, beta_1: float = 1e-4, beta_T: float = 0.02) -> Tensor:
    """Return :math:`\\bar\\alpha_0 \\ldots \\bar\\alpha_{T_d}` in float64, where :math:`\\bar\\alpha_0 = 1` means "no noise".

    Element ``t`` is the paper's :math:`\\bar\\alpha_t` for t = 1…T_d, so no caller ever shifts an index. Float64 because the
    product of a thousand factors loses three digits in float32.
    """
    if T_d < 1:
        raise ValueError(f"T_d must be at least 1, got {T_d}")
    beta = torch.linspace(beta_1, beta_T, T_d, dtype=torch.float64)
    return torch.cat([torch.ones(1, dtype=torch.float64), torch.cumprod(1.0 - beta, dim=0)])


def at(alpha_bar: Tensor, t: Tensor) -> Tensor:
    """Gather :math:`\\bar\\alpha_t` for a batch of (mixed) timesteps, shaped ``(B, 1, 1, 1)`` to broadcast over latents."""
    return alpha_bar[t].view(-1, 1, 1, 1)
