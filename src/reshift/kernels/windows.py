"""Decode only the pixels that masks touch. Replaces ``nets.vqvae.Decoder.decode_masked``, on CPU and GPU.

Eqs. 13 and 14 look at a restoration only inside its mask. For those pixels a decoder of (transposed) convolutions
needs the masked latents and a margin around them: of the paper's 16×16 latents 6×6.
"""

import torch
from torch import Tensor, nn

from reshift.kernels.available import Twin
from reshift.nets.vqvae import Decoder

# Kernel k, stride s, padding p of a transposed convolution along one axis: input i adds to s·i - p … s·i - p + k - 1.
Reach = tuple[int, int, int]


class WindowedDecoder(Twin, Decoder):
    """Decodes a window around each mask; the pixels outside the windows are 0."""

    def decode_masked(self, z: Tensor, M: Tensor, side: int) -> Tensor:
        """``z (B, k, d_z, h, w)``, squares of that side ``M (k, 1, h, w)`` → ``(B, k, C, H, W)``."""
        (b, k, d_z, h, w), layers = z.shape, reaches(self)
        size = side + 2 * margin(layers)  # of a window, in latents
        if size >= min(h, w):
            return super().decode_masked(z, M, side)
        # A window never leaves the grid: where it ends with the grid, the decoder pads as it does in the whole image.
        rows = (M.amax((1, 3)).argmax(1) - margin(layers)).clamp(0, h - size)  # (k,)
        columns = (M.amax((1, 2)).argmax(1) - margin(layers)).clamp(0, w - size)
        latents = z.permute(0, 1, 3, 4, 2).flatten(2, 3)  # (B, k, h·w, d_z)
        windows = torch.take_along_dim(latents, _positions(rows, columns, size, w)[None, :, :, None], 2)
        x: Tensor = self(windows.view(b * k, size, size, d_z).permute(0, 3, 1, 2))  # (B·k, C, f·size, f·size)
        factor = x.shape[-1] // size
        where = _positions(factor * rows, factor * columns, factor * size, factor * w)
        whole = x.new_zeros(b, k, x.shape[1], factor * h * factor * w)
        pixels = x.reshape(b, k, x.shape[1], -1)
        whole = whole.scatter(3, where[None, :, None].expand_as(pixels), pixels)
        return whole.view(b, k, -1, factor * h, factor * w)


def reaches(decoder: nn.Module) -> list[Reach]:
    """The layers along one axis. A convolution that keeps the size is a transposed one with its kernel reversed."""
    found = list[Reach]()
    for layer in decoder.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            (k, _), (s, _), p = layer.kernel_size, layer.stride, int(layer.padding[0])
            found.append((k, s, p) if isinstance(layer, nn.ConvTranspose2d) else (k, 1, k - 1 - p))
    return found


def margin(layers: list[Reach]) -> int:
    """Latents on each side of a square that its pixels depend on; ``layers`` from the latents to the image."""
    first, last = 0, 0
    for _, s, _ in layers:
        last = s * (last + 1) - 1  # the pixels of latent 0
    for k, s, p in reversed(layers):
        first, last = -((k - 1 - p - first) // s), (last + p) // s  # what those depend on, one layer further in
    return max(-first, last)


def _positions(rows: Tensor, columns: Tensor, side: int, width: int) -> Tensor:
    """Positions, row by row, of squares in a grid ``width`` wide; corners ``(k,)`` → ``(k, side²)``."""
    span = torch.arange(side, device=rows.device)
    return ((rows[:, None] + span)[:, :, None] * width + (columns[:, None] + span)[:, None, :]).flatten(1)
