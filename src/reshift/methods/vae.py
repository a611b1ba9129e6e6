"""VAE: the autoencoder of ``ae`` whose code is a Gaussian near N(0, I).

Source: Kingma and Welling, "Auto-Encoding Variational Bayes" (2014), as in the VAE of Cai, Zhang, Chen, Cheng, "MedIAnomaly: A
comparative study of anomaly detection in medical images" (2025), and its code. Faithful: the network (that of ``ae`` with a
second head for log σ²), the loss (mean squared error + 0.005 · KL, the KL averaged over the 16 numbers of the code and over the
batch), and the training of ``ae``: Adam at 1e-3, batch 64, 250 epochs, 64×64 images in profile "paper". Different: their code
samples z at test time too, so that an image gets another score at every visit; here z is μ at test time, and a score is a score.

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


class VAESettings(Frozen):
    """MedIAnomaly's values are the defaults."""

    epochs: int = Field(250, ge=0)
    width: int = Field(16, ge=1)  # of the first block; the others have 2, 4 and 4 times as many channels
    hidden: int = Field(1024, ge=1)  # between maps and code
    latent: int = Field(16, ge=1)
    kl_weight: float = Field(0.005, ge=0.0)


class VAE(nn.Module):
    """Encode to a Gaussian, decode a sample in training and the mean afterwards, compare."""

    Settings: ClassVar[type[Frozen]] = VAESettings
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"data": {"size": 64}, "train": {"batch": 64, "lr": 1e-3, "weight_decay": 0.0, "clip": 0.0}},
        "quick": {"train": {"batch": 16, "lr": 1e-3, "weight_decay": 0.0, "clip": 0.0}, "model": {"epochs": 200}},
    }

    def __init__(self, settings: VAESettings, size: int, channels: int) -> None:
        super().__init__()
        s = self.settings = settings
        self.net = ConvAE(channels, size, s.width, s.hidden, s.latent, heads=2)

    def stages(self) -> Sequence[Stage]:
        """One: reconstruction, with the code held near N(0, I)."""
        decided_by = {"what": "vae", **self.settings.model_dump(mode="json")}
        return (Stage("autoencoder", self.settings.epochs, (Objective((self.net,), self._loss),), decided_by=decided_by),)

    def _loss(self, x: Tensor, step: Step) -> dict[str, Tensor]:
        if len(x) * step.world < 2:
            raise UserError("method 'vae' normalises over the batch: set train.batch to 2 or more")
        mu, log_var = self.posterior(x)
        z = mu + (0.5 * log_var).exp() * step.normal(*mu.shape)
        error = (x - self.net.decode(z).to(x.dtype)).square().mean()
        kl = gaussian_kl(mu, log_var).mean()
        return {"loss": error + self.settings.kl_weight * kl, "error": error, "kl": kl}

    def posterior(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """μ and log σ² of q(z | x), ``(B, latent)`` each."""
        mu, log_var = self.net.encode(x).to(x.dtype).chunk(2, dim=1)
        return mu, log_var

    def reconstruct(self, x: Tensor) -> Tensor:
        """x̂ decoded from μ, ``(B, C, H, W)`` → the same shape; not limited to [-1, 1]."""
        return self.net.decode(self.posterior(x)[0]).to(x.dtype)

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


def gaussian_kl(mu: Tensor, log_var: Tensor) -> Tensor:
    """KL(N(μ, σ²) ‖ N(0, 1)) = ½ (μ² + σ² - 1 - log σ²), elementwise."""
    return 0.5 * (mu.square() + log_var.exp() - 1.0 - log_var)
