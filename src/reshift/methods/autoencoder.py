"""AE and VAE: convolutional autoencoders with a code of 16 numbers; pixels they reconstruct badly are abnormal.

Source: the AE and VAE of Cai, Zhang, Chen, Cheng, "MedIAnomaly: A comparative study of anomaly detection in medical
images" (2025), and its code; for the VAE also Kingma and Welling, "Auto-Encoding Variational Bayes" (2014).

Faithful: the network; the loss, mean squared error (AE) + 0.005 · KL averaged over the code and the batch (VAE); Adam
at 1e-3 without weight decay, clipping or schedule, batch 64, 250 epochs (600 for their Brain Tumor set), the last
epoch's weights; their 64×64 images in profile "paper" (``model.native = 64``; at 128 the linear layers next to the code
would have four times as many weights). Images are averaged down to that size, and heat-maps and restorations enlarged
(bilinearly) to ``data.size``: every method of a table is scored on one grid, against the same masks. Different: they score at
64×64; their VAE samples its code at test time, too, so that the score of an image changes from call to call; here the code is
the mean μ at test time.

Heat-map: squared error averaged over channels. Image score: its mean at the native size. The authors have no post-processing.
"""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from reshift.config import Frozen
from reshift.errors import UserError
from reshift.methods.detector import Detector, Objective, Prediction, Profiles, Stage, Step, map_parts
from reshift.nets.convae import ConvAE


class AESettings(Frozen):
    """MedIAnomaly's values are the defaults."""

    epochs: int = Field(250, ge=0)
    native: int = Field(0, ge=0, le=4096)  # side of the images that the network sees, in pixels, at most data.size; 0: data.size
    width: int = Field(16, ge=1, le=1024)  # channels of the first block; the others have 2, 4 and 4 times as many
    hidden: int = Field(1024, ge=1, le=65_536)  # units between feature maps and code
    latent: int = Field(16, ge=1, le=65_536)  # length of the code


class VAESettings(AESettings):
    """MedIAnomaly's values are the defaults."""

    kl_weight: float = Field(0.005, ge=0.0)


class AE(Detector):
    """Encode to a short vector, decode, compare."""

    Settings = AESettings
    profiles: ClassVar[Profiles] = {
        "paper": {"train": {"batch": 64, "lr": 1e-3, "weight_decay": 0.0, "clip": 0.0}, "model": {"native": 64}},
        "quick": {"train": {"batch": 16, "lr": 1e-3, "weight_decay": 0.0, "clip": 0.0}, "model": {"epochs": 200}},
    }
    name: ClassVar[str] = "ae"
    heads: ClassVar[int] = 1  # outputs of the encoder, each as long as the code

    def __init__(self, settings: AESettings, size: int, channels: int) -> None:
        super().__init__()
        s = self.settings = settings
        self.native = min(s.native or size, size)
        self.net = ConvAE(channels, self.native, s.width, s.hidden, s.latent, heads=self.heads)

    def stages(self) -> Sequence[Stage]:
        """One: reconstruction."""
        decided_by = {"what": self.name, **self.settings.model_dump(mode="json")}
        return (Stage("autoencoder", self.settings.epochs, (Objective((self.net,), self._loss),), decided_by=decided_by),)

    def _loss(self, x: Tensor, step: Step) -> dict[str, Tensor]:
        if len(x) * step.world < 2:
            raise UserError(f"method '{self.name}' normalises over the batch: set train.batch to 2 or more")
        return self.losses(self._reduced(x), step)

    def losses(self, x: Tensor, _step: Step) -> dict[str, Tensor]:
        """Mean squared error of images at the native size."""
        return {"loss": (x - self.reconstruct(x)).square().mean()}

    def reconstruct(self, x: Tensor) -> Tensor:
        """x̂ at the native size, ``(B, C, native, native)`` → the same shape; not limited to [-1, 1]."""
        return self.net.decode(self.net.encode(x)).to(x.dtype)

    def pseudo_healthy(self, x: Tensor) -> Tensor:
        """x̂, enlarged to the size of ``x`` and clipped to [-1, 1]."""
        return map_parts(lambda images: _enlarged(self.reconstruct(self._reduced(images)), images), x).clamp(-1.0, 1.0)

    def forward(self, x: Tensor) -> Prediction:
        """Squared error per pixel, enlarged to the size of ``x``, and its mean."""
        small = self._reduced(x)
        error = (small - self.reconstruct(small)).square().mean(1, keepdim=True)
        return Prediction(error.flatten(1).mean(1), _enlarged(error, x).squeeze(1))

    def _reduced(self, x: Tensor) -> Tensor:
        """Images at the native size: each pixel is the mean of those it covers."""
        return x if x.shape[-1] == self.native else F.interpolate(x, size=(self.native, self.native), mode="area")


class VAE(AE):
    """Encode to a Gaussian near N(0, I); decode a sample in training and the mean afterwards."""

    Settings = VAESettings
    name: ClassVar[str] = "vae"
    heads: ClassVar[int] = 2  # μ and log σ²
    settings: VAESettings

    def losses(self, x: Tensor, step: Step) -> dict[str, Tensor]:
        """Mean squared error of a sample, and KL."""
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
        """x̂ decoded from μ at the native size; not limited to [-1, 1]."""
        return self.net.decode(self.posterior(x)[0]).to(x.dtype)


def _enlarged(maps: Tensor, x: Tensor) -> Tensor:
    """``maps (B, C, h, w)`` on the grid of ``x``."""
    return maps if maps.shape[-2:] == x.shape[-2:] else F.interpolate(maps, size=x.shape[-2:], mode="bilinear")


def gaussian_kl(mu: Tensor, log_var: Tensor) -> Tensor:
    """KL(N(μ, σ²) ‖ N(0, 1)) = ½ (μ² + σ² - 1 - log σ²), elementwise."""
    return 0.5 * (mu.square() + log_var.exp() - 1.0 - log_var)
