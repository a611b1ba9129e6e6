"""A KL autoencoder in the manner of latent diffusion's KL-f8 (Rombach et al. 2022): mean and log-variance per latent cell."""

import math
from typing import NamedTuple

from torch import Tensor, nn

from reshift.nets.norm import GroupNormSiLU
from reshift.nets.unet import Attention


class Posterior(NamedTuple):
    """A diagonal Gaussian over latents, in float32."""

    mean: Tensor  # (B, d, h, w)
    logvar: Tensor  # (B, d, h, w)

    def sample(self, eps: Tensor) -> Tensor:
        """Reparametrised draw from ε ~ N(0, 1)."""
        return self.mean + (0.5 * self.logvar).exp() * eps

    def kl(self) -> Tensor:
        """KL to N(0, 1), summed over the latents of each image: ``(B,)``."""
        return 0.5 * (self.mean.square() + self.logvar.exp() - 1.0 - self.logvar).flatten(1).sum(1)


class KLVAE(nn.Module):
    """``factor``-fold smaller latents of ``d`` channels; widths w, 2w, 4w, 4w, …, one level per halving and one more."""

    def __init__(self, channels: int, width: int = 64, factor: int = 8, d: int = 4, blocks: int = 2) -> None:
        super().__init__()
        widths = [width * min(2**level, 4) for level in range(factor.bit_length())]  # factor is a power of two
        encoder: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1)]
        c = width
        for level, w in enumerate(widths):
            if level:
                encoder.append(nn.Conv2d(c, c, 3, stride=2, padding=1))
            encoder += _blocks(c, w, blocks)
            c = w
        self.encoder = nn.Sequential(*encoder, _Middle(c), *_head(c, 2 * d))
        decoder: list[nn.Module] = [nn.Conv2d(d, c, 3, padding=1), _Middle(c)]
        for level, w in reversed(list(enumerate(widths))):
            decoder += _blocks(c, w, blocks + 1)
            c = w
            if level:
                decoder += [nn.Upsample(scale_factor=2.0, mode="nearest"), nn.Conv2d(c, c, 3, padding=1)]
        self.decoder = nn.Sequential(*decoder, *_head(c, channels))

    def encode(self, x: Tensor) -> Posterior:
        """``(B, C, H, W)`` → Gaussian over ``(B, d, H/factor, W/factor)``; its variance is kept away from 0 and ∞."""
        mean, logvar = self.encoder(x).float().chunk(2, dim=1)
        return Posterior(mean, logvar.clamp(-30.0, 20.0))

    def decode(self, z: Tensor) -> Tensor:
        """``(B, d, h, w)`` → ``(B, C, H, W)`` in float32, near [-1, 1] but not confined to it."""
        x: Tensor = self.decoder(z)
        return x.float()


class _Block(nn.Module):
    """GroupNorm–SiLU–conv twice, around a skip."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*_head(c_in, c_out), *_head(c_out, c_out))
        self.skip = nn.Conv2d(c_in, c_out, 1) if c_in != c_out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.skip(x) + self.body(x)
        return out


class _Middle(nn.Module):
    """Block, attention over the latent grid, block."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.before, self.attention, self.after = _Block(c, c), Attention(c, heads=1), _Block(c, c)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        out: Tensor = self.after(self.attention(x))
        return out


def _blocks(c_in: int, c_out: int, count: int) -> list[nn.Module]:
    return [_Block(c_in if i == 0 else c_out, c_out) for i in range(count)]


def _head(c_in: int, c_out: int) -> list[nn.Module]:
    return [GroupNormSiLU(math.gcd(32, c_in // 4), c_in), nn.Conv2d(c_in, c_out, 3, padding=1)]
