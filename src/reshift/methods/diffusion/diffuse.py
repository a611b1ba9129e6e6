"""Dif-fuse† (Fontanella et al. 2024, "Diffusion Models for Counterfactual Generation and Anomaly Detection in Brain Images").

† A stand-in. The original finds where to edit with a classifier trained on healthy and diseased images, so it is weakly
supervised and no method of this comparison; here the place comes from the same DDPM without labels: the one-step estimate
x̂_0 from t = 500, |x − x̂_0| × spatial perceptual distance, above its 90th percentile. The rest is theirs: mask dilated by 5×5
(they blur and take what is above 0), DDIM inversion up to 500, then two chains from that latent, an ancestral one that edits
and a deterministic one that keeps, mixed by the mask after every step; map |edit − keep|. The chains take every 10th step
(theirs: every step, 1,500 evaluations an image); one network input channel instead of four.
Score: the map's mean (theirs has none). Post-processing "authors": map divided by its maximum, 5×5 erosion, opening, closing.
"""

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from reshift.config import Frozen
from reshift.methods.diffusion.pixel_diffusion import DiffusionSettings, Draw, PixelDiffusion, Restoration
from reshift.methods.ops.filters import closing, dilate, erode, max_normalise, opening, per_image_quantile
from reshift.methods.ops.sampling import ancestral_step, ddim_step, noised
from reshift.nets.perceptual import Network, spatial_distance
from reshift.system.progress import counted

WINDOW = 5  # of the dilation and of the authors' morphology, pixels


class DiffuseSettings(DiffusionSettings):
    """Where to edit, and how."""

    t_star: int = Field(500, ge=1)
    stride: int = Field(10, ge=1)
    features: Network = "efficientnet-lite0"
    quantile: float = Field(0.9, gt=0.0, lt=1.0)
    postprocess: Literal["none", "authors"] = "none"


class Diffuse(PixelDiffusion):
    """Edit where the image is surprising, keep the rest, compare the two."""

    Settings: ClassVar[type[Frozen]] = DiffuseSettings
    settings: DiffuseSettings

    def restore(self, x: Tensor, draw: Draw) -> Restoration:
        """Invert, then run both chains down."""
        mask = self.mask(x, draw)
        keep = edit = self.invert(x)
        for t, s in counted(self.chain(self.settings.t_star), "editing step"):
            a, a_s = self.level(t), self.level(s)
            keep = ddim_step(keep, self.clean_at(keep, t), a, a_s)
            edited = ancestral_step(edit, self.clean_at(edit, t), a, a_s, draw())
            edit = mask * edited + (1.0 - mask) * keep
        heatmap = (edit - keep).abs().mean(1, keepdim=True)
        if self.settings.postprocess == "authors":
            heatmap = closing(opening(erode(max_normalise(heatmap), WINDOW), WINDOW), WINDOW)
        return Restoration(heatmap[:, 0], edit)

    def mask(self, x: Tensor, draw: Draw) -> Tensor:
        """Where to edit: what the network would change most, and its surroundings, ``(B, 1, H, W)``."""
        start = self.settings.t_star
        x0 = self.clean_at(noised(x, draw(), self.level(start)), start)
        surprise = (x - x0).abs().mean(1, keepdim=True) * spatial_distance(self.settings.features, x, x0)
        return dilate((surprise > per_image_quantile(surprise, self.settings.quantile)).float(), WINDOW)

    def invert(self, x: Tensor) -> Tensor:
        """DDIM upwards: the latent at t* from which the deterministic chain leads to x again. An image counts as x_1."""
        for t, s in counted(self.chain(self.settings.t_star)[::-1], "inverting step"):
            if t > (low := max(s, 1)):
                x = ddim_step(x, self.clean_at(x, low), self.level(low), self.level(t))
        return x
