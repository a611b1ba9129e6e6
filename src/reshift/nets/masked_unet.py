"""MAD-AD's denoiser: the shared U-Net with attention on its first level too, and two heads, for the clean latent and the mask."""

import math

from torch import Tensor, nn

from reshift.nets.norm import GroupNorm
from reshift.nets.unet import Attention, UNet


class MaskedUNet(nn.Module):
    """Predicts, from a latent noised in places, the clean latent ẑ_0 and the probability K̂ that a cell was clean."""

    def __init__(self, channels: int, widths: tuple[int, ...] = (128, 256, 512), blocks: int = 2, heads: int = 4) -> None:
        super().__init__()
        c = widths[0]
        self.trunk = UNet(channels, widths, blocks, heads)
        for stack in (*self.trunk.down, *self.trunk.up):
            if isinstance(stack, nn.ModuleList) and len(stack) == 1:  # a residual block without attention: the first level
                stack.append(Attention(c, heads))
        self.clean, self.trunk.head = self.trunk.head, nn.Sequential()  # the trunk now ends in features, (B, c, h, w)
        self.mask = nn.Sequential(GroupNorm(math.gcd(32, c), c), nn.Conv2d(c, 1, 3, padding=1))
        for parameter in self.mask[-1].parameters():
            nn.init.zeros_(parameter)  # K̂ starts at one half

    def forward(self, z: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """``z (B, C, h, w)``, ``t (B,)`` → ẑ_0 of z's shape and K̂ ``(B, 1, h, w)``, both in float32."""
        features = self.trunk(z, t)
        return self.clean(features).float(), self.mask(features).float().sigmoid()
