"""AE: a convolutional autoencoder with a code of 16 numbers; what it cannot rebuild is abnormal.

Source: the AE of Cai, Zhang, Chen, Cheng, "MedIAnomaly: A comparative study of anomaly detection in medical images" (2025), and
its code. Faithful: the network, the loss (mean squared error), Adam at 1e-3 without weight decay, clipping or schedule, batch
64, 250 epochs (600 for their Brain Tumor set), the last epoch's weights. Profile "paper" takes their 64×64 images
(``data.size = 64``; ours is 128 elsewhere): at 128 the linear layers have four times the weights to and from the maps, and the
code is as short.

Map: squared error averaged over channels. Image score: its mean. The authors post-process nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from reshift.config import Frozen
from reshift.errors import UserError
from reshift.methods.detector import Objective, Prediction, Stage, Step, batch_invariant, invariant_parts
from reshift.nets.convae import ConvAE


class AESettings(Frozen):
    """MedIAnomaly's values are the defaults."""

    epochs: int = Field(250, ge=0)
    width: int = Field(16, ge=1)  # of the first block; the others have 2, 4 and 4 times as many channels
    hidden: int = Field(1024, ge=1)  # between maps and code
    latent: int = Field(16, ge=1)


class AE(nn.Module):
    """Encode to a short vector, decode, compare."""

    Settings: ClassVar[type[Frozen]] = AESettings
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"data": {"size": 64}, "train": {"batch": 64, "lr": 1e-3, "weight_decay": 0.0, "clip": 0.0}},
        "quick": {"train": {"batch": 16, "lr": 1e-3, "weight_decay": 0.0, "clip": 0.0}, "model": {"epochs": 200}},
    }

    def __init__(self, settings: AESettings, size: int, channels: int) -> None:
        super().__init__()
        s = self.settings = settings
        self.net = ConvAE(channels, size, s.width, s.hidden, s.latent)

    def stages(self) -> Sequence[Stage]:
        """One: reconstruction."""
        decided_by = {"what": "ae", **self.settings.model_dump(mode="json")}
        return (Stage("autoencoder", self.settings.epochs, (Objective((self.net,), self._loss),), decided_by=decided_by),)

    def _loss(self, x: Tensor, step: Step) -> dict[str, Tensor]:
        if len(x) * step.world < 2:
            raise UserError("method 'ae' normalises over the batch: set train.batch to 2 or more")
        return {"loss": (x - self.reconstruct(x)).square().mean()}

    def reconstruct(self, x: Tensor) -> Tensor:
        """x̂, ``(B, C, H, W)`` → the same shape; not limited to [-1, 1]."""
        return self.net.decode(self.net.encode(x)).to(x.dtype)

    def pseudo_healthy(self, x: Tensor) -> Tensor:
        """Return x̂ as an image, that is, within [-1, 1]; one by one on the CPU, as in ``batch_invariant``."""
        parts = invariant_parts(x)
        return torch.cat([self.reconstruct(part) for part in parts]).clamp(-1.0, 1.0)

    def predict(self, x: Tensor) -> Prediction:
        """Squared error per pixel, and its mean."""

        def one(images: Tensor) -> Prediction:
            heatmap = (images - self.reconstruct(images)).square().mean(1)
            return Prediction(heatmap.flatten(1).mean(1), heatmap)

        return batch_invariant(one, x)
