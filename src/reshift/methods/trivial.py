"""Reference detectors that learn nothing. A method that does not beat them has not found disease."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from reshift.config import Frozen
from reshift.methods.detector import Prediction, Stage, batch_invariant


class BrightnessSettings(Frozen):
    """No choices: the score is the image's 99th-percentile grey value."""


class AreaSettings(Frozen):
    """What counts as foreground."""

    floor: float = 0.1  # on the 0…1 grey scale


class _Untrained(nn.Module):
    """A detector without parameters."""

    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}, "quick": {}}

    def __init__(self, settings: Any, size: int, channels: int) -> None:
        super().__init__()
        self.settings, self.size, self.channels = settings, size, channels

    def stages(self) -> Sequence[Stage]:
        """Nothing to train."""
        return ()


class Brightness(_Untrained):
    """Heat-map: the grey value on 0…1. Score: its 99th percentile."""

    Settings: ClassVar[type[Frozen]] = BrightnessSettings

    def predict(self, x: Tensor) -> Prediction:
        """Score ``x (B, C, H, W)``."""

        def one(images: Tensor) -> Prediction:
            grey = _grey(images)
            return Prediction(torch.quantile(grey.flatten(1), 0.99, dim=1), grey)

        return batch_invariant(one, x)


class Area(_Untrained):
    """Score: the share of pixels above ``floor``. Heat-map: zero everywhere, since an area has no place."""

    Settings: ClassVar[type[Frozen]] = AreaSettings

    def predict(self, x: Tensor) -> Prediction:
        """Score ``x (B, C, H, W)``."""

        def one(images: Tensor) -> Prediction:
            grey = _grey(images)
            return Prediction((grey > self.settings.floor).float().flatten(1).mean(1), torch.zeros_like(grey))

        return batch_invariant(one, x)


def _grey(x: Tensor) -> Tensor:
    return (x.mean(1) + 1.0) / 2.0
