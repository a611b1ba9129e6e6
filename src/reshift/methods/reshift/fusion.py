"""From witnesses to one heat-map and one score: each is measured in its own spread over unseen normals, then averaged.

Every kind of witness has its weight in the heat-map, shared by the witnesses of that kind. The image score is half how high the
fused map rises and half how high the kinds do on average: one that is sure is heard even where others see nothing.
The witness "overall" has no place in the map; where it is heard, it has a share of the score beside these two.

A slice from elsewhere or of another scanner is a little unlike normals everywhere, and a lesion is not. So a map rises by what
its highest pixels have more than its mean, and the heat-map itself is freed of half its mean (``centring``).
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MIN_VARIANCE = 1e-12
OVERALL = "overall"
KEPT = 128  # images whose maps are kept while normals are measured: how high the fused map rises shows only at the end
KEPT_BYTES = 2**30  # of these maps together: large images are fewer, at least MIN_KEPT
MIN_KEPT = 16


def top_mean(heatmap: Tensor, share: float) -> Tensor:
    """The mean of the highest ``share`` of the pixels of each map ``(B, …)``: ``(B,)``."""
    pixels = heatmap.flatten(1)
    return pixels.topk(max(1, round(share * pixels.shape[1])), dim=1).values.mean(1)


def inner_mean(heatmap: Tensor) -> Tensor:
    """The mean of each map ``(B, …)`` inside the anatomy, where it is above 0: ``(B,)``."""
    pixels = heatmap.flatten(1)
    return pixels.sum(1) / (pixels > 0).sum(1).clamp(min=1)


class Reservoir:
    """A fair sample of ``size`` images of a stream; the same for the same stream."""

    def __init__(self, size: int) -> None:
        self.size, self.count, self.generator = size, 0, torch.Generator().manual_seed(0)
        self.images = list[Tensor]()

    def add(self, images: Tensor) -> None:
        """Take ``(B, …)``."""
        for image in images:
            place = self.count if self.count < self.size else int(torch.randint(self.count + 1, (), generator=self.generator))
            self.count += 1
            if place < len(self.images):
                self.images[place] = image
            elif place < self.size:
                self.images.append(image)


def kept_images(image: Tensor) -> int:
    """How many images of maps ``(n, H, W)`` are kept."""
    return min(KEPT, max(MIN_KEPT, KEPT_BYTES // (4 * image.numel())))


def _shares(kinds: Sequence[str], heard: Sequence[bool], weights: Mapping[str, float]) -> Tensor:
    """The share of each witness: the weight of its kind, divided among those of it that are heard; none for "overall"."""
    counted = [kind for kind, counts in zip(kinds, heard, strict=True) if counts and kind != OVERALL]
    shares = [
        weights.get(kind, 1.0) / counted.count(kind) if counts and kind != OVERALL else 0.0
        for kind, counts in zip(kinds, heard, strict=True)
    ]
    return torch.tensor(shares) / sum(shares)


class Fusion(nn.Module):
    """What is known of the witnesses over unseen normals: mean and covariance of their pixels, mean and spread of their tops."""

    weights: Tensor
    score_weights: Tensor
    centre: Tensor
    covariance: Tensor
    freed: Tensor
    top_centre: Tensor
    top_spread: Tensor

    def __init__(
        self, kinds: Sequence[str], heard: Sequence[bool], weights: Mapping[str, float], in_score: Mapping[str, float],
        *, top: float, map_share: float, overall_share: float, centring: float,
    ) -> None:  # fmt: skip
        """The kind of each witness, whether it is ``heard``, and the weights of kinds in the heat-map and in the score.

        The fused map and the witness "overall" have their shares of the score. ``centring`` is the share of its mean that the
        fused map is freed of; 0: tops are not freed of theirs, either.
        """
        super().__init__()
        n, self.top, self.centring = len(kinds), top, centring
        freed = [float(centring > 0 and kind != OVERALL) for kind in (*kinds, "fused")]  # "overall" is the same everywhere
        self.register_buffer("freed", torch.tensor(freed), persistent=False)
        self.register_buffer("weights", _shares(kinds, heard, weights), persistent=False)
        rest = 1.0 - overall_share if (OVERALL, True) in zip(kinds, heard, strict=True) else 1.0
        score_weights = torch.cat([_shares(kinds, heard, in_score) * (1.0 - map_share), torch.tensor([map_share])]) * rest
        if rest < 1.0:
            score_weights[kinds.index(OVERALL)] = overall_share
        self.register_buffer("score_weights", score_weights, persistent=False)
        self.register_buffer("centre", torch.zeros(n))
        self.register_buffer("covariance", torch.eye(n))
        self.register_buffer("top_centre", torch.zeros(n + 1))  # of the witnesses, and of the fused map
        self.register_buffer("top_spread", torch.ones(n + 1))

    def fit(self, batches: Iterable[tuple[Sequence[Tensor], Tensor]]) -> None:
        """Measure normals: ``(maps, inside)`` of batch after batch. Pixels outside the anatomy do not count."""
        n, kept = len(self.weights), Reservoir(KEPT)
        count, total, products = 0.0, torch.zeros(n, dtype=torch.float64), torch.zeros(n, n, dtype=torch.float64)
        for maps, inside in batches:
            rows = torch.cat(list(maps), 1).permute(0, 2, 3, 1)[inside[:, 0] > 0].double()  # (pixels inside, n)
            count += len(rows)
            total += rows.sum(0).cpu()
            products += (rows.T @ rows).cpu()
            images = torch.cat([*maps, inside], 1).cpu()
            kept.size = kept_images(images[0])
            kept.add(images)
        mean = total / max(1.0, count)
        self.centre.copy_(mean)
        self.covariance.copy_(products / max(1.0, count) - mean[:, None] * mean)
        tops = torch.cat([self._tops_of(image.to(self.centre)) for image in kept.images])
        self.top_centre.copy_(tops.mean(0))
        self.top_spread.copy_(tops.var(0, correction=0).clamp(min=MIN_VARIANCE).sqrt())

    def forward(self, maps: Sequence[Tensor], inside: Tensor) -> tuple[Tensor, Tensor]:
        """Maps ``(B, 1, H, W)`` of all witnesses → score ``(B,)`` and heat-map ``(B, H, W)``, 0 outside the anatomy."""
        standard = self._standard(maps)
        heatmap = self._heatmap(standard, inside)
        tops = self._tops(standard, heatmap, inside)
        return ((tops - self.top_centre) / self.top_spread * self.score_weights).sum(1), heatmap[:, 0]

    def rescore(self, score: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """The score when heat-map ``before`` becomes ``after``: what the witnesses said apart stays, the top is another."""
        higher = self._rise(after, self.freed[-1]) - self._rise(before, self.freed[-1])
        return score + self.score_weights[-1] * higher / self.top_spread[-1]

    def _standard(self, maps: Sequence[Tensor]) -> Tensor:
        """The maps in units of their spread over normals, ``(B, n, H, W)``."""
        spread = self.covariance.diagonal().clamp(min=MIN_VARIANCE).sqrt()
        return (torch.cat(list(maps), 1) - self.centre.view(-1, 1, 1)) / spread.view(-1, 1, 1)

    def _heatmap(self, standard: Tensor, inside: Tensor) -> Tensor:
        """The weighted mean in units of its own spread, freed of a share of each image's mean, ``(B, 1, H, W)``."""
        shares = self.weights / self.covariance.diagonal().clamp(min=MIN_VARIANCE).sqrt()
        # Not by a matrix product, which a GPU would round to bf16.
        spread = (shares[:, None] * self.covariance * shares).sum().clamp(min=MIN_VARIANCE).sqrt()
        fused = (standard * self.weights.view(-1, 1, 1)).sum(1, keepdim=True) / spread
        if self.centring:
            pixels = inside.sum((1, 2, 3), keepdim=True).clamp(min=1.0)
            fused = fused - self.centring * (fused * inside).sum((1, 2, 3), keepdim=True) / pixels
        return F.softplus(fused) * inside

    def _tops(self, standard: Tensor, heatmap: Tensor, inside: Tensor) -> Tensor:
        """How high each witness and the fused map rise in each image, ``(B, n + 1)``."""
        alone = F.softplus(standard) * inside
        return torch.stack([self._rise(m, freed) for m, freed in zip((*alone.unbind(1), heatmap), self.freed, strict=True)], 1)

    def _rise(self, heatmap: Tensor, freed: Tensor) -> Tensor:
        """How high the highest pixels of each map rise above its mean, if it is to be ``freed`` of that, or above 0."""
        return top_mean(heatmap, self.top) - freed * inner_mean(heatmap)

    def _tops_of(self, kept: Tensor) -> Tensor:
        """The tops of one kept image ``(n + 1, H, W)``: the maps of the witnesses, and where the anatomy is."""
        inside = kept[None, -1:]
        standard = self._standard(kept[None, :-1].split(1, 1))
        return self._tops(standard, self._heatmap(standard, inside), inside)
