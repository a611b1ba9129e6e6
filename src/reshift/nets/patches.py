"""Patch features of a frozen network, a coreset of them, and the distance to it: what PatchCore is made of."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK = 4096  # patches compared with the bank at once; bounds memory, not the result
SPARE = 8  # candidates beyond the wanted neighbours, so that rounding in the matrix product loses none of them
EXACT = "donot_use_mm_for_euclid_dist"


def patch_features(maps: Sequence[Tensor], *, unit: bool = False) -> Tensor:
    """The two deeper of a network's ``maps``, each averaged over 3×3 neighbours, joined on the finer grid: ``(B, d, h, w)``.

    At the border the average is over the neighbours there are. ``unit`` scales both parts of every vector to length one.
    """
    fine, coarse = (F.avg_pool2d(m, 3, 1, 1, count_include_pad=False) for m in maps[-2:])
    parts = [fine, F.interpolate(coarse, size=fine.shape[-2:], mode="bilinear")]
    return torch.cat([F.normalize(part, dim=1) for part in parts] if unit else parts, dim=1)


def as_rows(features: Tensor) -> Tensor:
    """``(B, d, h, w)`` → ``(B·h·w, d)``."""
    return features.permute(0, 2, 3, 1).flatten(0, 2)


class Sample:
    """A fair sample of at most ``limit`` rows of a stream: every row draws a random key, and the lowest keys stay."""

    def __init__(self, limit: int, dims: int, device: torch.device, generator: torch.Generator) -> None:
        self.limit, self.generator = limit, generator
        self.rows = torch.empty(0, dims, device=device)
        self.keys = torch.empty(0, dtype=torch.float64, device=device)

    def add(self, new: Tensor) -> None:
        """Take more rows, ``(n, dims)``."""
        drawn = torch.rand(len(new), generator=self.generator, dtype=torch.float64)
        self.rows, self.keys = torch.cat([self.rows, new]), torch.cat([self.keys, drawn.to(self.keys.device)])
        if len(self.rows) > self.limit:
            kept = self.keys.topk(self.limit, largest=False).indices.sort().values
            self.rows, self.keys = self.rows[kept], self.keys[kept]

    def coreset(self, count: int) -> Tensor:
        """``count`` of the rows that lie far apart."""
        return self.rows[greedy_coreset(self.rows, count)]


def greedy_coreset(rows: Tensor, count: int) -> Tensor:
    """Indices of ``count`` rows, each the farthest from those before it; the first is the farthest from the mean.

    With this rule (greedy k-centre) no row is more than twice as far from the chosen as the best choice would allow. If there
    are too few rows they are taken again, in the same order.
    """
    last = (rows - rows.mean(0)).square().sum(1).argmax().view(1)
    chosen, distance = [last], rows.new_full((len(rows),), torch.inf)
    for _ in range(min(count, len(rows)) - 1):  # indices stay tensors: on a GPU nothing waits
        to_last = torch.cdist(rows, rows.index_select(0, last), compute_mode=EXACT).squeeze(1)
        distance = torch.minimum(distance, to_last)
        last = distance.argmax().view(1)
        chosen.append(last)
    found = torch.cat(chosen)
    return found.repeat(-(-count // len(found)))[:count]


def nearest(rows: Tensor, bank: Tensor, k: int = 1, *, spare: int = SPARE) -> tuple[Tensor, Tensor]:
    """Distances to the ``k`` nearest rows of ``bank``, ascending, and their indices, both ``(n, k)``.

    A matrix product finds candidates fast, but loses small distances in the rounding of large norms; the candidates are
    therefore measured again, exactly. Vectors of length one need no ``spare`` candidates: rounding moves their squared distance
    by less than 1e-6.
    """
    parts = [rows] if torch.compiler.is_compiling() else rows.split(CHUNK)  # an exported graph does not know how many there are
    found = [_nearest(part, bank, k, k + spare) for part in parts]
    return torch.cat([d for d, _ in found]), torch.cat([i for _, i in found])


def _nearest(rows: Tensor, bank: Tensor, k: int, count: int) -> tuple[Tensor, Tensor]:
    centre = bank.mean(0)
    centred = bank - centre
    squared = centred.square().sum(1) - 2.0 * (rows - centre) @ centred.T  # short of a constant per row
    one = count == 1  # much faster than the general case
    candidates = squared.argmin(1, keepdim=True) if one else squared.topk(min(count, len(bank)), largest=False).indices
    exact = torch.cdist(rows[:, None], bank[candidates], compute_mode=EXACT).squeeze(1)
    distance, order = exact.sort(dim=1, stable=True)
    return distance[:, :k], candidates.gather(1, order[:, :k])
