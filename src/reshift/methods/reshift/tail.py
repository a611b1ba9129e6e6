"""Witness: how rare a pixel's brightness, relative to the organ's median, is among normals. Needs a declared polarity."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from reshift.methods.reshift.shifts import anatomy
from reshift.methods.reshift.witness import Seen, Witness

LEVELS = 8192  # quantiles that describe the normals
SAMPLE = 256  # pixels taken of each normal: fair for images of any size, and a few megabytes for any number of them
DARK = 0.05  # of [0, 1]; darker pixels do not count in the median


class Tail(Witness):
    """-log10 of the share of normal pixels that are at least as bright (or dark), smoothed over 3×3 pixels.

    One table for all folds: of thousands of quantiles, no single subject moves one.
    """

    kind = "tail"
    levels: Tensor

    def __init__(self, *, dark: bool) -> None:
        super().__init__()
        self.sign = -1.0 if dark else 1.0
        self.register_buffer("levels", torch.zeros(LEVELS))

    def fill(self, batches: Iterable[Tensor]) -> None:
        """Remember the quantiles of the normals' relative brightness."""
        generator, found = torch.Generator().manual_seed(0), list[Tensor]()
        for x in batches:
            for values, inside in zip(self._relative(x), anatomy(x), strict=True):
                pixels = values[inside > 0]
                chosen = torch.randint(max(1, len(pixels)), (SAMPLE,), generator=generator).to(x.device)
                found.append(pixels[chosen] if len(pixels) else pixels)
        known = torch.cat(found).sort().values
        place = torch.linspace(0, len(known) - 1, LEVELS, dtype=torch.float64).round().long().to(known.device)
        self.levels.copy_(known[place])

    def forward(self, seen: Seen, without: int | None = None) -> Tensor:  # noqa: ARG002
        """The rarity of each pixel's brightness."""
        values = self._relative(seen.x)
        at_least = LEVELS - torch.searchsorted(self.levels, values.contiguous()).to(values.dtype)
        rarity = -torch.log10((at_least + 1.0) / (LEVELS + 1.0))
        return F.avg_pool2d(F.pad(rarity, (1, 1, 1, 1)), 3, 1)

    def _relative(self, x: Tensor) -> Tensor:
        """Grey over the median of the pixels that are not dark, ``(B, 1, H, W)``; negative where dark is sought."""
        unit = (x.float().mean(1, keepdim=True) + 1.0) / 2.0
        seen = torch.where(unit > DARK, unit, torch.nan).flatten(1)
        median = seen.nanmedian(1).values.nan_to_num(1.0).clamp(min=DARK)
        return self.sign * unit / median.view(-1, 1, 1, 1)
