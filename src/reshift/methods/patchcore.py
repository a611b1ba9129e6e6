"""PatchCore: remember what patches of normal images look like to a pretrained network; a patch far from all of them is abnormal.

Roth, Pemula, Zepeda, Schölkopf, Brox, Gehler, "Towards Total Recall in Industrial Anomaly Detection", 2022. Nothing is trained.

As the paper has it: two middle layers of a frozen ImageNet network, averaged over 3×3 neighbours and joined on the finer grid; a
greedy k-centre coreset; the distance to the nearest remembered patch as map, upsampled and blurred; the largest patch distance,
re-weighted over b = 9 neighbours, as image score. Different:

- EfficientNet-Lite0, blocks 4 and 10 at 224 pixels (a 28×28 grid, 40 + 112 channels), instead of WideResNet-50: its weights come
  with a package and need no download. They are the same for everyone and not part of the bundle, which names them.
- No random projection before the coreset: 152 dimensions are few.
- A fixed number of remembered patches instead of a share, so that a bundle's shape does not depend on the data; taken from at
  most ``sample`` training patches, chosen at random by a fixed generator. The run's seed thus changes the held-out share only.
- At the border, neighbours outside the grid are left out of the average; the authors' program counts them as zeros.

Not in the paper: ``unit`` scales the vectors of both layers to length one, as LPIPS does, before anything is remembered.
Held-out normals with synthetic shifts speak for it: their pixel AP, mean over seven kinds of shift, rises from 0.246 to 0.372
on breast ultrasound, and is 0.399 and 0.371 on FLAIR, 0.502 and 0.501 on T1 (plain neighbours, no coreset).

Image score: ``reweighted`` as in the paper, ``max`` without the weight, ``top`` the mean of the highest pixels of the map.
Post-processing: the blur is part of the method; ``blur = 0`` switches it off.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from reshift.config import Frozen
from reshift.methods.detector import Prediction, Stage, batch_invariant
from reshift.methods.ops.filters import gaussian_blur
from reshift.nets.patches import DIMS, Sample, as_rows, feature_net, nearest, patch_features

PASS = 16  # images through the feature network at once while remembering


class PatchCoreSettings(Frozen):
    """What is remembered, and how distances become a map and a score."""

    features: Literal["efficientnet-lite0"] = "efficientnet-lite0"
    unit: bool = True  # both layers' vectors scaled to length one: contrast and the larger layer then count no more
    bank: int = Field(4096, ge=2)  # patches remembered
    sample: int = Field(200_000, ge=1)  # training patches the coreset is chosen from, at most
    blur: float = Field(2.29, ge=0.0)  # σ in pixels of a 128-pixel map; the paper's 4 at 224
    score: Literal["reweighted", "max", "top"] = "reweighted"
    neighbours: int = Field(9, ge=2)  # b
    top: float = Field(0.02, gt=0.0, le=1.0)  # share of the map's pixels that "top" averages

    @model_validator(mode="after")
    def _consistent(self) -> "PatchCoreSettings":
        if self.neighbours > self.bank:
            raise ValueError(f"neighbours {self.neighbours} exceeds bank {self.bank}")
        return self


class PatchCore(nn.Module):
    """The detector; its only state is the bank of patches."""

    Settings: ClassVar[type[Frozen]] = PatchCoreSettings
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}, "quick": {"model": {"bank": 1024, "sample": 50_000}}}
    bank: Tensor

    def __init__(self, settings: PatchCoreSettings, size: int, channels: int) -> None:
        super().__init__()
        if channels not in (1, 3):
            raise ValueError(f"ImageNet features take images of 1 or 3 channels, not {channels}")
        self.settings, self.size = settings, size
        feature_net(settings.features, "cpu")  # a missing package shows now
        self.register_buffer("bank", torch.zeros(settings.bank, DIMS[settings.features]))

    def stages(self) -> Sequence[Stage]:
        """One look at the training images, and no step."""
        s = self.settings
        decided_by = {"what": "coreset of patches", "features": s.features, "unit": s.unit, "bank": s.bank, "sample": s.sample}
        return (Stage("memory", 0, (), begin=self._remember, decided_by=decided_by),)

    def _remember(self, images: Iterable[Tensor]) -> None:
        """Fill the bank from a fair sample of all training patches."""
        sample = Sample(self.settings.sample, self.bank.shape[1], self.bank.device, torch.Generator().manual_seed(0))
        for x in images:
            sample.add(torch.cat([as_rows(self._patches(part)) for part in x.split(PASS)]))
        self.bank.copy_(sample.coreset(len(self.bank)))

    def _patches(self, x: Tensor) -> Tensor:
        """``(B, C, H, W)`` → ``(B, d, h, w)``, by the network on the bank's own device."""
        return patch_features(feature_net(self.settings.features, str(self.bank.device)).maps(x), unit=self.settings.unit)

    def predict(self, x: Tensor) -> Prediction:
        """The distance of every patch to the bank."""

        def one(images: Tensor) -> Prediction:
            patches = self._patches(images)  # (B, d, h, w)
            distance, index = nearest(as_rows(patches), self.bank)
            distance, index = distance.view(len(images), -1), index.view(len(images), -1)  # (B, h·w)
            heatmap = self._heatmap(distance.view(-1, *patches.shape[-2:]))
            return Prediction(self._score(patches, distance, index, heatmap), heatmap)

        return batch_invariant(one, x)

    def _heatmap(self, distance: Tensor) -> Tensor:
        """``(B, h, w)`` → ``(B, size, size)``."""
        heatmap = F.interpolate(distance[:, None], size=(self.size, self.size), mode="bilinear")
        return gaussian_blur(heatmap, self.settings.blur * self.size / 128).squeeze(1)

    def _score(self, patches: Tensor, distance: Tensor, index: Tensor, heatmap: Tensor) -> Tensor:
        if self.settings.score == "top":
            pixels = heatmap.flatten(1)
            return pixels.topk(max(1, round(self.settings.top * pixels.shape[1])), dim=1).values.mean(1)
        largest, worst = distance.max(1)  # (B,)
        if self.settings.score == "max":
            return largest
        each = torch.arange(len(patches), device=patches.device)
        return reweighted(patches.flatten(2)[each, :, worst], index[each, worst], self.bank, self.settings.neighbours)


def reweighted(patch: Tensor, index: Tensor, bank: Tensor, b: int) -> Tensor:
    """Equation 7 of the paper for ``patch (B, d)`` with nearest bank rows m* at ``index (B,)``.

    s = (1 - exp ‖p - m*‖ / Σ exp ‖p - m‖)·‖p - m*‖, the sum over the b rows nearest to m*, itself one of them: a patch near a
    row that is itself rare keeps more of its distance.
    """
    _, around = nearest(bank[index], bank, b)  # (B, b)
    distance = (patch - bank[index]).square().sum(1).sqrt()
    to_around = (patch[:, None] - bank[around]).square().sum(2).sqrt()
    return (1.0 - torch.exp(distance - to_around.logsumexp(1))) * distance
