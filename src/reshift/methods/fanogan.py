"""f-AnoGAN: a GAN learns to generate normal images, an encoder to find their codes; what G cannot generate is abnormal.

Schlegl, Seeböck, Waldstein, Langs, Schmidt-Erfurth, "f-AnoGAN: Fast unsupervised anomaly detection with generative
adversarial networks", 2019; the residual WGAN-GP of the authors' code (tSchlegl/f-AnoGAN), not the DCGAN-like networks
of its ports.

Faithful: networks, initial weights, n_critic, penalty, Adam at 1e-4 with β (0, 0.9), the izi_f encoder with G and D
frozen, z ~ N(0, I) and a score with the feature term. Different:

- 128 pixels instead of 64: one residual block more, the same 4×4 grid at the deepest level.
- They train on a very large set of patches, 50 000 encoder steps at batch 64. With a few hundred normals, batch 64
  gives only a few steps per epoch; batch 16 and 1500 epochs are those of the 128-pixel port in GenAI_UAD.
- RMSProp at 5e-5 for the encoder is AdamW with β (0, 0.9) at half of ``train.lr``: the same rule, with bias correction.
- E ends in tanh (``bounded``), an option of the authors: every entry of a code is within one standard deviation, so
  that the encoder stays with codes that G was trained on.

Mistakes of known ports, not made here: BatchNorm in the critic couples images whose gradients are penalised one by one;
dropout is active while features are compared; [0, 1] images are compared with the output of a tanh; the first linear
layer grows with the image size; the score lacks the feature term.

Image score: A(x) = MSE(x, x̂) + κ·MSE(f(x), f(x̂)), x̂ = G(E(x)), the authors' own; it is not the mean of the heat-map,
which does not contain f. Heat-map: |x - x̂|, averaged over channels. The authors have no post-processing.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from reshift.config import Frozen
from reshift.core.anomaly import residual_map
from reshift.methods.detector import Detector, Objective, Prediction, Profiles, Stage, Step, map_parts
from reshift.nets.gan import Critic, Encoder, Generator, gradient_penalty

# The double backward of the penalty is noisy in bf16; Adam has no weight decay, and nothing is clipped.
TRAIN = {"lr": 1e-4, "weight_decay": 0.0, "clip": 0.0, "amp": "off"}


class FAnoGANSettings(Frozen):
    """The authors' values, except for the epochs."""

    gan_epochs: int = Field(1500, ge=0)
    encoder_epochs: int = Field(1500, ge=0)
    latent: int = Field(128, ge=1, le=65_536)
    width: int = Field(64, ge=1, le=1024)  # channels at full resolution; eight times as many at the deepest level
    n_critic: int = Field(5, ge=1)  # critic steps per generator step
    penalty: float = Field(10.0, ge=0.0)  # λ
    kappa: float = Field(1.0, ge=0.0)  # κ, in the encoder's loss and in the score
    bounded: bool = True  # tanh at the end of E


class FAnoGAN(Detector):
    """The detector; see the module's docstring."""

    Settings = FAnoGANSettings
    profiles: ClassVar[Profiles] = {
        "paper": {"train": {**TRAIN, "batch": 16}},
        "quick": {
            "train": {**TRAIN, "batch": 16, "lr": 5e-4},
            "model": {"gan_epochs": 30, "encoder_epochs": 20, "width": 8, "n_critic": 2},
        },
    }

    def __init__(self, settings: FAnoGANSettings, size: int, channels: int) -> None:
        super().__init__()
        s = self.settings = settings
        self.generator = Generator(s.latent, channels, size, s.width)
        self.critic = Critic(channels, size, s.width)
        self.encoder = Encoder(s.latent, channels, size, s.width, bounded=s.bounded)

    def stages(self) -> Sequence[Stage]:
        """First the GAN, then the encoder with the GAN frozen."""
        s = self.settings
        critic = Objective((self.critic,), self._critic_loss, betas=(0.0, 0.9))
        generator = Objective((self.generator,), self._generator_loss, every=s.n_critic, betas=(0.0, 0.9))
        encoder = Objective((self.encoder,), self._encoder_loss, lr_factor=0.5, betas=(0.0, 0.9))
        nets = {"width": s.width, "latent": s.latent}
        gan = {"what": "residual WGAN-GP", "epochs": s.gan_epochs, "n_critic": s.n_critic, "penalty": s.penalty, **nets}
        izi = {"what": "izi_f encoder", "epochs": s.encoder_epochs, "kappa": s.kappa, "bounded": s.bounded, **nets}
        return (
            Stage("gan", s.gan_epochs, (critic, generator), decided_by=gan),
            Stage("encoder", s.encoder_epochs, (encoder,), decided_by=izi),
        )

    def _critic_loss(self, x: Tensor, step: Step) -> dict[str, Tensor]:
        """E D(G(z)) - E D(x) + λ·GP."""
        with torch.no_grad():
            fake = self.generator(step.normal(len(x), self.settings.latent)).to(x.dtype)
        on_real, on_fake = self.critic(torch.cat([x, fake])).chunk(2)
        wasserstein = on_real.mean() - on_fake.mean()
        penalty = gradient_penalty(self.critic, x, fake, step.uniform(len(x), 1, 1, 1))
        loss = self.settings.penalty * penalty - wasserstein
        # Both objectives log a "loss", of which the log keeps the last, so each also has a name of its own.
        return {"loss": loss, "critic": loss, "wasserstein": wasserstein, "penalty": penalty}

    def _generator_loss(self, x: Tensor, step: Step) -> dict[str, Tensor]:
        """-E D(G(z))."""
        loss = -self.critic(self.generator(step.normal(len(x), self.settings.latent))).mean()
        return {"loss": loss, "generator": loss}

    def _encoder_loss(self, x: Tensor, _step: Step) -> dict[str, Tensor]:
        """Izi_f: the same two terms as the score."""
        image, feature = (term.mean() for term in self.terms(x, self.restore(x)))
        return {"loss": image + self.settings.kappa * feature, "image": image, "feature": feature}

    def restore(self, x: Tensor) -> Tensor:
        """x̂ = G(E(x)), shaped like ``x``."""
        x_hat: Tensor = self.generator(self.encoder(x)).to(x.dtype)
        return x_hat

    def terms(self, x: Tensor, x_hat: Tensor) -> tuple[Tensor, Tensor]:
        """MSE over the image and MSE over the critic's features, each ``(B,)``."""
        image = (x - x_hat).square().flatten(1).mean(1)
        feature = (self.critic.features(x) - self.critic.features(x_hat)).square().mean(1)
        return image, feature.to(x.dtype)

    def pseudo_healthy(self, x: Tensor) -> Tensor:
        """x̂, which tanh keeps in [-1, 1]."""
        return map_parts(self.restore, x)

    def forward(self, x: Tensor) -> Prediction:
        """A(x) and |x - x̂|."""
        x_hat = self.restore(x)
        image, feature = self.terms(x, x_hat)
        return Prediction(image + self.settings.kappa * feature, residual_map(x, x_hat))
