"""DDPM (Ho et al. 2020) as the plain diffusion baseline: noise to t* = 250, denoise, compare.

Faithful: U-Net, schedule, ε-target, ancestral sampling at every step with the smaller variance and x̂_0 clipped, Adam
1e-4, batch 16, affine augmentation (settings of the GenAI_UAD benchmark). Different: no selection of the best epoch by
validation loss. Heat-map: |x − x̂|. Score: its mean. No post-processing.
"""

from torch import Tensor

from reshift.methods.diffusion.pixel_diffusion import Draw, PixelDiffusion, Restoration
from reshift.methods.diffusion.sampling import noised


class DDPM(PixelDiffusion):
    """Gaussian noise, one partial diffusion."""

    def restore(self, x: Tensor, draw: Draw) -> Restoration:
        """Noise to t*, denoise, compare."""
        start = self.settings.t_star
        healthy = self.reverse(noised(x, draw(), self.level(start)), start, draw)
        return Restoration((x - healthy).abs().mean(1), healthy)
