"""Masked latent diffusion: forward corruption (Eq. 5) and the one-step clean-latent estimate (Eq. 7)."""

import torch
from torch import Tensor

Roots = tuple[Tensor, Tensor]  # √ᾱ_t and √(1-ᾱ_t), each (B, 1, 1, 1): what the equations take of ᾱ_t


def masked_forward(z0: Tensor, eps: Tensor, M: Tensor, a_bar: Tensor | Roots) -> Tensor:
    """Eq. 5: :math:`z_t^M = (1-\\bar M) z_0 + \\bar M (\\sqrt{\\bar\\alpha_t} z_0 + \\sqrt{1-\\bar\\alpha_t}\\, \\epsilon)`.

    ``M (B, 1, h, w)`` broadcasts over the d_z channels (that is the paper's bar); ``a_bar (B, 1, 1, 1)`` is ᾱ_t, or its roots
    where they are at hand.
    """
    signal, noise = _roots(a_bar, z0)
    return torch.lerp(z0, torch.addcmul(noise * eps, signal, z0), M.to(z0.dtype))  # lerp(a, b, M) = (1 - M)·a + M·b


def clean_estimate(z_t: Tensor, eps_hat: Tensor, z0: Tensor, M: Tensor, a_bar: Tensor | Roots) -> Tensor:
    """Eq. 7.

    :math:`\\hat z_0^M = (1-\\bar M) z_0 + \\bar M (z_t^M - \\sqrt{1-\\bar\\alpha_t} \\epsilon_\\omega) / \\sqrt{\\bar\\alpha_t}`
    """
    signal, noise = _roots(a_bar, z0)
    return torch.lerp(z0, torch.addcmul(z_t, noise, eps_hat, value=-1.0) / signal, M.to(z_t.dtype))


def roots(a_bar: Tensor) -> Tensor:
    """√ᾱ_t and √(1-ᾱ_t) of all t, ``(T + 1,)`` → ``(2, T + 1)`` of ᾱ's float64: 1 - 0.9999 keeps four digits in float32."""
    return torch.stack([a_bar, 1.0 - a_bar]).sqrt()


def roots_at(table: Tensor, t: Tensor) -> Roots:
    """Gather the roots for a batch of (mixed) timesteps."""
    signal, noise = table[:, t, None, None, None]
    return signal, noise


def _roots(a_bar: Tensor | Roots, like: Tensor) -> Roots:
    """In the latents' type."""
    signal, noise = roots(a_bar) if isinstance(a_bar, Tensor) else a_bar
    return signal.to(like.dtype), noise.to(like.dtype)
