"""Masked latent diffusion: forward corruption (Eq. 5) and the one-step clean-latent estimate (Eq. 7)."""

import torch
from torch import Tensor


def masked_forward(z0: Tensor, eps: Tensor, M: Tensor, a_bar: Tensor) -> Tensor:
    """Eq. 5: :math:`z_t^M = (1-\\bar M) z_0 + \\bar M (\\sqrt{\\bar\\alpha_t} z_0 + \\sqrt{1-\\bar\\alpha_t}\\, \\epsilon)`.

    ``M (B, 1, h, w)`` broadcasts over the d_z channels (that is the paper's bar); ``a_bar (B, 1, 1, 1)`` is ᾱ_t.
    """
    signal, noise = _roots(a_bar, z0)
    return torch.lerp(z0, signal * z0 + noise * eps, M.to(z0.dtype))  # lerp(a, b, M) = (1 - M)·a + M·b


def clean_estimate(z_t: Tensor, eps_hat: Tensor, z0: Tensor, M: Tensor, a_bar: Tensor) -> Tensor:
    """Eq. 7.

    :math:`\\hat z_0^M = (1-\\bar M) z_0 + \\bar M (z_t^M - \\sqrt{1-\\bar\\alpha_t} \\epsilon_\\omega) / \\sqrt{\\bar\\alpha_t}`
    """
    signal, noise = _roots(a_bar, z0)
    return torch.lerp(z0, (z_t - noise * eps_hat) / signal, M.to(z_t.dtype))


def _roots(a_bar: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """√ᾱ_t and √(1-ᾱ_t), taken in ᾱ's float64 (1 - 0.9999 keeps four digits in float32) and then cast to the latents' type."""
    return a_bar.sqrt().to(like.dtype), (1.0 - a_bar).sqrt().to(like.dtype)
