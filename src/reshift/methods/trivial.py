"""Trivial references that learn nothing. A method that is no better than they are has not found disease."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from reshift.config import Frozen
from reshift.methods.detector import Detector, Prediction, Profiles


class BrightnessSettings(Frozen):
    """There are no settings."""


class AreaSettings(Frozen):
    """What counts as foreground."""

    floor: float = 0.1  # on the 0…1 grey scale


class _Untrained(Detector):
    """A detector that learns nothing."""

    profiles: ClassVar[Profiles] = {"paper": {}, "quick": {}}

    def __init__(self, settings: Any, size: int, channels: int) -> None:
        super().__init__()
        self.settings, self.size, self.channels = settings, size, channels


class Brightness(_Untrained):
    """Heat-map: the grey value on 0…1. Score: its 99th percentile."""

    Settings = BrightnessSettings

    def forward(self, x: Tensor) -> Prediction:
        """Score ``x (B, C, H, W)``."""
        grey = _grey(x)
        return Prediction(torch.quantile(grey.flatten(1), 0.99, dim=1), grey)


class Area(_Untrained):
    """Score: the share of pixels above ``floor``. Heat-map: zero everywhere, since an area has no position."""

    Settings = AreaSettings

    def forward(self, x: Tensor) -> Prediction:
        """Score ``x (B, C, H, W)``."""
        grey = _grey(x)
        return Prediction((grey > self.settings.floor).float().flatten(1).mean(1), torch.zeros_like(grey))


def _grey(x: Tensor) -> Tensor:
    return (x.mean(1) + 1.0) / 2.0
