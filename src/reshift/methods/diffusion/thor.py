"""THOR (Bercea et al. 2024, "Diffusion Models with Implicit Guidance for Medical Anomaly Detection"): temporal harmonisation.

At some steps of the reverse chain the estimate x̂_0 is blended with the input where the two already agree. The heat-map
is the harmonic mean of the difference maps of several steps, so a pixel counts only if it differed at all of them.

Faithful: t* = 350, harmonised at 300, 150, 50 (Gaussian); t* = 250, harmonised at 200, 150, 100, 50 (simplex); maps at
those steps, at every 50th and at the last, a_t = |x − x̂_0| · blurred perceptual distance clipped to [0, 1], divided by
its maximum; region ½(dilate₁₃(close₁₃(a)) + a); the initial noise field is reused. Fixed here: ε itself is the training
target; images are in [-1, 1] when blended and clamped; the blur does not run across the batch; the blended image is
noised to the level at which the chain continues (theirs is one level off). The perceptual network is ``model.features``
(theirs: LPIPS-SqueezeNet). Score: the mean of the heat-map. No post-processing.
"""

from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from reshift.methods.diffusion.pixel_diffusion import DiffusionSettings, Draw, Noise, PixelDiffusion, Restoration
from reshift.methods.diffusion.sampling import ancestral_step, noised
from reshift.methods.ops.filters import closing, dilate, gaussian_blur, max_normalise
from reshift.nets.perceptual import Network, spatial_distance

MAP_EVERY = 50  # maps are also taken at multiples of this step
WINDOW = 13  # pixels, of the morphology

Steps = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(max_length=1000)]


class GaussianSettings(DiffusionSettings):
    """Where the chain starts, and where it is harmonised."""

    t_star: int = Field(350, ge=1)
    harmonise_at: Steps = (300, 150, 50)
    features: Network = "efficientnet-lite0"

    @model_validator(mode="after")
    def _consistent(self) -> "GaussianSettings":
        if any(t > self.t_star for t in self.harmonise_at):
            raise ValueError(f"harmonise_at {list(self.harmonise_at)} goes beyond t_star {self.t_star}")
        return self


class SimplexSettings(GaussianSettings):
    """The same for simplex noise."""

    t_star: int = Field(250, ge=1)
    harmonise_at: Steps = (200, 150, 100, 50)


class ThorGaussian(PixelDiffusion):
    """THOR on the Gaussian network."""

    Settings = GaussianSettings
    settings: Any

    def restore(self, x: Tensor, draw: Draw) -> Restoration:
        """Denoise from t*, and blend with the input where the two agree."""
        s, initial = self.settings, draw()
        map_steps = {*s.harmonise_at, *range(MAP_EVERY, s.t_star, MAP_EVERY), 1}
        x_t, maps = noised(x, initial, self.level(s.t_star)), list[Tensor]()
        for t, following in self.track(self.chain(s.t_star, map_steps), "denoising step"):
            x0, noise = self.clean_at(x_t, t), draw()
            if t in map_steps:
                maps.append(self.difference(x, x0))
            if t in s.harmonise_at:
                region = repaint_region(maps[-1])
                x_t = noised((region * x0 + (1.0 - region) * x).clamp(-1.0, 1.0), initial, self.level(following))
            else:
                x_t = ancestral_step(x_t, x0, self.level(t), self.level(following), noise)
        return Restoration(harmonic_mean(maps).clamp(0.0, 0.999)[:, 0], x_t)

    def difference(self, x: Tensor, x0: Tensor) -> Tensor:
        """a_t, ``(B, 1, H, W)`` with maximum 1."""
        residual = (x - x0).abs().mean(1, keepdim=True) / 2.0  # on the 0…1 grey scale
        perceptual = gaussian_blur(spatial_distance(self.settings.features, x, x0), 2.0).clamp(0.0, 1.0)
        return max_normalise(residual * perceptual)


class ThorSimplex(ThorGaussian):
    """THOR on the simplex network."""

    Settings = SimplexSettings
    noise: ClassVar[Noise] = "simplex"


def repaint_region(a: Tensor) -> Tensor:
    """Soft region to repaint: 1 where the image differs, 0 where the input is kept."""
    return ((dilate(closing(a, WINDOW), WINDOW) + a) / 2.0).clamp(0.0, 1.0)


def harmonic_mean(maps: list[Tensor]) -> Tensor:
    """n / Σ 1/a over the maps; 0 where any of them is 0."""
    stacked = torch.stack(maps)
    mean = len(maps) / stacked.clamp_min(1e-12).reciprocal().sum(0)
    return torch.where((stacked <= 0.0).any(0), 0.0, mean)
