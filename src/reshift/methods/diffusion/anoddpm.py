"""AnoDDPM (Wyatt et al. 2022): partial diffusion with simplex noise, which reaches the low frequencies of lesions.

Faithful: simplex noise (6 octaves, persistence 0.8, wavelength 64) in training and in every step of the reverse chain,
where their default argument leaves it out; t* = 250; heat-map (x − x̂)², one reconstruction. Different: one field per
sample instead of one per batch; the network of the other methods here instead of theirs (base 128, up to six levels); t
from all of 1…1000 in training instead of below 800 and no moving average of the weights, so that THOR can share the
network. Score: the mean of the heat-map (theirs has none). No post-processing; their threshold of 0.5 is not used.
"""

from typing import ClassVar

from torch import Tensor

from reshift.methods.diffusion.pixel_diffusion import Draw, Noise, PixelDiffusion, Restoration
from reshift.methods.diffusion.sampling import noised


class AnoDDPM(PixelDiffusion):
    """Simplex noise, one partial diffusion."""

    noise: ClassVar[Noise] = "simplex"

    def restore(self, x: Tensor, draw: Draw) -> Restoration:
        """Noise to t*, denoise, compare."""
        start = self.settings.t_star
        healthy = self.reverse(noised(x, draw(), self.level(start)), start, draw)
        return Restoration((x - healthy).square().mean(1), healthy)
