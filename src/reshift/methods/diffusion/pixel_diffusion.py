"""What the methods on an image-space DDPM share: the ε-network, its training, noise fields and the reverse chain.

The network is the one these methods were published on (MONAI's DiffusionModelUNet 128/256/256, attention on the two coarser
levels, one head of width 256, one residual block a level), in our own U-Net. A stage is shared by all methods with the same
kind of noise: DDPM, AutoDDPM, THOR (Gaussian) and Dif-fuse train one network, AnoDDPM and THOR (Simplex) another. What the
originals get wrong in training is not here: the target is ε itself, images are in [-1, 1] everywhere, every sample has its
own noise field.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from reshift.config import Frozen
from reshift.core.schedule import at, linear_alpha_bar
from reshift.methods.detector import Objective, Prediction, Stage, Step, batch_invariant, invariant_parts
from reshift.methods.ops.augment import random_affine
from reshift.methods.ops.sampling import ancestral_step, clean, noised
from reshift.methods.ops.simplex import fractal_noise, permutations
from reshift.nets.perceptual import network
from reshift.nets.unet import UNet
from reshift.system.progress import counted

Noise = Literal["gaussian", "simplex"]
Draw = Callable[[], Tensor]  # the next noise field (1, C, H, W), the same for every image of every batch


class DiffusionSettings(Frozen):
    """The ε-network and how it is trained; a method adds what it does with it."""

    epochs: int = Field(1500, ge=0)
    widths: Annotated[tuple[Annotated[int, Field(ge=8, multiple_of=8)], ...], Field(min_length=2)] = (128, 256, 256)
    blocks: int = Field(1, ge=1)
    heads: int = Field(1, ge=1)
    timesteps: int = Field(1000, ge=2)
    augment: bool = True  # turn by 10°, shift by 10 %, zoom by 10 %, mirror
    t_star: int = Field(250, ge=1)  # how far images are noised
    stride: int = Field(1, ge=1)  # of the reverse chain; 1 visits every step
    inference_seed: int = Field(0, ge=0)


class Restoration(NamedTuple):
    """``heatmap (B, H, W)`` and the image as the method would have it, ``healthy (B, C, H, W)``."""

    heatmap: Tensor
    healthy: Tensor


class PixelDiffusion(nn.Module):
    """A detector on an image-space DDPM. A method says what noise it trains with and how it restores an image."""

    Settings: ClassVar[type[Frozen]] = DiffusionSettings
    noise: ClassVar[Noise] = "gaussian"
    bf16: ClassVar[bool] = True
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {
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
        decided = s.model_dump(mode="json", include={"widths", "blocks", "heads", "timesteps", "augment"})
        decided |= {"what": "image-space epsilon network", "noise": self.noise}
        return (Stage("denoiser", s.epochs, (Objective((self.denoiser,), self.loss),), decided_by=decided),)

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

    def predict(self, x: Tensor) -> Prediction:
        """Heat-map of the method; score: its mean."""

        def one(images: Tensor) -> Prediction:
            heatmap = self.restore(images, self.fields(images)).heatmap
            return Prediction(heatmap.flatten(1).mean(1), heatmap)

        return batch_invariant(one, x)

    def pseudo_healthy(self, x: Tensor) -> Tensor:
        """Restore images without judging them; shaped like ``x``."""
        parts = invariant_parts(x)
        return torch.cat([self.restore(images, self.fields(images)).healthy for images in parts])

    def fields(self, x: Tensor) -> Draw:
        """Return a source of noise fields that starts anew: image k of any batch meets the same fields."""
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
        """x̂_0 as the network sees it from x_t, clipped to the range of images."""
        steps = torch.full((len(x_t),), t, device=x_t.device)
        return clean(x_t, self.denoiser(x_t, steps).float(), self.level(t))

    def chain(self, start: int, marks: Iterable[int] = ()) -> list[tuple[int, int]]:
        """(t, s) from ``start`` down to 0 in strides; ``marks`` are visited whatever the stride."""
        visited = {*range(start, 0, -self.settings.stride), *(t for t in marks if 0 < t <= start)}
        down = [*sorted(visited, reverse=True), 0]
        return list(pairwise(down))

    def reverse(self, x_t: Tensor, start: int, draw: Draw) -> Tensor:
        """DDPM's ancestral chain from ``start`` to the image."""
        for t, s in counted(self.chain(start), "denoising step"):
            x_t = ancestral_step(x_t, self.clean_at(x_t, t), self.level(t), self.level(s), draw())
        return x_t

    @staticmethod
    def _simplex(uniform: Tensor, z: Tensor, like: Tensor) -> Tensor:
        h, w = like.shape[-2:]
        return fractal_noise(permutations(uniform), h, w, z).view(-1, *like.shape[1:])
