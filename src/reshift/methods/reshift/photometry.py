"""Photometric augmentation: what another scanner, gain or exposure may do to a normal image is not a shift."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from reshift.methods.detector import Step
from reshift.methods.ops.filters import gaussian_blur
from reshift.methods.reshift.shifts import smooth_noise

KNEE = 0.4  # grey value, on [0, 1], around which the contrast curve bends
BLUR = 0.8  # σ, pixels of a 128-pixel image
SHOULDER, SOFTNESS = 0.85, 0.4  # brighter values, on [0, 1], are compressed
FOREGROUND = 0.01  # noise is added to brighter pixels only: a background of zeros stays empty


def strong_photometry(x: Tensor, step: Step) -> Tensor:
    """Change gamma, gain, shading, contrast and sharpness of ``x (B, C, H, W)`` in [-1, 1], and add noise."""
    b = len(x)
    unit = ((x + 1.0) / 2.0).clamp(0.0, 1.0)
    seen = (unit > FOREGROUND).to(x.dtype)
    y = unit.pow(_around_one(1.8, step, b)) * _around_one(1.6, step, b)
    y = y * torch.exp(0.12 * step.uniform(b, 1, 1, 1) * smooth_noise(step, x, 3))
    y = _bend(y, _around_one(math.e**0.5, step, b), _around_one(math.e**0.5, step, b))
    y = _sharpen(y, step)
    noise = 0.05 * step.uniform(b, 1, 1, 1).square() * step.normal(*x.shape)
    return 2.0 * (y + noise * seen).clamp(0.0, 1.0) - 1.0


def mild_photometry(x: Tensor, step: Step) -> Tensor:
    """Change gamma and gain and add a little noise: an easier task, for short trainings."""
    b = len(x)
    gamma, gain = 0.8 + 0.45 * step.uniform(b, 1, 1, 1), 0.85 + 0.33 * step.uniform(b, 1, 1, 1)
    unit = ((x + 1.0) / 2.0).clamp(0.0, 1.0).pow(gamma) * gain
    return (2.0 * (unit + 0.02 * step.uniform(b, 1, 1, 1) * step.normal(*x.shape)) - 1.0).clamp(-1.0, 1.0)


def blur_and_noise(x: Tensor, inside: Tensor, most: float, step: Step) -> Tensor:
    """Add noise of a random std up to ``most`` to half of the images, inside the anatomy, and blur half of those a little.

    After a shift this makes what was put in as sharp and as noisy as its surroundings: lesions are not pasted, either.
    """
    b = len(x)
    changed = (step.uniform(b, 1, 1, 1) < 0.5).to(x.dtype)
    blurred = (step.uniform(b, 1, 1, 1) < 0.5).to(x.dtype) * step.uniform(b, 1, 1, 1)
    y = x + blurred * (gaussian_blur(x, BLUR * min(x.shape[-2:]) / 128) - x)
    y = y + inside * most * step.uniform(b, 1, 1, 1) * step.normal(*x.shape)
    return x + changed * (y.clamp(-1.0, 1.0) - x)


def expose(x: Tensor, factor: float) -> Tensor:
    """Multiply grey values above black by ``factor``; white is approached softly, so that nothing is cut off."""
    unit = factor * (x + 1.0) / 2.0
    over = SHOULDER + (1.0 - SHOULDER) * torch.tanh((unit - SHOULDER) / SOFTNESS)
    return 2.0 * torch.where(unit < SHOULDER, unit, over) - 1.0


def _around_one(most: float, step: Step, b: int) -> Tensor:
    """A factor between ``1 / most`` and ``most``, evenly on a logarithmic scale."""
    return torch.exp((2.0 * step.uniform(b, 1, 1, 1) - 1.0) * math.log(most))


def _bend(y: Tensor, below: Tensor, above: Tensor) -> Tensor:
    """A monotone contrast curve that keeps 0, the knee and 1: a power of its own on each side of the knee."""
    low = KNEE * (y / KNEE).clamp(1e-4, 1.0).pow(below)
    high = KNEE + (1.0 - KNEE) * ((y - KNEE) / (1.0 - KNEE)).clamp(1e-4, 1.0).pow(above)
    return torch.where(y < KNEE, torch.where(y > 0.0, low, y), high)


def _sharpen(y: Tensor, step: Step) -> Tensor:
    """Blur a third of the images, sharpen another third, each by a random amount."""
    b = len(y)
    kind, amount = step.uniform(b, 1, 1, 1), step.uniform(b, 1, 1, 1)
    detail = y - F.avg_pool2d(F.pad(y, (1, 1, 1, 1), mode="replicate"), 3, 1)
    weight = torch.where(kind < 0.35, -amount, torch.where(kind > 0.65, 1.2 * amount, torch.zeros_like(amount)))
    return y + weight * detail
