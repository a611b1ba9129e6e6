"""Witness: discriminators that mark shifted pixels. Each is trained without one fold of the subjects."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from reshift.methods.detector import Step


def random_exposure(x: Tensor, step: Step) -> Tensor:
    """Change gamma and gain and add a little noise, so that brightness alone does not count as a shift."""
    b = len(x)
    gamma, gain = 0.8 + 0.45 * step.uniform(b, 1, 1, 1), 0.85 + 0.33 * step.uniform(b, 1, 1, 1)
    unit = ((x + 1.0) / 2.0).clamp(0.0, 1.0).pow(gamma) * gain
    return (2.0 * (unit + 0.02 * step.uniform(b, 1, 1, 1) * step.normal(*x.shape)) - 1.0).clamp(-1.0, 1.0)


def repeat_folds(x: Tensor, folds: int) -> Tensor:
    """Append all folds of a batch but the last two once more: all but any one fold are then one contiguous slice."""
    parts = x.chunk(folds)
    return torch.cat([*parts, *parts[: folds - 2]]) if folds > 2 else x


def without_fold(repeated: Tensor, fold: int, folds: int) -> Tensor:
    """All folds but one, from the result of ``repeat_folds``."""
    if folds == 1:
        return repeated
    size = len(repeated) // max(2, 2 * folds - 2)
    first = (fold + 1) % folds
    return repeated[first * size : (first + folds - 1) * size]


def masked_cross_entropy(logits: Tensor, target: Tensor, inside: Tensor) -> Tensor:
    """Mean binary cross-entropy over the pixels ``inside``."""
    errors = F.binary_cross_entropy_with_logits(logits, target, reduction="none") * inside
    return errors.sum() / inside.sum().clamp(min=1.0)


def mean_logits(members: Sequence[torch.nn.Module], x: Tensor, maps: list[Tensor], without: int | None) -> Tensor:
    """The mean logit ``(B, 1, H, W)`` over all members, or of the one that has not seen fold ``without``."""
    chosen = members if without is None else [members[without]]
    return torch.stack([member(x, maps).float() for member in chosen]).mean(0)
