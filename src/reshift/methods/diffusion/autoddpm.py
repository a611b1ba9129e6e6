"""AutoDDPM (Bercea et al. 2023, "Mask, Stitch, and Re-Sample"): find what a DDPM changes, then repaint only that.

Faithful: x̂₁ from t = 200; mask m = (|x − x̂₁| scaled by its 95th percentile and clipped) × spatial perceptual
distance, cut at its 95th percentile (their rule without labels; the fixed 0.13 was tuned on labelled data) and dilated
by 3×3; repainting from t = 50 with 5 resamplings per step, the known part noised from x; heat-map |x − x̂₂|·m.
Different: images in [-1, 1] throughout; percentiles per image; the perceptual network is ``model.features`` (theirs is
LPIPS-SqueezeNet on a range of values that it was not made for). Score: the mean of the heat-map. No post-processing.
"""

from pydantic import Field, model_validator
from torch import Tensor

from reshift.methods.diffusion.pixel_diffusion import DiffusionSettings, Draw, PixelDiffusion, Restoration
from reshift.methods.diffusion.sampling import ancestral_step, noised, step_back
from reshift.methods.ops.filters import dilate, per_image_quantile
from reshift.nets.perceptual import Network, spatial_distance


class AutoDDPMSettings(DiffusionSettings):
    """How the mask is found, and how it is repainted."""

    t_star: int = Field(200, ge=1)
    features: Network = "efficientnet-lite0"
    quantile: float = Field(0.95, gt=0.0, lt=1.0)
    repaint_from: int = Field(50, ge=1)
    resamplings: int = Field(5, ge=1, le=1000)

    @model_validator(mode="after")
    def _consistent(self) -> "AutoDDPMSettings":
        if self.repaint_from > self.timesteps:
            raise ValueError(f"repaint_from {self.repaint_from} exceeds timesteps {self.timesteps}")
        return self


class AutoDDPM(PixelDiffusion):
    """Mask, stitch, resample."""

    Settings = AutoDDPMSettings
    settings: AutoDDPMSettings

    def restore(self, x: Tensor, draw: Draw) -> Restoration:
        """Restore the image, mask what changed, repaint that."""
        start = self.settings.t_star
        first = self.reverse(noised(x, draw(), self.level(start)), start, draw).clamp(-1.0, 1.0)
        suspicion = self.suspicion(x, first)
        mask = dilate((suspicion > per_image_quantile(suspicion, self.settings.quantile)).float(), 3)
        healthy = self.repaint(x, first, mask, draw)
        return Restoration((x - healthy).abs().mean(1) / 2.0 * suspicion[:, 0], healthy)

    def suspicion(self, x: Tensor, restored: Tensor) -> Tensor:
        """Residual × perceptual distance, ``(B, 1, H, W)``."""
        residual = (x - restored).abs().mean(1, keepdim=True)
        scaled = (residual / per_image_quantile(residual, 0.95).clamp_min(1e-8)).clamp(0.0, 1.0)
        return scaled * spatial_distance(self.settings.features, x, restored)

    def repaint(self, x: Tensor, first: Tensor, mask: Tensor, draw: Draw) -> Tensor:
        """Denoise inside the mask and keep x outside; resampling at every step makes the two fit."""
        x_t = noised(first, draw(), self.level(self.settings.repaint_from))
        for t, s in self.track(self.chain(self.settings.repaint_from), "repainting step"):
            a, a_s = self.level(t), self.level(s)
            for again in reversed(range(self.settings.resamplings)):
                unknown = ancestral_step(x_t, self.clean_at(x_t, t), a, a_s, draw())
                x_s = mask * unknown + (1.0 - mask) * noised(x, draw(), a_s)
                x_t = step_back(x_s, a_s, a, draw()) if again else x_s
        return x_t
