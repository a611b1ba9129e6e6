"""Samplers of pixel diffusion (Ho et al. 2020, Song et al. 2021), with the same 1-based ᾱ as the rest: ``alpha_bar[0] = 1``.

Each function goes from one noise level to another and takes the two ᾱ, so that a chain may skip steps.
"""

from torch import Tensor


def noised(x0: Tensor, eps: Tensor, a: Tensor) -> Tensor:
    """Sample q(x_t | x_0): :math:`\\sqrt{\\bar\\alpha}\\, x_0 + \\sqrt{1-\\bar\\alpha}\\, \\epsilon`."""
    return root(a, x0) * x0 + root(1.0 - a, x0) * eps


def clean(x_t: Tensor, eps: Tensor, a: Tensor) -> Tensor:
    """Solve ``noised`` for x_0 and clip to the range of images, as every one of these methods does."""
    return ((x_t - root(1.0 - a, x_t) * eps) / root(a, x_t)).clamp(-1.0, 1.0)


def implied_noise(x_t: Tensor, x0: Tensor, a: Tensor) -> Tensor:
    """Solve ``noised`` for ε; after clipping x_0 this is no longer what the network said."""
    return (x_t - root(a, x_t) * x0) / root(1.0 - a, x_t)


def ancestral_step(x_t: Tensor, x0: Tensor, a: Tensor, a_s: Tensor, noise: Tensor) -> Tensor:
    """Sample q(x_s | x_t, x̂_0), s < t, with DDPM's smaller ("fixed small") variance; at s = 0 this is x̂_0 itself."""
    step = a / a_s  # α of the step: ∏ α over s+1 … t
    mean = root(a_s, x_t) * _as(1.0 - step, x_t) * x0 + root(step, x_t) * _as(1.0 - a_s, x_t) * x_t
    variance = (1.0 - a_s) / (1.0 - a) * (1.0 - step)
    return mean / _as(1.0 - a, x_t) + root(variance, x_t) * noise


def ddim_step(x_t: Tensor, x0: Tensor, a: Tensor, a_s: Tensor) -> Tensor:
    """Go from ᾱ to ᾱ_s deterministically (η = 0) along the ε that x̂_0 implies; s > t inverts the chain."""
    return noised(x0, implied_noise(x_t, x0, a), a_s)


def step_back(x_s: Tensor, a_s: Tensor, a: Tensor, noise: Tensor) -> Tensor:
    """Sample q(x_t | x_s), s < t: noise an image again by the part of the schedule between the two."""
    return noised(x_s, noise, a / a_s)


def root(a: Tensor, like: Tensor) -> Tensor:
    """√ in the schedule's float64, then in the images' type."""
    return _as(a.sqrt(), like)


def _as(a: Tensor, like: Tensor) -> Tensor:
    return a.to(like.dtype)
