"""Decode only what is looked at: the latent windows that decide the masked pixels.

Eqs. 13 and 14 look at a restoration only where its mask is. For those pixels a decoder of (transposed) convolutions needs the
masked latents and a margin around them; the rest of the image need not be decoded at all.
"""

import torch
from torch import Tensor

Up = tuple[int, int, int]  # kernel k, stride s, padding p of a transposed convolution: input i adds to s·i - p … s·i - p + k - 1


def margin(layers: list[Up]) -> int:
    """Latents on each side of a square that its pixels depend on; layers from the latents to the image."""
    first, last = 0, 0
    for _, s, _ in layers:
        last = s * (last + 1) - 1  # the pixels of latent 0
    for k, s, p in reversed(layers):
        first, last = -((k - 1 - p - first) // s), (last + p) // s  # what those depend on, one layer further in
    return max(-first, last)


class Windows:
    """Square masks on a grid of ``length``² latents, and around each the window to decode; a latent is ``factor``² pixels."""

    def __init__(self, corners: list[tuple[int, int]], side: int, margin: int, length: int, factor: int) -> None:
        self.corners, self.side = corners, side  # of the masks, in latents
        self.margin, self.length, self.factor = margin, length, factor

    def some(self, which: slice) -> "Windows":
        """Only these masks."""
        return Windows(self.corners[which], self.side, self.margin, self.length, self.factor)

    def latents(self, z: Tensor) -> Tensor:
        """Window k of z's k-th grid, ``(B, k, C, h, w)`` → ``(B, k, C, l, l)``."""
        parts = zip(z.unbind(1), self.corners, strict=True)
        return torch.stack([part[..., self._window(a), self._window(b)] for part, (a, b) in parts], 1)

    def pixels(self, x: Tensor) -> Tensor:
        """The pixels of every window, ``(B, C, H, W)`` → ``(B, k, C, l·factor, l·factor)``."""
        f = self.factor
        return torch.stack([x[..., _times(self._window(a), f), _times(self._window(b), f)] for a, b in self.corners], 1)

    def add(self, total: Tensor, values: Tensor) -> None:
        """Add values of windows, ``(B, k, …)``, to ``total (B, …, H, W)`` where the masks are: in place, mask by mask."""
        f = self.factor
        for value, (a, b) in zip(values.unbind(1), self.corners, strict=True):
            masked = value[..., _times(self._inside(a), f), _times(self._inside(b), f)]
            total[..., _times(slice(a, a + self.side), f), _times(slice(b, b + self.side), f)].add_(masked)

    def _window(self, start: int) -> slice:
        """Along one axis. A window never leaves the grid: where it ends with it, the decoder pads as in the whole image."""
        side = min(self.side + 2 * self.margin, self.length)
        first = min(max(start - self.margin, 0), self.length - side)
        return slice(first, first + side)

    def _inside(self, start: int) -> slice:
        """Where the mask lies in its window."""
        first = start - self._window(start).start
        return slice(first, first + self.side)


def _times(span: slice, factor: int) -> slice:
    return slice(span.start * factor, span.stop * factor)
