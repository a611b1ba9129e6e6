"""Noise schedules, with the paper's 1-based t: Section 3.3's linear β, α = 1 - β, ᾱ = ∏ α, and the baselines' cosine."""

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


def cosine_alpha_bar(T: int = 1000, s: float = 0.008, beta_max: float = 0.999) -> Tensor:
    """Return :math:`\\bar\\alpha_0 \\ldots \\bar\\alpha_T` of the squared-cosine schedule (Nichol & Dhariwal, 2021) in float64.

    The betas are clipped at ``beta_max``, as there, so the product ends a little above the cosine's own zero.
    """
    if T < 1:
        raise ValueError(f"T must be at least 1, got {T}")
    angle = (torch.arange(T + 1, dtype=torch.float64) / T + s) / (1.0 + s) * (torch.pi / 2.0)
    f = angle.cos().square()
    beta = (1.0 - f[1:] / f[:-1]).clamp(max=beta_max)
    return torch.cat([torch.ones(1, dtype=torch.float64), torch.cumprod(1.0 - beta, dim=0)])


def at(alpha_bar: Tensor, t: Tensor) -> Tensor:
    """Gather :math:`\\bar\\alpha_t` for a batch of (mixed) timesteps, shaped ``(B, 1, 1, 1)`` to broadcast over latents."""
    return alpha_bar[t].view(-1, 1, 1, 1)


def amplification(alpha_bar: Tensor) -> Tensor:
    """Return how much Eq. 7 multiplies an error of ε_ω, :math:`\\sqrt{(1-\\bar\\alpha_t)/\\bar\\alpha_t}`: 157 at t = 1000."""
    return ((1.0 - alpha_bar) / alpha_bar).sqrt()
