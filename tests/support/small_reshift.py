"""Small untrained models of the default method."""

from typing import Any

import torch
from torch import Tensor

from reshift.methods.detector import Step
from reshift.methods.reshift.method import Reshift
from reshift.methods.reshift.settings import ReshiftSettings

DMD = {"widths": (8, 16), "d_z": 8, "codes": 16, "unet_widths": (16, 32), "classifier_widths": (8, 8, 8), "classifier_hidden": 8}
SMALL: dict[str, Any] = {
    "witnesses": ("plain", "featured", "memory", "denoising"), "weights": {}, "symmetry": "off",
    "steps": 2, "denoising_steps": 2, "folds": 2, "widths": (8, 8, 8, 8), "denoising_widths": (8, 8, 8), "bank": 32,
    "sample": 500, "dmd": DMD, "strokes": 0.0, "noise_grid": 4, "features": ("efficientnet-lite0",),
}  # fmt: skip
SIZE = 32
LITE0 = "efficientnet-lite0"


def build(**settings: Any) -> Reshift:
    torch.manual_seed(0)
    return Reshift(ReshiftSettings(**(SMALL | settings)), SIZE, 1).eval()


def images(count: int = 4, seed: int = 0) -> Tensor:
    x = torch.rand(count, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(seed)) - 0.5
    x[:, :, :4] = -1.0  # black above the head
    return x


def filled(**settings: Any) -> Reshift:
    """An untrained model whose memories and tails have seen eight images of every fold, and which is normalised."""
    model = build(**settings)
    with torch.no_grad():
        for stage in model.stages():
            for fold in range(stage.folds) if stage.begin else ():
                parts = [images(8, seed=100 * fold)]
                assert stage.begin is not None
                stage.begin(parts, fold) if stage.folds > 1 else stage.begin(parts)
        model.fit_normalisation([(images(6, seed=5), None), (images(3, seed=6), None)])
    return model


def step() -> Step:
    return Step(torch.Generator().manual_seed(0))
