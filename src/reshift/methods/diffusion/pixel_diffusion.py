"""The common part of the methods on an image-space DDPM: ε-network, training, noise fields, reverse chain.

The network is the one these methods were published on (MONAI's DiffusionModelUNet 128/256/256, attention on the two
coarser levels, one head of width 256, one residual block per level), in our own U-Net. All methods with the same kind
of noise share one trained network: DDPM, AutoDDPM, THOR (Gaussian) and Dif-fuse; AnoDDPM and THOR (simplex). Training
errors of the originals are not copied: the target is ε itself, images are in [-1, 1] everywhere, every sample has its
own noise field.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from reshift.config import Frozen
from reshift.core.schedule import at, linear_alpha_bar
from reshift.methods.detector import Detector, Objective, Prediction, Profiles, Stage, Step, map_parts
from reshift.methods.diffusion.sampling import ancestral_step, clean, noised
from reshift.methods.diffusion.simplex import fractal_noise, permutations
from reshift.methods.ops.augment import random_affine
from reshift.nets.perceptual import network
from reshift.nets.unet import UNet

Noise = Literal["gaussian", "simplex"]
Widths = Annotated[tuple[Annotated[int, Field(ge=8, le=4096, multiple_of=8)], ...], Field(min_length=2, max_length=10)]
Draw = Callable[[], Tensor]  # the next noise field (1, C, H, W), the same for every image of every batch


class DiffusionSettings(Frozen):
    """The ε-network and its training; each method adds its own settings."""

    epochs: int = Field(1500, ge=0)
    widths: Widths = (128, 256, 256)
    blocks: int = Field(1, ge=1, le=16)
    heads: int = Field(1, ge=1, le=64)
    timesteps: int = Field(1000, ge=2, le=100_000)
    augment: bool = True  # rotate by up to 10°, shift and zoom by up to 10 %, mirror
    t_star: int = Field(250, ge=1)  # the step up to which images are noised
    stride: int = Field(1, ge=1)  # of the reverse chain; 1 visits every step
    inference_seed: int = Field(0, ge=0)


class Restoration(NamedTuple):
    """``heatmap (B, H, W)`` and the restored image, ``healthy (B, C, H, W)``."""

    heatmap: Tensor
    healthy: Tensor


class PixelDiffusion(Detector):
    """A detector on an image-space DDPM. A method sets the kind of noise and implements ``restore``."""

    Settings = DiffusionSettings
    noise: ClassVar[Noise] = "gaussian"
    bf16 = True
    profiles: ClassVar[Profiles] = {
        "paper": {"train": {"batch": 16, "lr": 1e-4, "weight_decay": 0.0}, "calibrate": {"training_sample": 64}},
        "quick": {
            "data": {"size": 64},
            "train": {"batch": 16, "lr": 5e-4, "weight_decay": 0.0, "schedule": "cosine"},
            "calibrate": {"training_sample": 16},
            "model": {"epochs": 100, "widths": [32, 64, 64], "stride": 10},
        },
    }
    alpha_bar: Tensor

    def __init__(self, settings: DiffusionSettings, size: int, channels: int) -> None:
        super().__init__()
        s = self.settings = settings
        step = 2 ** (len(s.widths) - 1)
        if size % step:
            raise ValueError(f"data.size {size} is not a multiple of {step}, which a U-Net of {len(s.widths)} levels needs")
        if s.t_star > s.timesteps:
            raise ValueError(f"model.t_star {s.t_star} exceeds model.timesteps {s.timesteps}")
        if any(width % s.heads for width in s.widths):
            raise ValueError(f"model.heads {s.heads} does not divide every one of model.widths {list(s.widths)}")
        if (features := getattr(s, "features", None)) is not None:
            network(features, torch.device("cpu"))  # missing weights show now, not after hours of training
        self.denoiser = UNet(channels, s.widths, s.blocks, s.heads)
        self.register_buffer("alpha_bar", linear_alpha_bar(s.timesteps), persistent=False)

    # ---- training ----------------------------------------------------------------------------------------------------

    def stages(self) -> Sequence[Stage]:
        """One stage, the same for all methods with this noise."""
        s = self.settings
        decided_by = s.model_dump(mode="json", include={"widths", "blocks", "heads", "timesteps", "augment"})
        decided_by |= {"what": "image-space epsilon network", "noise": self.noise}
        return (Stage("denoiser", s.epochs, (Objective((self.denoiser,), self.loss),), decided_by=decided_by),)

    def loss(self, x: Tensor, step: Step) -> dict[str, Tensor]:
        """‖ε − ε_θ(x_t, t)‖², t uniform on 1…T."""
        if self.settings.augment:
            x = random_affine(x, step.uniform(len(x), 5))
        t = step.integers(1, self.settings.timesteps, len(x))
        eps = step.normal(*x.shape)
        if self.noise == "simplex":
            eps = self._simplex(step.uniform(len(x) * x.shape[1], 256), t.float().repeat_interleave(x.shape[1]), x)
        eps_hat = self.denoiser(noised(x, eps, at(self.alpha_bar, t)), t).to(x.dtype)
        return {"loss": (eps - eps_hat).square().mean()}

    # ---- inference ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def restore(self, x: Tensor, draw: Draw) -> Restoration:
        """Restore images ``(B, C, H, W)``, with noise from ``draw``."""

    def forward(self, x: Tensor) -> Prediction:
        """The method's heat-map, and its mean."""
        heatmap = self.restore(x, self.fields(x)).heatmap
        return Prediction(heatmap.flatten(1).mean(1), heatmap)

    def pseudo_healthy(self, x: Tensor) -> Tensor:
        """The restored images, shaped like ``x``."""
        return map_parts(lambda images: self.restore(images, self.fields(images)).healthy, x)

    def fields(self, x: Tensor) -> Draw:
        """Return a source of noise fields that always starts with the same one, so that all images get the same noise."""
        generator = torch.Generator().manual_seed(self.settings.inference_seed)
        _, c, h, w = x.shape

        def draw() -> Tensor:
            if self.noise == "gaussian":
                return torch.randn(1, c, h, w, generator=generator).to(x.device)
            uniform = torch.rand(c, 256, generator=generator).to(x.device)
            return self._simplex(uniform, torch.zeros(c, device=x.device), x[:1])

        return draw

    def level(self, t: int) -> Tensor:
        """ᾱ_t."""
        return self.alpha_bar[t]

    def clean_at(self, x_t: Tensor, t: int) -> Tensor:
        """The network's estimate x̂_0 from x_t, clipped to [-1, 1]."""
        steps = torch.full((x_t.shape[0],), t, device=x_t.device)
        return clean(x_t, self.denoiser(x_t, steps).float(), self.level(t))

    def chain(self, start: int, always: Iterable[int] = ()) -> list[tuple[int, int]]:
        """Pairs (t, s) from ``start`` down to 0 in strides; the steps ``always`` are visited whatever the stride."""
        visited = {*range(start, 0, -self.settings.stride), *(t for t in always if 0 < t <= start)}
        down = [*sorted(visited, reverse=True), 0]
        return list(pairwise(down))

    def reverse(self, x_t: Tensor, start: int, draw: Draw) -> Tensor:
        """DDPM's ancestral chain from ``start`` to the image."""
        for t, s in self.track(self.chain(start), "denoising step"):
            x_t = ancestral_step(x_t, self.clean_at(x_t, t), self.level(t), self.level(s), draw())
        return x_t

    @staticmethod
    def _simplex(uniform: Tensor, z: Tensor, like: Tensor) -> Tensor:
        h, w = like.shape[-2:]
        return fractal_noise(permutations(uniform), h, w, z).view(-1, *like.shape[1:])
