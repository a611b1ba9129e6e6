"""Masked latent diffusion: forward corruption (Eq. 5) and the one-step clean-latent estimate (Eq. 7).

``M (…, 1, h, w)`` broadcasts over the d_z channels, which is the paper's bar; ``a_bar (B, 1, 1, 1)`` is ᾱ_t. Its roots are taken
in float64: 1 - 0.9999 keeps four digits in float32.
"""

from torch import Tensor


def masked_forward(z0: Tensor, eps: Tensor, M: Tensor, a_bar: Tensor) -> Tensor:
    """Eq. 5: :math:`z_t^M = (1-\\bar M) z_0 + \\bar M (\\sqrt{\\bar\\alpha_t} z_0 + \\sqrt{1-\\bar\\alpha_t}\\, \\epsilon)`."""
    signal, noise = a_bar.sqrt().to(z0.dtype), (1.0 - a_bar).sqrt().to(z0.dtype)
    return (1.0 - M) * z0 + M * (signal * z0 + noise * eps)


def clean_estimate(z_t: Tensor, eps_hat: Tensor, z0: Tensor, M: Tensor, a_bar: Tensor) -> Tensor:
    """Eq. 7.

    :math:`\\hat z_0^M = (1-\\bar M) z_0 + \\bar M (z_t^M - \\sqrt{1-\\bar\\alpha_t} \\epsilon_\\omega) / \\sqrt{\\bar\\alpha_t}`
    """
    signal, noise = a_bar.sqrt().to(z_t.dtype), (1.0 - a_bar).sqrt().to(z_t.dtype)
    return (1.0 - M) * z0 + M * (z_t - noise * eps_hat) / signal
