"""Dif-fuse† (Fontanella et al. 2024, "Diffusion Models for Counterfactual Generation and Anomaly Detection in Brain Images").

† A stand-in. The original finds where to edit with a classifier trained on healthy and diseased images. It is weakly
supervised, so it does not belong in this comparison; here the region comes from the same DDPM without labels: the
one-step estimate x̂_0 from t = 500, |x − x̂_0| × spatial perceptual distance, above its 90th percentile. The rest is
theirs: mask dilated by 5×5 (they blur and take what is above 0), DDIM inversion up to 500, then two chains from that
latent, an ancestral one that edits and a deterministic one that keeps, mixed by the mask after every step; heat-map
|edit − keep|. The chains take every 10th step (theirs: every step, 1,500 evaluations per image); one input channel
instead of four. Score: the mean of the heat-map (theirs has none). Post-processing "authors": heat-map divided by its
maximum, 5×5 erosion, opening, closing.
"""

from typing import Literal

from pydantic import Field
from torch import Tensor

from reshift.methods.diffusion.pixel_diffusion import DiffusionSettings, Draw, PixelDiffusion, Restoration
from reshift.methods.diffusion.sampling import ancestral_step, ddim_step, noised
from reshift.methods.ops.filters import closing, dilate, erode, max_normalise, opening, per_image_quantile
from reshift.nets.perceptual import Network, spatial_distance

WINDOW = 5  # pixels, of the dilation and of the authors' morphology


class DiffuseSettings(DiffusionSettings):
    """Where to edit, and how."""

    t_star: int = Field(500, ge=1)
    stride: int = Field(10, ge=1)
    features: Network = "efficientnet-lite0"
    quantile: float = Field(0.9, gt=0.0, lt=1.0)
    postprocess: Literal["none", "authors"] = "none"


class Diffuse(PixelDiffusion):
    """Edit what the network would change most, keep the rest, compare the two."""

    Settings = DiffuseSettings
    settings: DiffuseSettings

    def restore(self, x: Tensor, draw: Draw) -> Restoration:
        """Invert, then run both chains."""
        mask = self.mask(x, draw)
        keep = edit = self.invert(x)
        for t, s in self.track(self.chain(self.settings.t_star), "editing step"):
            a, a_s = self.level(t), self.level(s)
            keep = ddim_step(keep, self.clean_at(keep, t), a, a_s)
            edited = ancestral_step(edit, self.clean_at(edit, t), a, a_s, draw())
            edit = mask * edited + (1.0 - mask) * keep
        heatmap = (edit - keep).abs().mean(1, keepdim=True)
        if self.settings.postprocess == "authors":
            heatmap = closing(opening(erode(max_normalise(heatmap), WINDOW), WINDOW), WINDOW)
        return Restoration(heatmap[:, 0], edit)

    def mask(self, x: Tensor, draw: Draw) -> Tensor:
        """Where to edit, ``(B, 1, H, W)``: what the network would change most, dilated."""
        start = self.settings.t_star
        x0 = self.clean_at(noised(x, draw(), self.level(start)), start)
        change = (x - x0).abs().mean(1, keepdim=True) * spatial_distance(self.settings.features, x, x0)
        return dilate((change > per_image_quantile(change, self.settings.quantile)).float(), WINDOW)

    def invert(self, x: Tensor) -> Tensor:
        """DDIM inversion: the latent at t* from which the deterministic chain returns to x. An image counts as x_1."""
        for t, s in self.track(self.chain(self.settings.t_star)[::-1], "inverting step"):
            if t > (low := max(s, 1)):
                x = ddim_step(x, self.clean_at(x, low), self.level(low), self.level(t))
        return x
