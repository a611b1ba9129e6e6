"""A small DMD for tests, its images, and a stage as the training loop prepares it."""

from typing import Any

import torch
from torch import Tensor, nn

from reshift.methods.detector import Step
from reshift.methods.dmd.method import DMD
from reshift.methods.dmd.settings import DMDSettings

SMALL: dict[str, Any] = {
    "widths": (8, 16), "d_z": 8, "codes": 16, "unet_widths": (16, 32), "classifier_widths": (8, 8, 8), "classifier_hidden": 8,
}  # fmt: skip
SIZE = 32  # an 8×8 latent grid


def make(seed: int = 0, channels: int = 1, **settings: Any) -> DMD:
    torch.manual_seed(seed)
    model = DMD(DMDSettings(**{**SMALL, **settings}), SIZE, channels)
    for module in model.modules():  # zero-initialised branches would hide gradients that should flow
        if isinstance(module, nn.Conv2d) and not module.weight.any():
            nn.init.normal_(module.weight, std=0.1)
    return model


def step(seed: int = 0) -> Step:
    return Step(torch.Generator().manual_seed(seed))


def images(n: int = 4, channels: int = 1) -> Tensor:
    return torch.rand(n, channels, SIZE, SIZE, generator=torch.Generator().manual_seed(1)) * 2 - 1


def prepared_stage(model: DMD, index: int) -> Any:
    """Freeze and thaw as the training loop does."""
    stage = model.stages()[index]
    model.eval().requires_grad_(False)
    for objective in stage.objectives:
        for module in objective.modules:
            module.train().requires_grad_(True)
    return stage
