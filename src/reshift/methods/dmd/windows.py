"""Decode only what is looked at: the latent windows that decide the masked pixels.

Eqs. 13 and 14 look at a restoration only where its mask is. For those pixels a decoder of (transposed) convolutions needs the
masked latents and a margin around them; the rest of the image need not be decoded at all.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from reshift.core.anomaly import upsample_mask
from reshift.core.masks import square_mask

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
    """Square masks on a grid of ``length``² latents, and around each the window to decode; a latent is ``factor``² pixels.

    What lies where is worked out once, as tables of indices on ``device``: a few launches whatever the number of masks, no
    atomics, and sums in the order of the masks.
    """

    def __init__(
        self, corners: list[tuple[int, int]], side: int, margin: int, length: int, factor: int, device: torch.device | str = "cpu"
    ) -> None:
        self.corners, self.side = corners, side  # of the masks, in latents
        self.margin, self.length, self.factor = margin, length, factor
        self.device = torch.device(device)
        self.size = min(side + 2 * margin, length)  # of a window
        # A window never leaves the grid: where it ends with it, the decoder pads as in the whole image.
        self.starts = [tuple(min(max(first - margin, 0), length - self.size) for first in corner) for corner in corners]
        self._parts: dict[tuple[int, int], Windows] = {}
        self._tables: dict[str, Tensor] = {}

    def some(self, which: slice) -> "Windows":
        """Only these masks; the same object every time, so that its tables are kept."""
        first, last, _ = which.indices(len(self.corners))
        if (first, last) not in self._parts:
            few = self.corners[first:last]
            self._parts[first, last] = Windows(few, self.side, self.margin, self.length, self.factor, self.device)
        return self._parts[first, last]

    def latents(self, z: Tensor) -> Tensor:
        """Window k of z's k-th grid, or of its only one: ``(B, k or 1, C, h, w)`` → ``(B, k, C, l, l)``."""
        rows, k, n = z.permute(0, 1, 3, 4, 2), len(self.corners), self.size
        if rows.is_contiguous():
            return self._gather(rows.flatten(1, 3), self._table("shared" if z.shape[1] == 1 else "own"), n)
        grids = z.expand(-1, k, -1, -1, -1).unbind(1)  # channels first, as on the CPU, where slices are twice as fast
        return torch.stack([grid[..., a : a + n, b : b + n] for grid, (a, b) in zip(grids, self.starts, strict=True)], 1)

    def pixels(self, x: Tensor) -> Tensor:
        """The pixels of every window, ``(B, C, H, W)`` → ``(B, k, C, l·factor, l·factor)``."""
        return self._gather(x.permute(0, 2, 3, 1).flatten(1, 2), self._table("seen"), self.factor * self.size)

    def add(self, total: Tensor, values: Tensor) -> None:
        """Add values of windows, ``(B, k, …)``, to ``total (B, …, H, W)`` where the masks are: in place, mask by mask."""
        flat = F.pad(values.movedim(1, -3).flatten(-3), (0, 1))
        sums = total.view(*total.shape[:-2], -1)
        for slot in self._table("slots"):
            sums.add_(flat.index_select(-1, slot))

    def _gather(self, rows: Tensor, table: Tensor, side: int) -> Tensor:
        """``(B, positions, C)`` → the windows, ``(B, k, C, side, side)``, channels last in memory."""
        found = rows.index_select(1, table).view(len(rows), len(self.corners), side, side, -1)
        return found.permute(0, 1, 4, 2, 3)

    @property
    def masks(self) -> Tensor:
        """``(k, 1, length, length)`` of 0. and 1."""
        return self._table("masks")

    @property
    def coverage(self) -> Tensor:
        """D_pix: how many masks cover each pixel, ``(1, H, W)``."""
        return self._table("coverage")

    def _table(self, name: str) -> Tensor:
        """Made below when it is first needed."""
        if name not in self._tables:
            with torch.inference_mode(False):  # or it would be of no use where gradients are taken
                made: Tensor = getattr(self, f"_make_{name}")()
                self._tables[name] = made.to(self.device)
        return self._tables[name]

    def _make_masks(self) -> Tensor:
        first, second = torch.tensor(self.corners).unbind(1)
        return square_mask(torch.full_like(first, self.side), first, second, self.length, self.length)

    def _make_coverage(self) -> Tensor:
        side = self.factor * self.length
        return upsample_mask(self.masks.sum(0, keepdim=True), side, side)

    def _make_shared(self) -> Tensor:
        """Where each latent of each window lies in the grid, ``(k·l²)``."""
        return _places(torch.tensor(self.starts), self.size, self.length).flatten()

    def _make_own(self) -> Tensor:
        """The same where every mask has a grid of its own."""
        return _numbered(_places(torch.tensor(self.starts), self.size, self.length), self.length**2).flatten()

    def _make_seen(self) -> Tensor:
        """Where each pixel of each window lies in the image, ``(k·l²·factor²)``."""
        f = self.factor
        return _places(f * torch.tensor(self.starts), f * self.size, f * self.length).flatten()

    def _make_slots(self) -> Tensor:
        """For every pixel of the image the windows' pixels to add, in the order of the masks; past the last one, a zero."""
        f, corners, starts = self.factor, torch.tensor(self.corners), torch.tensor(self.starts)
        side, window, image = f * self.side, f * self.size, f * self.length
        target = _places(f * corners, side, image).flatten()
        source = _numbered(_places(f * (corners - starts), side, window), window**2).flatten()
        order = target.argsort(stable=True)  # by pixel, and for each by mask
        target, source = target[order], source[order]
        number = torch.bincount(target, minlength=image**2)
        nth = torch.arange(len(target)) - (number.cumsum(0) - number)[target]
        table = torch.full((int(number.max()), image**2), len(self.corners) * window**2)  # where ``add`` puts its zero
        table[nth, target] = source
        return table


def _places(corners: Tensor, side: int, width: int) -> Tensor:
    """Positions, row by row, of squares in a grid ``width`` wide; ``(k, side²)``."""
    span = torch.arange(side)
    rows, columns = corners[:, 0, None, None] + span[:, None], corners[:, 1, None, None] + span
    return (rows * width + columns).flatten(1)


def _numbered(places: Tensor, size: int) -> Tensor:
    """Positions in the first, second, … of as many grids of ``size`` positions."""
    return places + size * torch.arange(len(places))[:, None]
