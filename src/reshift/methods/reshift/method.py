"""Reshift, the default method: dense reconstruction-shift discrimination. Ours; it builds on the paper's idea.

The paper's classifier separates whole images from their decoded restorations, which it can do by their blur alone. Here
the discriminators are dense: parts of normal images are shifted, and they mark the shifted pixels. Shifts come from
several sources (shifts.py), one of them the paper's masked latent restoration without the decoder's error.

Two witnesses judge every pixel: the discriminators (discriminator.py), and the distance of frozen ImageNet features to
the nearest features of training normals (distance.py), if the extra ``features`` is installed. The discriminators see
those features, too. Each witness is measured in units of its spread over normals that it was not trained on; the two
are then averaged.

Burned-in text is removed first, as far as it consists of thin bright strokes. More text is painted into training
images, where it does not count as a shift (annotations.py). Each discriminator leaves out one fold of the subjects, and
the memory keeps its patches by fold: every training normal is unseen by one part of the model, so all normals are
learned from and all set thresholds.

Heat-map: softplus of the average, 0 outside the anatomy. Image score: the mean of the highest ``top`` pixels.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reshift.methods.detector import Detector, Objective, Prediction, Profiles, Stage, Step
from reshift.methods.dmd.method import DMD
from reshift.methods.ops.augment import random_affine
from reshift.methods.ops.filters import gaussian_blur
from reshift.methods.reshift.annotations import draw_marks, paint_marks, remove_text
from reshift.methods.reshift.discriminator import (
    masked_cross_entropy,
    mean_logits,
    random_exposure,
    repeat_folds,
    without_fold,
)
from reshift.methods.reshift.distance import distance_to_banks
from reshift.methods.reshift.settings import ReshiftSettings
from reshift.methods.reshift.shifts import SOURCES, Shifted, Source, anatomy, shift
from reshift.nets.dense import DenseDiscriminator
from reshift.nets.patches import DIMS, Sample, as_rows, feature_net, patch_features

FEATURE_CHANNELS = {"efficientnet-lite0": (24, 40, 112), "off": ()}
CHUNK = 16  # images per pass where nothing is trained
RESTORATION = "restoration"
VISIBLE = 0.3  # a painted mark counts where it covers more of a pixel than this


class Reshift(Detector):
    """The detector; see the module's docstring."""

    Settings = ReshiftSettings
    bf16 = True
    recordable = True
    profiles: ClassVar[Profiles] = {
        "paper": {"data": {"holdout": 0.0}, "train": {"batch": 32, "lr": 1e-3, "schedule": "cosine", "warmup": 0.05}},
        "quick": {
            "train": {"batch": 8, "lr": 1e-3, "schedule": "cosine", "warmup": 0.05},
            "model": {
                "steps": 300, "members": 1, "widths": [16, 32, 64, 128], "bank": 2048, "sample": 20_000, "distance_weight": 3.0,
                "top": 0.02,
                "sources": ["offset", "gain", "swap", "mix", "texture"],
            },
        },
    }  # fmt: skip
    bank: Tensor
    marks: Tensor
    centre: Tensor
    spread: Tensor

    def __init__(self, settings: ReshiftSettings, size: int, channels: int) -> None:
        super().__init__()
        s = self.settings = settings
        deepest = 2 ** (len(s.widths) - 1)
        if size % deepest:
            raise ValueError(f"data.size {size} is not a multiple of {deepest}, which {len(s.widths)} widths need")
        self.size, self.folds, self.has_features = size, s.members, s.features != "off"
        self.dmd = DMD(s.dmd, size, channels) if RESTORATION in s.sources else nn.Identity()
        inputs, maps = 2 * channels if s.mirror else channels, FEATURE_CHANNELS[s.features]
        self.members = nn.ModuleList(DenseDiscriminator(inputs, s.widths, maps) for _ in range(s.members))
        if self.has_features:
            feature_net(s.features, "cpu")  # missing weights show now, not after training
        rows = s.bank // self.folds if self.has_features else 0
        self.register_buffer("bank", torch.zeros(self.folds, rows, DIMS.get(s.features, 0)))
        self.register_buffer("marks", draw_marks() if s.marks else torch.empty(0), persistent=False)
        self.register_buffer("centre", torch.zeros(2))  # mean and standard deviation of the witnesses over unseen normals:
        self.register_buffer("spread", torch.ones(2))  # discriminators, distance

    def notes(self) -> list[str]:
        """Say so where the second witness is missing."""
        if self.has_features:
            return []
        return ["trained without pretrained features, which find more: pip install 'reshift[features]' and train again"]

    # ---- training --------------------------------------------------------------------------------------------------

    def stages(self) -> Sequence[Stage]:
        """The paper's two stages, the memory of normal patches, and the discriminators."""
        s = self.settings
        stages = list(self.dmd.stages()) if isinstance(self.dmd, DMD) else []
        if self.has_features:
            facts = s.model_dump(include={"features", "side", "strokes", "bank", "sample"})
            facts["what"] = "coreset of unit patches"
            stages.append(Stage("memory", 0, (), self._fill_memory, facts, folds=self.folds))
        learned = s.model_dump(mode="json", exclude={"dmd", "bank", "sample", "blur", "distance_weight", "flips", "top"})
        decided_by = {"what": "dense shift discriminator", **learned}
        objective = Objective(tuple(self.members), self._loss)
        return (*stages, Stage("discriminator", 0, (objective,), None, decided_by, s.steps, self.folds))

    def _fill_memory(self, images: Iterable[Tensor], fold: int = 0) -> None:
        """Fill the bank of one fold with a coreset of a random sample of its patches."""
        limit, dims = max(1, self.settings.sample // self.folds), self.bank.shape[2]
        sample = Sample(limit, dims, self.bank.device, torch.Generator().manual_seed(0))
        for x in (part for batch in images for part in batch.split(CHUNK)):
            sample.add(as_rows(self._patches(self._feature_maps(self._remove_text(x)))))
        self.bank[fold] = sample.coreset(self.bank.shape[1])

    def _sources(self) -> dict[str, Source]:
        known = {**SOURCES, RESTORATION: self._restoration}
        return {name: known[name] for name in self.settings.sources}

    def _restoration(self, x: Tensor, _other: Tensor, step: Step) -> Tensor:
        return x + self.dmd.reconstruction_shift(x, step) if isinstance(self.dmd, DMD) else x

    def _loss(self, x: Tensor, step: Step) -> dict[str, Tensor]:
        """The mean loss of the members on freshly shifted normals."""
        with torch.no_grad():
            shifted = self._shifted(x, step)
            repeated = [repeat_folds(t, self.folds) for t in (*shifted, *self._feature_maps(shifted.image))]
        return {"loss": torch.stack([self._member_loss(k, repeated) for k in range(self.folds)]).mean()}

    def _shifted(self, x: Tensor, step: Step) -> Shifted:
        """Augment, shift and annotate normals. An image borrows from its own fold only, which one member must not learn from."""
        s, parts = self.settings, x.chunk(self.folds)
        both = torch.cat([x, *(part.roll(1, 0) for part in parts)])
        both = random_affine(both, step.uniform(len(x), 10).view(-1, 5), s.degrees, s.move, s.zoom)
        x, other = both.chunk(2)
        image, target, inside = shift(
            random_exposure(x, step), other, self._sources(), step,
            smallest=s.smallest, largest=s.largest, untouched=s.untouched,
        )  # fmt: skip
        if s.marks:
            image, cover = paint_marks(image, self.marks, step, share=s.marks)
            inside = torch.maximum(inside, (cover > VISIBLE).to(x.dtype))  # outside the anatomy, too, text is not a shift
        return Shifted(self._remove_text(image), target, inside)

    def _member_loss(self, member: int, repeated: Sequence[Tensor]) -> Tensor:
        """Cross-entropy of one member inside the anatomy, without its own fold."""
        image, target, inside, *maps = (without_fold(t, member, self.folds) for t in repeated)
        logits = self.members[member](self._with_mirror(image), maps).to(target.dtype)
        return masked_cross_entropy(logits, target, inside)

    def fit_normalisation(self, batches: Iterable[tuple[Tensor, int | None]]) -> None:
        """Centre and spread of both witnesses inside the anatomy, over normals that they were not trained on."""
        n, total, squares = 0.0, torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
        for x, fold in ((self._remove_text(part), fold) for batch, fold in batches for part in batch.split(CHUNK)):
            inside = anatomy(x).double()
            for i, witness in enumerate(self._witnesses(x, fold)):
                total[i] += float((witness.double() * inside).sum())
                squares[i] += float((witness.double().square() * inside).sum())
            n += float(inside.sum())
        mean = total / max(n, 1.0)
        self.centre.copy_(mean)
        self.spread.copy_((squares / max(n, 1.0) - mean.square()).clamp(min=1e-12).sqrt())

    # ---- inference -------------------------------------------------------------------------------------------------

    def _remove_text(self, x: Tensor) -> Tensor:
        contrast = self.settings.strokes
        return remove_text(x, contrast, line=max(1, round(self.size / 128))) if contrast else x

    def _feature_maps(self, x: Tensor) -> list[Tensor]:
        """Maps of the frozen network, always in float32, which distances need; empty without the extra ``features``."""
        if not self.has_features:
            return []
        with torch.autocast(x.device.type, enabled=False):
            return feature_net(self.settings.features, str(self.bank.device)).maps(x.float(), self.settings.side)

    def _patches(self, maps: list[Tensor]) -> Tensor:
        return patch_features(maps, unit=True)

    def _with_mirror(self, x: Tensor) -> Tensor:
        return torch.cat([x, x.flip(-1)], dim=1) if self.settings.mirror else x

    def _witnesses(self, x: Tensor, without: int | None = None) -> list[Tensor]:
        """What each witness says, ``(B, 1, H, W)`` each: mean logit, and distance if there are features."""
        maps = self._feature_maps(x)
        logits = mean_logits(list(self.members), self._with_mirror(x), maps, without)
        if self.settings.flips:
            flipped = x.flip(-1)
            again = mean_logits(list(self.members), self._with_mirror(flipped), self._feature_maps(flipped), without)
            logits = (logits + again.flip(-1)) / 2.0
        if not maps:
            return [logits]
        patches = self._patches(maps)
        distance = distance_to_banks(as_rows(patches), self.bank, without).view(len(x), 1, *patches.shape[-2:])
        enlarged = F.interpolate(distance, size=x.shape[-2:], mode="bilinear")
        return [logits, gaussian_blur(enlarged, self.settings.blur * self.size / 128)]

    def forward(self, x: Tensor, without: int | None = None) -> Prediction:
        """The weighted mean of the normalised witnesses; ``without`` uses nothing that has seen this fold."""
        x = self._remove_text(x)
        z = [(w - c) / s for w, c, s in zip(self._witnesses(x, without), self.centre, self.spread, strict=False)]
        weight = self.settings.distance_weight
        mean = z[0] if len(z) == 1 else (z[0] + weight * z[1]) / (1.0 + weight)
        heatmap = (F.softplus(mean) * anatomy(x))[:, 0]
        return Prediction(self.score_of(heatmap), heatmap)

    def score_of(self, heatmap: Tensor) -> Tensor:
        """The mean of the highest ``top`` pixels of each heat-map."""
        pixels = heatmap.flatten(1)
        highest = pixels.topk(max(1, round(self.settings.top * pixels.shape[1])), dim=1).values
        return highest.mean(1)

    def pseudo_healthy(self, x: Tensor) -> Tensor:
        """The paper's restorations; without the source "restoration", the images themselves."""
        return self.dmd.pseudo_healthy(x) if isinstance(self.dmd, DMD) else x
