"""PatchCore: remember patch features of normal images; a patch far from all remembered patches is abnormal.

Roth, Pemula, Zepeda, Schölkopf, Brox, Gehler, "Towards Total Recall in Industrial Anomaly Detection", 2022. Nothing is
trained.

Faithful: two middle layers of a frozen ImageNet network, averaged over 3×3 neighbours and joined on the finer grid; a
greedy k-centre coreset; the distance to the nearest remembered patch as heat-map, upsampled and blurred; the largest
patch distance, re-weighted over b = 9 neighbours, as image score. Different:

- EfficientNet-Lite0, blocks 4 and 10 at 224 pixels (a 28×28 grid, 40 + 112 channels), instead of WideResNet-50: its
  weights come with a package and need no download. ``features`` takes another network of 'reshift weights list', or a
  file of its weights.
- No random projection before the coreset: there are only 152 dimensions (768 with DINOv2).
- A fixed number of remembered patches instead of a share, so that a bundle's shape does not depend on the data; taken
  from at most ``sample`` training patches, chosen at random by a fixed generator. The run's seed changes the held-out
  share only.
- At the border, neighbours outside the grid are left out of the average; the authors' code counts them as zeros.

Not in the paper: ``unit`` scales the vectors of both layers to length one, as LPIPS does, before they are remembered.
It was chosen by held-out normals with synthetic shifts: pixel AP, mean over seven kinds of shift, rises from 0.246 to
0.372 on breast ultrasound and changes from 0.399 to 0.371 on FLAIR and from 0.502 to 0.501 on T1 (plain neighbours, no
coreset).

Image score: ``reweighted`` as in the paper, ``max`` without the weight, ``top`` the mean of the highest pixels of the
heat-map. Post-processing: the blur is part of the method; ``blur = 0`` turns it off.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from reshift.config import Frozen
from reshift.methods.detector import Detector, Prediction, Profiles, Stage
from reshift.methods.ops.filters import gaussian_blur
from reshift.nets.features import FeatureNet, feature_net
from reshift.nets.patches import Sample, as_rows, nearest, patch_features

CHUNK = 16  # images per pass of the feature network while the bank is filled


class PatchCoreSettings(Frozen):
    """What is remembered, and how distances become a heat-map and a score."""

    features: str = Field("efficientnet-lite0", max_length=4096)  # a name of 'reshift weights list', or a .safetensors file
    # Pixels, of the feature network's input; 0: data.size, at least the network's own
    side: int = Field(0, ge=0, le=1024)
    unit: bool = True  # scale the vectors of both layers to length one: contrast then has no influence, and both count the same
    bank: int = Field(4096, ge=2, le=1_000_000)  # patches remembered
    sample: int = Field(200_000, ge=1, le=10_000_000)  # training patches the coreset is chosen from, at most
    blur: float = Field(2.29, ge=0.0, le=100.0)  # σ in pixels of a 128-pixel map; the paper's 4 at 224
    score: Literal["reweighted", "max", "top"] = "reweighted"
    neighbours: int = Field(9, ge=2, le=1024)  # b
    top: float = Field(0.02, gt=0.0, le=1.0)  # share of the pixels that "top" averages

    @model_validator(mode="after")
    def _consistent(self) -> "PatchCoreSettings":
        if self.neighbours > self.bank:
            raise ValueError(f"neighbours {self.neighbours} exceeds bank {self.bank}")
        return self


class PatchCore(Detector):
    """The detector; its only state is the bank of patches."""

    Settings = PatchCoreSettings
    profiles: ClassVar[Profiles] = {"paper": {}, "quick": {"model": {"bank": 1024, "sample": 50_000}}}
    bank: Tensor

    def __init__(self, settings: PatchCoreSettings, size: int, channels: int) -> None:
        super().__init__()
        if channels not in (1, 3):
            raise ValueError(f"ImageNet features take images of 1 or 3 channels, not {channels}")
        self.settings, self.size = settings, size
        self.feature_names = (settings.features,)
        net = feature_net(settings.features, "cpu")  # missing weights show now, not after reading the images
        self.side = settings.side or net.side_for(size)
        net.check_side(self.side)
        # A share of a patch: where features are finer than the network's own, because the image is large, the blur is, too.
        self.blur = settings.blur * size / 128 * (1.0 if settings.side else net.side / self.side)
        self.register_buffer("bank", torch.zeros(settings.bank, sum(net.channels[-2:])))

    def stages(self) -> Sequence[Stage]:
        """One pass over the training images, and no step."""
        s = self.settings
        decided_by = s.model_dump(include={"side", "unit", "bank", "sample"})
        decided_by |= {"what": "coreset of patches", "features": self._net().sha256}
        return (Stage("memory", 0, (), begin=self._fill_bank, decided_by=decided_by),)

    def _fill_bank(self, images: Iterable[Tensor]) -> None:
        """Fill the bank with a coreset of a random sample of all training patches."""
        sample = Sample(self.settings.sample, self.bank.shape[1], self.bank.device, torch.Generator().manual_seed(0))
        for x in images:
            sample.add(torch.cat([as_rows(self._patches(part)) for part in x.split(CHUNK)]))
        self.bank.copy_(sample.coreset(len(self.bank)))

    def _net(self) -> FeatureNet:
        return feature_net(self.settings.features, str(self.bank.device))

    def _patches(self, x: Tensor) -> Tensor:
        """``(B, C, H, W)`` → ``(B, d, h, w)``, by the network on the bank's device."""
        return patch_features(self._net().maps(x, self.side), unit=self.settings.unit)

    def forward(self, x: Tensor) -> Prediction:
        """The distance of every patch to the bank."""
        patches = self._patches(x)  # (B, d, h, w)
        distance, index = nearest(as_rows(patches), self.bank)
        distance, index = distance.view(x.shape[0], -1), index.view(x.shape[0], -1)  # (B, h·w)
        heatmap = self._heatmap(distance.view(-1, *patches.shape[-2:]))
        return Prediction(self._score(patches, distance, index, heatmap), heatmap)

    def _heatmap(self, distance: Tensor) -> Tensor:
        """``(B, h, w)`` → ``(B, size, size)``."""
        heatmap = F.interpolate(distance[:, None], size=(self.size, self.size), mode="bilinear")
        return gaussian_blur(heatmap, self.blur).squeeze(1)

    def _score(self, patches: Tensor, distance: Tensor, index: Tensor, heatmap: Tensor) -> Tensor:
        if self.settings.score == "top":
            pixels = heatmap.flatten(1)
            return pixels.topk(max(1, round(self.settings.top * pixels.shape[1])), dim=1).values.mean(1)
        largest, worst = distance.max(1)  # (B,)
        if self.settings.score == "max":
            return largest
        each = torch.arange(patches.shape[0], device=patches.device)
        return reweighted(patches.flatten(2)[each, :, worst], index[each, worst], self.bank, self.settings.neighbours)


def reweighted(patch: Tensor, index: Tensor, bank: Tensor, b: int) -> Tensor:
    """Equation 7 of the paper for ``patch (B, d)`` with nearest bank rows m* at ``index (B,)``.

    s = (1 - exp ‖p - m*‖ / Σ exp ‖p - m‖)·‖p - m*‖, the sum over the b rows nearest to m*, which is one of them. A patch whose
    nearest row is itself rare keeps more of its distance.
    """
    _, around = nearest(bank[index], bank, b)  # (B, b)
    distance = (patch - bank[index]).square().sum(1).sqrt()
    to_around = (patch[:, None] - bank[around]).square().sum(2).sqrt()
    return (1.0 - torch.exp(distance - to_around.logsumexp(1))) * distance
