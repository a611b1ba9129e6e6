"""The convolutional autoencoder of MedIAnomaly's AE and VAE: four halvings, two linear layers to a short code, and back."""

from itertools import pairwise

from torch import Tensor, nn

from reshift.nets.norm import BatchNorm

FACTOR = 16  # four halvings


class ConvAE(nn.Module):
    """``(B, C, size, size)`` → code ``(B, heads · latent)``; code ``(B, latent)`` → image, with no output activation.

    ``heads`` is 2 where the encoder gives a mean and a log-variance. The linear layers grow with the image; ``hidden`` does not.
    """

    def __init__(self, channels: int, size: int, width: int, hidden: int, latent: int, heads: int = 1) -> None:
        super().__init__()
        if size % FACTOR:
            raise ValueError(f"data.size {size} is not a multiple of {FACTOR}, which four halvings need")
        grid = size // FACTOR
        widths = (channels, width, 2 * width, 4 * width, 4 * width)
        flat = widths[-1] * grid * grid
        self.encoder = nn.Sequential(
            *(layer for a, b in pairwise(widths) for layer in _down(a, b)),
            nn.Flatten(), *_dense(flat, hidden), nn.Linear(hidden, heads * latent),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            *_dense(latent, hidden), nn.Linear(hidden, flat), nn.Unflatten(1, (widths[-1], grid, grid)),
            *(layer for a, b in pairwise(widths[:0:-1]) for layer in _up(a, b)),
            nn.ConvTranspose2d(width, channels, 4, stride=2, padding=1, bias=False),
        )  # fmt: skip

    def encode(self, x: Tensor) -> Tensor:
        """``(B, C, size, size)`` → ``(B, heads · latent)``."""
        code: Tensor = self.encoder(x)
        return code

    def decode(self, z: Tensor) -> Tensor:
        """``(B, latent)`` → ``(B, C, size, size)``."""
        image: Tensor = self.decoder(z)
        return image


def _down(c_in: int, c_out: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(c_in, c_out, 4, stride=2, padding=1, bias=False), BatchNorm(c_out), nn.ReLU()


def _up(c_in: int, c_out: int) -> tuple[nn.Module, ...]:
    return nn.ConvTranspose2d(c_in, c_out, 4, stride=2, padding=1, bias=False), BatchNorm(c_out), nn.ReLU()


def _dense(n_in: int, n_out: int) -> tuple[nn.Module, ...]:
    """Linear, BatchNorm, ReLU; ours normalises maps, so the features pose as maps of one pixel."""
    return nn.Linear(n_in, n_out), nn.Unflatten(1, (n_out, 1, 1)), BatchNorm(n_out), nn.ReLU(), nn.Flatten()
