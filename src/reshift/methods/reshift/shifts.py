"""Reconstruction shifts: replace part of a normal image by something else, and know where.

A source turns images into what they could become, ``(x, other, step) → (B, C, H, W)``: ``x`` are normals, ``other`` are
further normals to borrow from. A random blob says where. All random numbers come from ``step`` and nothing branches on
a tensor value, so a training step can be recorded. Lengths are shares of the image's side, so they do not depend on the
resolution.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from reshift.methods.detector import Step
from reshift.methods.ops.filters import gaussian_blur

Source = Callable[[Tensor, Tensor, Step], Tensor]


class Shifted(NamedTuple):
    """A batch with shifted parts: ``image (B, C, H, W)``, ``target`` and ``inside (B, 1, H, W)``."""

    image: Tensor
    target: Tensor  # 0 … 1: how much of the pixel has visibly changed
    inside: Tensor  # 1 where there is anatomy


def log_uniform(low: float, high: float, step: Step, *shape: int) -> Tensor:
    """Draw evenly on a logarithmic scale."""
    return torch.exp(math.log(low) + math.log(high / low) * step.uniform(*shape))


def smooth_noise(step: Step, like: Tensor, points: int) -> Tensor:
    """Smooth noise ``(B, 1, H, W)``, about N(0, 1), interpolated from ``points`` values per side."""
    coarse = step.normal(len(like), 1, points, points)
    return F.interpolate(coarse, size=like.shape[-2:], mode="bicubic", align_corners=False)


def anatomy(x: Tensor, floor: float = -0.97) -> Tensor:
    """Mark pixels with something brighter than ``floor`` to their left, right, above and below: ``(B, 1, H, W)`` of 0. and 1.

    Unlike a threshold this keeps dark lesions and ventricles, and unlike a closing it needs no window size.
    """
    bright = (x > floor).any(1, keepdim=True).to(x.dtype)
    sides = [bright.cummax(d).values for d in (2, 3)] + [bright.flip(d).cummax(d).values.flip(d) for d in (2, 3)]
    return torch.stack(sides).amin(0)


def random_blob(inside: Tensor, step: Step, smallest: float, largest: float) -> Tensor:
    """One irregular blob per image, centred inside: a rotated ellipse of varying radius with a soft or sharp edge."""
    b, _, h, w = inside.shape
    centre = (inside.flatten(1) * (1e-3 + step.uniform(b, h * w))).argmax(1)
    y, x = torch.arange(h, device=inside.device).view(1, h, 1), torch.arange(w, device=inside.device).view(1, 1, w)
    dy, dx = (y - (centre // w).view(b, 1, 1)) / h, (x - (centre % w).view(b, 1, 1)) / w
    radius, stretch = log_uniform(smallest, largest, step, b, 1, 1), log_uniform(0.7, 1.4, step, b, 1, 1)
    angle = math.pi * step.uniform(b, 1, 1)
    along, across = angle.cos() * dx + angle.sin() * dy, angle.cos() * dy - angle.sin() * dx
    distance = ((along / stretch).square() + (across * stretch).square() + 1e-12).sqrt()[:, None] / radius[:, None]
    wobble = smooth_noise(step, inside, 5) + 0.6 * smooth_noise(step, inside, 9) + 0.35 * smooth_noise(step, inside, 20)
    distance = distance + wobble * (0.1 + 0.45 * step.uniform(b, 1, 1, 1))
    return torch.sigmoid((1.0 - distance) * log_uniform(3.0, 40.0, step, b, 1, 1, 1))


def random_blobs(inside: Tensor, step: Step, smallest: float, largest: float) -> Tensor:
    """One blob, and each of two more with a probability of 0.3."""
    found = random_blob(inside, step, smallest, largest)
    for _ in range(2):
        more = (step.uniform(len(inside), 1, 1, 1) < 0.3).to(found.dtype)
        found = torch.maximum(found, more * random_blob(inside, step, smallest, largest))
    return found


# ---- sources -----------------------------------------------------------------------------------------------------------


def offset(x: Tensor, _other: Tensor, step: Step) -> Tensor:
    """Brighter or darker by a smooth amount, like oedema, haemorrhage or necrosis."""
    b = len(x)
    sign = torch.where(step.uniform(b, 1, 1, 1) < 0.5, -1.0, 1.0)
    uneven = 1.0 + 0.35 * step.uniform(b, 1, 1, 1) * smooth_noise(step, x, 6)
    return x + sign * log_uniform(0.12, 1.2, step, b, 1, 1, 1) * uneven


def gain(x: Tensor, _other: Tensor, step: Step) -> Tensor:
    """Attenuated or enhanced: grey values above black are multiplied."""
    return (x + 1.0) * log_uniform(0.2, 2.5, step, len(x), 1, 1, 1) - 1.0


def swap(_x: Tensor, other: Tensor, _step: Step) -> Tensor:
    """Tissue of another normal image."""
    return other


def mix(x: Tensor, other: Tensor, step: Step) -> Tensor:
    """A blend with another normal image, brighter or darker."""
    b = len(x)
    share = 0.3 + 0.7 * step.uniform(b, 1, 1, 1)
    return share * other + (1.0 - share) * x + 0.5 * (2.0 * step.uniform(b, 1, 1, 1) - 1.0)


def texture(x: Tensor, _other: Tensor, step: Step) -> Tensor:
    """Smoother or rougher, sometimes with speckle, like the tissue of a tumour."""
    b, _, h, w = x.shape
    low = gaussian_blur(x, 3.0 * h / 128)
    grain = F.interpolate(step.normal(b, 1, h // 2, w // 2), size=(h, w), mode="bilinear", align_corners=False)
    speckle = (step.uniform(b, 1, 1, 1) < 0.5) * 0.25 * step.uniform(b, 1, 1, 1) * grain
    return low + 1.6 * step.uniform(b, 1, 1, 1) * (x - low) + speckle + 0.25 * (2.0 * step.uniform(b, 1, 1, 1) - 1.0)


SOURCES: Mapping[str, Source] = {"offset": offset, "gain": gain, "swap": swap, "mix": mix, "texture": texture}


def shift(
    x: Tensor, other: Tensor, sources: Mapping[str, Source], step: Step, *, smallest: float, largest: float, untouched: float
) -> Shifted:
    """Replace blobs of each image by one of ``sources``, drawn per image; a share ``untouched`` stays as it is.

    A pixel counts as shifted as far as a blob covers it and the change is visible.
    """
    b, h = len(x), x.shape[2]
    inside = anatomy(x)
    chosen, replacement = step.integers(0, len(sources) - 1, b).view(b, 1, 1, 1), torch.zeros_like(x)
    for i, source in enumerate(sources.values()):
        replacement = replacement + (chosen == i).to(x.dtype) * source(x, other, step)
    touched = (step.uniform(b, 1, 1, 1) >= untouched).to(x.dtype)
    cover = random_blobs(inside, step, smallest, largest) * touched * gaussian_blur(inside, h / 128)
    image = (x * (1.0 - cover) + replacement * cover).clamp(-1.0, 1.0)
    change = gaussian_blur((image - x).abs().mean(1, keepdim=True), 1.5 * h / 128)
    return Shifted(image, cover * torch.sigmoid((change - 0.06) * 80.0), inside)
