"""Phantoms with lesions that no threshold finds, a short training, and what a method makes of them."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from reshift.data.phantom import draw
from reshift.evaluation.metrics.image import average_precision, curve, roc_auc
from reshift.methods import get
from reshift.methods.detector import Stage, Step

SIZE = 32
SEED = 0


class Cases(NamedTuple):
    """n healthy images and then n with a lesion, ``(2n, 1, H, W)``, and where the lesions are, ``(n, H, W)``."""

    images: Tensor
    masks: Tensor


class Found(NamedTuple):
    """AUC over images; AUC and AP over the pixels of the images with a lesion."""

    image_auc: float
    pixel_auc: float
    pixel_ap: float


def chests(subjects: range, *, abnormal: bool = False, size: int = SIZE) -> tuple[Tensor, Tensor]:
    """Chest phantoms ``(n, 1, H, W)`` in [-1, 1] and their masks. In the brain, brightness alone finds nearly all."""
    drawn = [draw("chest", s, s % 4, abnormal=abnormal, size=size) for s in subjects]
    images = torch.from_numpy(np.stack([p.pixels for p in drawn])).float()[:, None] / 127.5 - 1.0
    return images, torch.from_numpy(np.stack([p.mask for p in drawn]))


def training_images() -> Tensor:
    return chests(range(96))[0]


def planted(n: int) -> Cases:
    """Chests with a disc that is far too bright for its dark place, or far too dark for its bright one, in turns.

    Of the phantom's own lesions, a network trained for seconds at this size finds the place, but not the images. A disc in
    turns bright and dark leaves little to brightness or to darkness alone.
    """
    healthy, sick = chests(range(800, 800 + n))[0], chests(range(300, 300 + n))[0]
    masks = torch.zeros(n, SIZE, SIZE, dtype=torch.bool)
    axis, random = (torch.arange(SIZE) + 0.5) / SIZE, np.random.default_rng(0)
    for i, image in enumerate(sick[:, 0]):
        sign, place = (1.0 if i % 2 else -1.0), image > 2.0
        while not place.any() or float(image[place].mean()) * sign > -0.1:
            y, x = random.uniform(0.2, 0.8, 2).tolist()
            place = torch.hypot(axis[:, None] - y, axis[None] - x) < 0.14
        image[place] = (image[place] + 0.8 * sign).clamp(-1.0, 1.0)
        masks[i] = place
    return Cases(torch.cat([healthy, sick]), masks)


def build(name: str, size: int = SIZE, **settings: Any) -> Any:
    """Return the method, untrained and ready to predict."""
    torch.manual_seed(SEED)
    method = get(name)
    return method(method.Settings(**settings), size, 1).eval().requires_grad_(False)


def train(model: Any, x: Tensor, steps: Sequence[int], lr: float, batch: int) -> Any:
    """So many steps of every stage, with a short warm-up and a cosine."""
    for number, (stage, total) in enumerate(zip(model.stages(), steps, strict=True)):
        model.eval().requires_grad_(False)
        if stage.begin is not None:
            with torch.no_grad():
                stage.begin(x.split(32))
        _train_stage(stage, x, total, lr, batch, seed=1000 * SEED + number)
    return model.eval().requires_grad_(False)


def _train_stage(stage: Stage, x: Tensor, total: int, lr: float, batch: int, seed: int) -> None:
    modules = [nn.ModuleList(objective.modules).train().requires_grad_(True) for objective in stage.objectives]
    optimisers = [
        torch.optim.AdamW(m.parameters(), lr, objective.betas, weight_decay=0.0)
        for m, objective in zip(modules, stage.objectives, strict=True)
    ]
    step = Step(torch.Generator().manual_seed(seed))
    for i in range(total):
        images = x[step.integers(0, len(x) - 1, batch)]
        rate = lr * min(1.0, (i + 1) / 20) * 0.5 * (1.0 + math.cos(math.pi * i / total))
        for m, objective, optimiser in zip(modules, stage.objectives, optimisers, strict=True):
            if i % objective.every == 0:
                optimiser.param_groups[0]["lr"] = rate * objective.lr_factor
                optimiser.zero_grad()
                objective.loss(images, step)["loss"].backward()
                nn.utils.clip_grad_norm_(m.parameters(), 1.0)
                optimiser.step()
                if objective.after is not None:
                    objective.after(step)


def judge(model: Any, cases: Cases) -> Found:
    """What ``model`` finds."""
    n = len(cases.masks)
    with torch.inference_mode():
        score, heatmap = model.predict(cases.images)
    return Found(auc(torch.arange(2 * n) >= n, score), *_places(cases, heatmap[n:]))


def judge_places(model: Any, cases: Cases) -> tuple[float, float]:
    """AUC and AP over pixels, at half the cost: healthy images are left out."""
    with torch.inference_mode():
        return _places(cases, model.predict(cases.images[len(cases.masks) :]).heatmap)


def _places(cases: Cases, heatmap: Tensor) -> tuple[float, float]:
    ap = average_precision(*curve(cases.masks.numpy().ravel(), heatmap.double().numpy().ravel())[:2])
    assert ap is not None
    return auc(cases.masks, heatmap), ap


def auc(labels: Tensor, scores: Tensor) -> float:
    """AUC over all elements."""
    area = roc_auc(labels.numpy().ravel(), scores.double().numpy().ravel())
    assert area is not None
    return area


def trivial(cases: Cases) -> Found:
    """The better of brightness and darkness, figure by figure."""
    brightness = build("brightness", cases.images.shape[-1])
    bright, dark = (judge(brightness, Cases(images, cases.masks)) for images in (cases.images, -cases.images))
    return Found(*(max(pair) for pair in zip(bright, dark, strict=True)))
