"""Stage I network: the vector-quantised autoencoder E_φ, C, D_η."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from reshift.core.quantize import lookup, some_rows, straight_through, vectors
from reshift.methods.dmd.windows import Up, margin
from reshift.nets.nearest import nearest
from reshift.nets.norm_relu import NormRelu
from reshift.nets.pointwise import Pointwise
from reshift.nets.thin import ThinConv2d, ThinConvTranspose2d


class Quantized(NamedTuple):
    """What the losses of Stage I need from one pass over the latents."""

    z_e: Tensor  # (B, d_z, h, w), encoder output
    z_q: Tensor  # (B, d_z, h, w), nearest codes
    z_st: Tensor  # (B, d_z, h, w), z_q with the gradient of z_e
    k: Tensor  # (B, h, w), code indices


def _down(c_in: int, c_out: int) -> nn.Sequential:
    conv = ThinConv2d if c_in == 1 else nn.Conv2d
    return nn.Sequential(conv(c_in, c_out, 4, stride=2, padding=1, bias=False), NormRelu(c_out))


def _up(c_in: int, c_out: int) -> nn.Sequential:
    return nn.Sequential(nn.ConvTranspose2d(c_in, c_out, 4, stride=2, padding=1, bias=False), NormRelu(c_out))


def _reach(layer: nn.Conv2d | nn.ConvTranspose2d) -> Up:
    """Along one axis. A convolution that keeps the size is a transposed one with its kernel turned round."""
    (k, _), (s, _), p = layer.kernel_size, layer.stride, layer.padding[0]
    return (k, s, int(p)) if isinstance(layer, nn.ConvTranspose2d) else (k, 1, k - 1 - int(p))


class VQVAE(nn.Module):
    """Channels C → widths (one stride-2 block each) → d_z; the decoder mirrors it and ends in tanh, the images' own range."""

    def __init__(self, channels: int = 1, widths: tuple[int, ...] = (32, 64, 128), d_z: int = 64, K: int = 256) -> None:
        super().__init__()
        self.factor = 2 ** len(widths)
        down = [_down(a, b) for a, b in zip((channels, *widths[:-1]), widths, strict=True)]
        self.encoder = nn.Sequential(*down, Pointwise(widths[-1], d_z))
        up = [_up(b, a) for a, b in zip(widths[-2::-1], widths[:0:-1], strict=True)]
        last = (ThinConvTranspose2d if channels == 1 else nn.ConvTranspose2d)(widths[0], channels, 4, stride=2, padding=1)
        self.decoder = nn.Sequential(Pointwise(d_z, widths[-1]), *up, last, nn.Tanh())
        self.codebook = nn.Parameter(torch.empty(K, d_z).uniform_(-1.0 / K, 1.0 / K))

    def encode(self, x: Tensor) -> Quantized:
        """Eqs. 1–3. Distances in float32 even under autocast: bf16 would pick wrong neighbours."""
        z_e = self.encoder(x).to(self.codebook.dtype)
        with torch.autocast(x.device.type, enabled=False):
            k = nearest(z_e, self.codebook)
            z_q = lookup(k, self.codebook)
        return Quantized(z_e, z_q, straight_through(z_e, z_q) if z_e.requires_grad else z_q, k)

    def fit_codebook(self, images: Iterable[Tensor]) -> None:
        """Algorithm 1, line 1: start the codes on outputs of the untrained encoder. Random codes collapse to a handful."""
        codes, generator = len(self.codebook), torch.Generator().manual_seed(0)
        self.encoder.train()  # batch statistics, as in the first step; running ones do not exist yet
        samples = [some_rows(vectors(self.encode(x).z_e), codes, generator) for x in images]
        self.encoder.eval()
        self.codebook.copy_(some_rows(torch.cat(samples), codes, generator))

    def deviation(self, images: Iterable[Tensor]) -> float:
        """The standard deviation of all numbers in all images' z_q."""
        n, total, squares = 0, 0.0, 0.0
        for x in images:
            z = self.encode(x).z_q.double()
            n, total, squares = n + z.numel(), total + float(z.sum()), squares + float(z.square().sum())
        return float(max(squares / n - (total / n) ** 2, 1e-12) ** 0.5)

    def margin(self) -> int:
        """Latents around a square that the decoder needs for its pixels."""
        layers = [m for m in self.decoder.modules() if isinstance(m, nn.Conv2d | nn.ConvTranspose2d)]
        return margin([_reach(layer) for layer in layers])

    def decode(self, z: Tensor) -> Tensor:
        """D_η: ``(B, d_z, h, w)`` → ``(B, C, H, W)`` in [-1, 1]."""
        x: Tensor = self.decoder(z)
        return x
