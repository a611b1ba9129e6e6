"""Samplers of pixel diffusion (Ho et al. 2020, Song et al. 2021), with 1-based ᾱ as in the paper: ``alpha_bar[0] = 1``.

Each step goes from one noise level to another and takes the two ᾱ, so a chain may skip steps. ``a`` is ᾱ_t, ``a_s`` is
ᾱ_s.
"""

import torch
from torch import Tensor


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


def noised(x0: Tensor, eps: Tensor, a: Tensor) -> Tensor:
    """Sample q(x_t | x_0): :math:`\\sqrt{\\bar\\alpha}\\, x_0 + \\sqrt{1-\\bar\\alpha}\\, \\epsilon`."""
    return root(a, x0) * x0 + root(1.0 - a, x0) * eps


def clean(x_t: Tensor, eps: Tensor, a: Tensor) -> Tensor:
    """Solve ``noised`` for x_0 and clip it to [-1, 1], as all these methods do."""
    return ((x_t - root(1.0 - a, x_t) * eps) / root(a, x_t)).clamp(-1.0, 1.0)


def implied_noise(x_t: Tensor, x0: Tensor, a: Tensor) -> Tensor:
    """Solve ``noised`` for ε; with a clipped x_0 this differs from the network's ε."""
    return (x_t - root(a, x_t) * x0) / root(1.0 - a, x_t)


def ancestral_step(x_t: Tensor, x0: Tensor, a: Tensor, a_s: Tensor, noise: Tensor) -> Tensor:
    """Sample q(x_s | x_t, x̂_0), s < t, with DDPM's smaller ("fixed small") variance; at s = 0 this is x̂_0."""
    alpha = a / a_s  # ∏ α over s+1 … t
    mean = root(a_s, x_t) * _as(1.0 - alpha, x_t) * x0 + root(alpha, x_t) * _as(1.0 - a_s, x_t) * x_t
    variance = (1.0 - a_s) / (1.0 - a) * (1.0 - alpha)
    return mean / _as(1.0 - a, x_t) + root(variance, x_t) * noise


def ddim_step(x_t: Tensor, x0: Tensor, a: Tensor, a_s: Tensor) -> Tensor:
    """Go from ᾱ to ᾱ_s deterministically (η = 0) along the ε that x̂_0 implies; s > t inverts the chain."""
    return noised(x0, implied_noise(x_t, x0, a), a_s)


def step_back(x_s: Tensor, a_s: Tensor, a: Tensor, noise: Tensor) -> Tensor:
    """Sample q(x_t | x_s), s < t: add the noise of the schedule between the two."""
    return noised(x_s, noise, a / a_s)


def root(a: Tensor, like: Tensor) -> Tensor:
    """√a, computed in the schedule's float64 and returned in the images' type."""
    return _as(a.sqrt(), like)


def _as(a: Tensor, like: Tensor) -> Tensor:
    return a.to(like.dtype)
