"""Reconstruction shifts: replace parts of a normal image by something else, and know where.

A source turns images into what they could become, ``(x, other, step) → (B, C, H, W)``: ``x`` are normals, ``other`` are
further normals to borrow from. Random blobs say where. All random numbers come from ``step`` and nothing branches on a
tensor value, so a training step can be recorded. Lengths are shares of the image's side, so they do not depend on the
resolution.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from reshift.methods.detector import Step

Source = Callable[[Tensor, Tensor, Step], Tensor]
VISIBLE = 0.12  # change of the grey value, on [-1, 1], that counts as a full shift
LARGEST_FURTHER = 0.08  # radius of the blobs after the first, at most: one large lesion and a few small ones
FURTHER_SHARE = 0.35  # probability of each of them


class Shifted(NamedTuple):
    """A batch with shifted parts: ``image (B, C, H, W)``, ``target`` and ``inside (B, 1, H, W)``."""

    image: Tensor
    target: Tensor  # 0 … 1: how visibly the pixel has changed
    inside: Tensor  # 1 where there is anatomy


def log_uniform(low: float, high: float, step: Step, *shape: int) -> Tensor:
    """Draw evenly on a logarithmic scale."""
    return torch.exp(math.log(low) + math.log(high / low) * step.uniform(*shape))


def random_sign(step: Step, *shape: int) -> Tensor:
    """-1 or 1."""
    return torch.where(step.uniform(*shape) < 0.5, -1.0, 1.0)


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
    """One irregular blob per image, centred inside: a rotated ellipse with an uneven outline and a soft or sharp edge."""
    b, _, h, w = inside.shape
    centre = (inside.flatten(1) * (1e-3 + step.uniform(b, h * w))).argmax(1)
    y, x = torch.arange(h, device=inside.device).view(1, h, 1), torch.arange(w, device=inside.device).view(1, 1, w)
    dy, dx = (y - (centre // w).view(b, 1, 1)) / h, (x - (centre % w).view(b, 1, 1)) / w
    radius, stretch = log_uniform(smallest, largest, step, b, 1, 1), log_uniform(0.7, 1.42, step, b, 1, 1)
    angle = math.pi * step.uniform(b, 1, 1)
    along, across = angle.cos() * dx + angle.sin() * dy, angle.cos() * dy - angle.sin() * dx
    distance = ((along / stretch).square() + (across * stretch).square() + 1e-12).sqrt()[:, None] / radius[:, None]
    uneven = distance * torch.exp(0.25 * smooth_noise(step, inside, 8))
    edge = 0.04 + 0.5 * step.uniform(b, 1, 1, 1).square()
    return ((1.0 + edge / 2.0 - uneven) / edge).clamp(0.0, 1.0)


def random_blobs(inside: Tensor, step: Step, smallest: float, largest: float, most: int) -> Tensor:
    """One blob of any size, and up to ``most - 1`` small ones."""
    found = random_blob(inside, step, smallest, largest)
    small = max(smallest, min(largest, LARGEST_FURTHER))
    for _ in range(most - 1):
        wanted = (step.uniform(len(inside), 1, 1, 1) < FURTHER_SHARE).to(found.dtype)
        found = torch.maximum(found, wanted * random_blob(inside, step, smallest, small))
    return found * inside


# ---- sources -----------------------------------------------------------------------------------------------------------


def _grain(x: Tensor, step: Step) -> Tensor:
    """Texture of two sizes."""
    return 0.3 * smooth_noise(step, x, 24) + 0.3 * smooth_noise(step, x, 48)


def offset(x: Tensor, _other: Tensor, step: Step) -> Tensor:
    """Brighter or darker by an uneven amount, like oedema, haemorrhage or necrosis."""
    b = len(x)
    amount = random_sign(step, b, 1, 1, 1) * log_uniform(0.12, 1.0, step, b, 1, 1, 1)
    return x + amount * (1.0 + 0.4 * step.uniform(b, 1, 1, 1) * _grain(x, step))


def gain(x: Tensor, _other: Tensor, step: Step) -> Tensor:
    """Attenuated or enhanced: grey values above black are multiplied."""
    b = len(x)
    factor = torch.exp(random_sign(step, b, 1, 1, 1) * log_uniform(0.15, 1.1, step, b, 1, 1, 1))
    return (x + 1.0) * factor - 1.0


def swap(_x: Tensor, other: Tensor, _step: Step) -> Tensor:
    """Tissue of another normal image."""
    return other


def mix(x: Tensor, other: Tensor, step: Step) -> Tensor:
    """A blend with another normal image."""
    return x + (other - x) * (0.3 + 0.7 * step.uniform(len(x), 1, 1, 1))


def texture(x: Tensor, _other: Tensor, step: Step) -> Tensor:
    """Rougher, like the tissue of a tumour."""
    return x + 0.5 * step.uniform(len(x), 1, 1, 1) * _grain(x, step)


def tone(x: Tensor, _other: Tensor, step: Step) -> Tensor:
    """Towards one grey value, which may be any: like fluid, calcification or a cavity."""
    b = len(x)
    value = 2.0 * step.uniform(b, 1, 1, 1) - 1.0 + 0.2 * step.uniform(b, 1, 1, 1) * _grain(x, step)
    return x + (value - x) * (0.4 + 0.6 * step.uniform(b, 1, 1, 1))


SOURCES: Mapping[str, Source] = {
    "offset": offset, "gain": gain, "swap": swap, "mix": mix, "texture": texture, "tone": tone,
}  # fmt: skip


def shift(
    x: Tensor, other: Tensor, sources: Mapping[str, Source], step: Step,
    *, smallest: float, largest: float, most: int, untouched: float,
) -> Shifted:  # fmt: skip
    """Replace blobs of each image by one of ``sources``, drawn per image; a share ``untouched`` stays as it is."""
    b = len(x)
    inside = anatomy(x)
    chosen, replacement = step.integers(0, len(sources) - 1, b).view(b, 1, 1, 1), torch.zeros_like(x)
    for i, source in enumerate(sources.values()):
        replacement = replacement + (chosen == i).to(x.dtype) * source(x, other, step).clamp(-1.0, 1.0)
    touched = (step.uniform(b, 1, 1, 1) >= untouched).to(x.dtype)
    cover = random_blobs(inside, step, smallest, largest, most) * touched
    image = x + (replacement - x) * cover
    change = (image - x).abs().mean(1, keepdim=True)
    return Shifted(image, (change / VISIBLE).clamp(0.0, 1.0) * (cover > 0.05).to(x.dtype), inside)
