"""Reconstruction shifts: part of a normal image becomes something else, and the place is known.

A source maps images to what they could turn into, ``(x, other, step) → (B, C, H, W)``: ``x`` are normals, ``other`` further
normals to borrow from. A blob says where. Everything is drawn from ``step`` and decided by arithmetic alone, so that a training
step can be recorded. Lengths are in shares of the side: what is learned does not depend on the resolution.
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
    """A batch in which parts were shifted: ``image (B, C, H, W)``, ``where`` and ``inside (B, 1, H, W)``."""

    image: Tensor
    where: Tensor  # 0 … 1: how much of the pixel is visibly not what it was
    inside: Tensor  # 1 where there is anatomy


def log_uniform(low: float, high: float, step: Step, *shape: int) -> Tensor:
    """Draw evenly on a logarithmic scale."""
    return torch.exp(math.log(low) + math.log(high / low) * step.uniform(*shape))


def smooth(step: Step, like: Tensor, points: int) -> Tensor:
    """Smooth noise ``(B, 1, H, W)``, about N(0, 1), with ``points`` values a side."""
    coarse = step.normal(len(like), 1, points, points)
    return F.interpolate(coarse, size=like.shape[-2:], mode="bicubic", align_corners=False)


def enclosed(x: Tensor, floor: float = -0.97) -> Tensor:
    """Anatomy: pixels with something brighter than ``floor`` to their left, right, above and below; ``(B, 1, H, W)``.

    Unlike a threshold this keeps dark lesions and ventricles, and unlike a closing it has no size.
    """
    bright = (x > floor).any(1, keepdim=True).to(x.dtype)
    sides = [bright.cummax(d).values for d in (2, 3)] + [bright.flip(d).cummax(d).values.flip(d) for d in (2, 3)]
    return torch.stack(sides).amin(0)


def blob(inside: Tensor, step: Step, smallest: float, largest: float) -> Tensor:
    """One irregular soft blob per image, centred inside: a turned ellipse whose radius wanders, with a soft or sharp edge."""
    b, _, h, w = inside.shape
    place = (inside.flatten(1) * (1e-3 + step.uniform(b, h * w))).argmax(1)
    y, x = torch.arange(h, device=inside.device).view(1, h, 1), torch.arange(w, device=inside.device).view(1, 1, w)
    dy, dx = (y - (place // w).view(b, 1, 1)) / h, (x - (place % w).view(b, 1, 1)) / w
    radius, stretch = log_uniform(smallest, largest, step, b, 1, 1), log_uniform(0.7, 1.4, step, b, 1, 1)
    angle = math.pi * step.uniform(b, 1, 1)
    along, across = angle.cos() * dx + angle.sin() * dy, angle.cos() * dy - angle.sin() * dx
    distance = ((along / stretch).square() + (across * stretch).square() + 1e-12).sqrt()[:, None] / radius[:, None]
    wander = smooth(step, inside, 5) + 0.6 * smooth(step, inside, 9) + 0.35 * smooth(step, inside, 20)
    distance = distance + wander * (0.1 + 0.45 * step.uniform(b, 1, 1, 1))
    return torch.sigmoid((1.0 - distance) * log_uniform(3.0, 40.0, step, b, 1, 1, 1))


def blobs(inside: Tensor, step: Step, smallest: float, largest: float) -> Tensor:
    """One blob, and each of two more with a probability of 0.3."""
    found = blob(inside, step, smallest, largest)
    for _ in range(2):
        more = (step.uniform(len(inside), 1, 1, 1) < 0.3).to(found.dtype)
        found = torch.maximum(found, more * blob(inside, step, smallest, largest))
    return found


# ---- sources -----------------------------------------------------------------------------------------------------------


def offset(x: Tensor, _other: Tensor, step: Step) -> Tensor:
    """Brighter or darker by a smooth amount: oedema, haemorrhage, necrosis."""
    b = len(x)
    sign = torch.where(step.uniform(b, 1, 1, 1) < 0.5, -1.0, 1.0)
    uneven = 1.0 + 0.35 * step.uniform(b, 1, 1, 1) * smooth(step, x, 6)
    return x + sign * log_uniform(0.12, 1.2, step, b, 1, 1, 1) * uneven


def gain(x: Tensor, _other: Tensor, step: Step) -> Tensor:
    """Attenuated or enhanced: grey values above black are multiplied."""
    return (x + 1.0) * log_uniform(0.2, 2.5, step, len(x), 1, 1, 1) - 1.0


def swap(_x: Tensor, other: Tensor, _step: Step) -> Tensor:
    """Another normal's tissue, where it does not belong."""
    return other


def mix(x: Tensor, other: Tensor, step: Step) -> Tensor:
    """Another normal's tissue shining through, brighter or darker."""
    b = len(x)
    share = 0.3 + 0.7 * step.uniform(b, 1, 1, 1)
    return share * other + (1.0 - share) * x + 0.5 * (2.0 * step.uniform(b, 1, 1, 1) - 1.0)


def texture(x: Tensor, _other: Tensor, step: Step) -> Tensor:
    """Smoother or rougher than it was, sometimes speckled: what a tumour does to the pattern of tissue."""
    b, _, h, w = x.shape
    low = gaussian_blur(x, 3.0 * h / 128)
    grain = F.interpolate(step.normal(b, 1, h // 2, w // 2), size=(h, w), mode="bilinear", align_corners=False)
    speckle = (step.uniform(b, 1, 1, 1) < 0.5) * 0.25 * step.uniform(b, 1, 1, 1) * grain
    return low + 1.6 * step.uniform(b, 1, 1, 1) * (x - low) + speckle + 0.25 * (2.0 * step.uniform(b, 1, 1, 1) - 1.0)


SOURCES: Mapping[str, Source] = {"offset": offset, "gain": gain, "swap": swap, "mix": mix, "texture": texture}


def shift(
    x: Tensor, other: Tensor, sources: Mapping[str, Source], step: Step, *, smallest: float, largest: float, untouched: float
) -> Shifted:
    """Replace a blob of each image by one of ``sources``, drawn per image; a share ``untouched`` of them stays as it is.

    A pixel counts as shifted as far as the blob covers it and the change can be seen: what turned into itself is no shift.
    """
    b, h = len(x), x.shape[2]
    inside = enclosed(x)
    chosen, full = step.integers(0, len(sources) - 1, b).view(b, 1, 1, 1), torch.zeros_like(x)
    for i, source in enumerate(sources.values()):
        full = full + (chosen == i).to(x.dtype) * source(x, other, step)
    touched = (step.uniform(b, 1, 1, 1) >= untouched).to(x.dtype)
    cover = blobs(inside, step, smallest, largest) * touched * gaussian_blur(inside, h / 128)
    image = (x * (1.0 - cover) + full * cover).clamp(-1.0, 1.0)
    change = gaussian_blur((image - x).abs().mean(1, keepdim=True), 1.5 * h / 128)
    return Shifted(image, cover * torch.sigmoid((change - 0.06) * 80.0), inside)
