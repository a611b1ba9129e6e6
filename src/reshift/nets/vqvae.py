"""Stage I network: the vector-quantised autoencoder E_φ, C, D_η."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from reshift.core.quantize import lookup, nearest_code, straight_through
from reshift.nets.norm import BatchNormReLU


class Quantized(NamedTuple):
    """What the losses of Stage I need from one pass over the latents."""

    z_e: Tensor  # (B, d_z, h, w), encoder output
    z_q: Tensor  # (B, d_z, h, w), nearest codes
    z_st: Tensor  # (B, d_z, h, w), z_q with the gradient of z_e
    k: Tensor  # (B, h, w), code indices


def _down(c_in: int, c_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(c_in, c_out, 4, stride=2, padding=1, bias=False), BatchNormReLU(c_out))


def _up(c_in: int, c_out: int) -> nn.Sequential:
    return nn.Sequential(nn.ConvTranspose2d(c_in, c_out, 4, stride=2, padding=1, bias=False), BatchNormReLU(c_out))


class Decoder(nn.Sequential):
    """D_η: ``(B, d_z, h, w)`` → ``(B, C, H, W)`` in [-1, 1]."""

    def __init__(self, channels: int, widths: tuple[int, ...], d_z: int) -> None:
        up = [_up(b, a) for a, b in zip(widths[-2::-1], widths[:0:-1], strict=True)]
        last = nn.ConvTranspose2d(widths[0], channels, 4, stride=2, padding=1)
        super().__init__(nn.Conv2d(d_z, widths[-1], 1), *up, last, nn.Tanh())

    def decode_masked(self, z: Tensor, M: Tensor, side: int) -> Tensor:  # noqa: ARG002 (for a decoder that needs less)
        """Decode latents ``z (B, k, d_z, h, w)`` of which only the pixels inside the squares ``M (k, 1, h, w)`` are wanted.

        Returns ``(B, k, C, H, W)``. The pixels outside the squares may be anything: here they are decoded, too.
        """
        return torch.unflatten(self(z.flatten(0, 1)), 0, z.shape[:2])


class VQVAE(nn.Module):
    """Channels C → widths (one stride-2 block each) → d_z; the decoder mirrors it and ends in tanh, the images' own range."""

    def __init__(self, channels: int = 1, widths: tuple[int, ...] = (32, 64, 128), d_z: int = 64, K: int = 256) -> None:
        super().__init__()
        self.factor = 2 ** len(widths)
        down = [_down(a, b) for a, b in zip((channels, *widths[:-1]), widths, strict=True)]
        self.encoder = nn.Sequential(*down, nn.Conv2d(widths[-1], d_z, 1))
        self.decoder = Decoder(channels, widths, d_z)
        self.codebook = nn.Parameter(torch.empty(K, d_z).uniform_(-1.0 / K, 1.0 / K))

    def encode(self, x: Tensor) -> Quantized:
        """Eqs. 1–3. Distances in float32 even under autocast: bf16 would pick wrong neighbours."""
        z_e = self.encoder(x).to(self.codebook.dtype)
        with torch.autocast(x.device.type, enabled=False):
            k, z_q = self.quantize(z_e)
        return Quantized(z_e, z_q, straight_through(z_e, z_q), k)

    def quantize(self, z_e: Tensor) -> tuple[Tensor, Tensor]:
        """Eq. 2: indices ``(B, h, w)`` of the nearest codes, and the codes ``(B, d_z, h, w)``."""
        k = nearest_code(z_e, self.codebook)
        return k, lookup(k, self.codebook)

    def decode(self, z: Tensor) -> Tensor:
        """Eqs. 8 and 12: ``(B, d_z, h, w)`` → ``(B, C, H, W)`` in [-1, 1]."""
        x: Tensor = self.decoder(z)
        return x

    def fit_codebook(self, images: Iterable[Tensor]) -> None:
        """Algorithm 1, line 1: start the codes on outputs of the untrained encoder. Random codes collapse to a handful."""
        codes, generator = len(self.codebook), torch.Generator().manual_seed(0)
        self.encoder.train()  # batch statistics, as in the first step; running ones do not exist yet
        samples = [_sample_rows(as_rows(self.encode(x).z_e), codes, generator) for x in images]
        self.encoder.eval()
        self.codebook.copy_(_sample_rows(torch.cat(samples), codes, generator))

    def deviation(self, images: Iterable[Tensor]) -> float:
        """The standard deviation of all numbers in all images' z_q."""
        n, total, squares = 0, 0.0, 0.0
        for x in images:
            z = self.encode(x).z_q.double()
            n, total, squares = n + z.numel(), total + float(z.sum()), squares + float(z.square().sum())
        return float(max(squares / n - (total / n) ** 2, 1e-12) ** 0.5)


def as_rows(z: Tensor) -> Tensor:
    """``(B, d_z, h, w)`` → ``(B·h·w, d_z)``."""
    return z.permute(0, 2, 3, 1).flatten(0, 2)


def code_counts(k: Tensor, K: int) -> Tensor:
    """How often each of the K codes was chosen. Not by ``bincount``, for which a GPU waits for the CPU."""
    return (k.reshape(-1, 1) == torch.arange(K, device=k.device)).sum(0).float()


def usage_and_perplexity(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the share of codes in use and exp(entropy): K when all codes are used alike, 1 when one code does all the work."""
    p = counts / counts.sum().clamp(min=1)
    entropy = -(p * p.clamp(min=1e-12).log()).sum()
    return (counts > 0).float().mean(), entropy.exp()


def _sample_rows(rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return ``count`` random rows, repeated only if there are too few."""
    order = torch.randperm(max(len(rows), count), generator=generator)[:count] % len(rows)
    return rows[order.to(rows.device)]
