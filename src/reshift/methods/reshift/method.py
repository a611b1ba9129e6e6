"""Reshift: dense reconstruction-shift discrimination. Ours; it keeps the paper's idea and drops what made it blind.

The paper's classifier tells whole images from their decoded restorations, which it can do by their blur. Here the discriminator
is dense: parts of normal images are shifted, and it says, per pixel, where. Shifts come from several sources (methods/shifts.py),
among them the paper's own masked latent restoration with the decoder's error taken out. Beside the image the discriminator sees
frozen ImageNet features, if the extra ``features`` is installed; the distance of those features to the nearest of the training
normals is a second witness. Both are measured in units of their spread over normals that were not trained on, and averaged.

Burned-in text is taken off first, as far as it consists of thin bright strokes; more of it is painted into training images,
where it is no shift. There are several discriminators, and each leaves out one fold of the subjects, as does a part of the
memory: so every training normal is unseen by one of them, all normals can be learned from, and thresholds come from all.

Map: softplus of that average, 0 outside the anatomy. Image score: the mean of the map's highest ``top`` pixels. The paper's own
score and map remain: ``paper``.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reshift.config import Frozen
from reshift.methods.detector import Objective, Prediction, Stage, Step, batch_invariant
from reshift.methods.dmd.method import DMD
from reshift.methods.ops.augment import random_affine
from reshift.methods.ops.filters import gaussian_blur, without_strokes
from reshift.methods.reshift.annotations import drawn_marks, paint
from reshift.methods.reshift.settings import ReshiftSettings
from reshift.methods.reshift.shifts import SOURCES, Shifted, Source, enclosed, shift
from reshift.nets.dense import DenseDiscriminator
from reshift.nets.patches import DIMS, Sample, as_rows, feature_net, nearest, patch_features

FEATURE_CHANNELS = {"efficientnet-lite0": (24, 40, 112), "off": ()}
PASS = 16  # images looked at at once where nothing is learned
RESTORATION = "restoration"
VISIBLE = 0.3  # how much of a pixel a painted mark covers, where it counts as one


class Reshift(nn.Module):
    """The detector; see the module's docstring."""

    Settings: ClassVar[type[Frozen]] = ReshiftSettings
    bf16: ClassVar[bool] = True
    recordable: ClassVar[bool] = True
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {
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
        self.size, self.restores, self.remembers = size, RESTORATION in s.sources, s.features != "off"
        self.dmd = DMD(s.dmd, size, channels) if self.restores else nn.Identity()
        seen = FEATURE_CHANNELS[s.features]
        shown = 2 * channels if s.mirror else channels
        self.members = nn.ModuleList(DenseDiscriminator(shown, s.widths, seen) for _ in range(s.members))
        if seen:
            feature_net(s.features, "cpu")  # missing weights show now
        self.folds = s.members
        rows = s.bank // self.folds if seen else 0
        self.register_buffer("bank", torch.zeros(self.folds, rows, DIMS.get(s.features, 0)))  # one part per fold
        self.register_buffer("marks", drawn_marks() if s.marks else torch.empty(0), persistent=False)
        self.register_buffer("centre", torch.zeros(2))  # of the witnesses over unseen normals: discriminator, distance
        self.register_buffer("spread", torch.ones(2))

    def notes(self) -> list[str]:
        """What a user should know of this model."""
        if self.settings.features != "off":
            return []
        return ["trained without pretrained features, which find more: pip install 'reshift[features]' and train again"]

    # ---- training --------------------------------------------------------------------------------------------------

    def stages(self) -> Sequence[Stage]:
        """The paper's two stages, the memory of normal patches, and the discriminators."""
        s = self.settings
        learned = s.model_dump(mode="json", exclude={"dmd", "bank", "sample", "blur", "distance_weight", "flips", "top"})
        decided = {"what": "dense shift discriminator", **learned}
        objectives = (Objective(tuple(self.members), self._discriminate),)
        stages = list(self.dmd.stages()) if isinstance(self.dmd, DMD) else []
        if self.remembers:
            facts = s.model_dump(include={"features", "side", "strokes", "bank", "sample"})
            facts["what"] = "coreset of unit patches"
            stages.append(Stage("memory", 0, (), self._remember, facts, folds=self.folds))
        return (*stages, Stage("discriminator", 0, objectives, None, decided, s.steps, self.folds))

    def _remember(self, images: Iterable[Tensor], fold: int = 0) -> None:
        """Fill one part of the bank from a fair sample of the fold's patches."""
        limit, dims = max(1, self.settings.sample // self.folds), self.bank.shape[2]
        sample = Sample(limit, dims, self.bank.device, torch.Generator().manual_seed(0))
        for x in (part for batch in images for part in batch.split(PASS)):
            sample.add(as_rows(self._patches(self._maps(self._read_over(x)))))
        self.bank[fold] = sample.coreset(self.bank.shape[1])

    def _sources(self) -> dict[str, Source]:
        known = {**SOURCES, RESTORATION: self._restoration}
        return {name: known[name] for name in self.settings.sources}

    def _restoration(self, x: Tensor, _other: Tensor, step: Step) -> Tensor:
        return x + self.dmd.reconstruction_shift(x, step) if isinstance(self.dmd, DMD) else x

    def _discriminate(self, x: Tensor, step: Step) -> dict[str, Tensor]:
        """The members' mean error on freshly shifted normals."""
        with torch.no_grad():
            shown = self._shifted(x, step)
            seen = [self._turned(t) for t in (*shown, *self._maps(shown.image))]
        return {"loss": torch.stack([self._error(member, seen) for member in range(self.folds)]).mean()}

    def _shifted(self, x: Tensor, step: Step) -> Shifted:
        """Augment, shift and mark normals. An image borrows from its own fold, which one member must not know anything of."""
        s, parts = self.settings, x.chunk(self.folds)
        both = torch.cat([x, *(part.roll(1, 0) for part in parts)])
        both = random_affine(both, step.uniform(len(x), 10).view(-1, 5), s.degrees, s.move, s.zoom)
        x, other = both.chunk(2)
        image, where, inside = shift(
            _photometric(x, step), other, self._sources(), step,
            smallest=s.smallest, largest=s.largest, untouched=s.untouched,
        )  # fmt: skip
        if s.marks:
            image, painted = paint(image, self.marks, step, share=s.marks)
            inside = torch.maximum(inside, (painted > VISIBLE).to(x.dtype))  # a word beside the head is no shift, either
        return Shifted(self._read_over(image), where, inside)

    def _turned(self, t: Tensor) -> Tensor:
        """All folds, and most of them once more: without any one of them, the others are next to each other."""
        parts = t.chunk(self.folds)
        return torch.cat([*parts, *parts[: self.folds - 2]]) if self.folds > 2 else t

    def _error(self, member: int, seen: Sequence[Tensor]) -> Tensor:
        """Pixel-wise cross-entropy inside the anatomy, without the member's own fold."""
        image, where, inside, *maps = (self._others(t, member) for t in seen)
        logits = self.members[member](self._shown(image), maps).to(where.dtype)
        errors = F.binary_cross_entropy_with_logits(logits, where, reduction="none") * inside
        return errors.sum() / inside.sum().clamp(min=1.0)

    def _others(self, turned: Tensor, fold: int) -> Tensor:
        """All folds but one, of what is ``_turned``."""
        if self.folds == 1:
            return turned
        size = len(turned) // max(2, 2 * self.folds - 2)
        first = (fold + 1) % self.folds
        return turned[first * size : (first + self.folds - 1) * size]

    def settle(self, batches: Iterable[tuple[Tensor, int | None]]) -> None:
        """See normals, each by what was not trained on it: centre and spread of both witnesses inside the anatomy."""
        n, total, squares = 0.0, torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
        for x, fold in ((self._read_over(part), fold) for batch, fold in batches for part in batch.split(PASS)):
            inside = enclosed(x).double()
            for i, witness in enumerate(self._witnesses(x, fold)):
                total[i] += float((witness.double() * inside).sum())
                squares[i] += float((witness.double().square() * inside).sum())
            n += float(inside.sum())
        mean = total / max(n, 1.0)
        self.centre.copy_(mean)
        self.spread.copy_((squares / max(n, 1.0) - mean.square()).clamp(min=1e-12).sqrt())

    # ---- inference -------------------------------------------------------------------------------------------------

    def _read_over(self, x: Tensor) -> Tensor:
        """Take letters and calipers off: thin strokes much brighter than what they lie on."""
        s = self.settings.strokes
        return without_strokes(x, s, max(1, round(self.size / 128))) if s else x

    def _maps(self, x: Tensor) -> list[Tensor]:
        """Frozen features, never in half precision: distances want their digits. None without the extra."""
        if not self.remembers:
            return []
        with torch.autocast(x.device.type, enabled=False):
            return feature_net(self.settings.features, str(self.bank.device)).maps(x.float(), self.settings.side)

    def _patches(self, maps: list[Tensor]) -> Tensor:
        return patch_features(maps, unit=True)

    def _witnesses(self, x: Tensor, without: int | None = None) -> list[Tensor]:
        """Mean logit of the discriminators and distance to normal patches, ``(B, 1, H, W)`` each; ``without`` a fold."""
        maps = self._maps(x)
        logits = self._logits(x, maps, without)
        if self.settings.flips:
            logits = (logits + self._logits(x.flip(-1), self._maps(x.flip(-1)), without).flip(-1)) / 2.0
        if not maps:
            return [logits]
        patches = self._patches(maps)
        distance = self._distance(as_rows(patches), without).view(len(x), 1, *patches.shape[-2:])
        enlarged = F.interpolate(distance, size=x.shape[-2:], mode="bilinear")
        return [logits, gaussian_blur(enlarged, self.settings.blur * self.size / 128)]

    def _distance(self, rows: Tensor, without: int | None) -> Tensor:
        """To the nearest patch of all folds but one: ``without`` that one or, for new images, on average over which it is.

        A new image must not have a larger memory to be near to than the normals had that set the thresholds.
        """
        each = torch.stack([nearest(rows, part)[0][:, 0] for part in self.bank])  # (folds, n)
        if self.folds == 1:
            return each[0]
        left_out = range(self.folds) if without is None else [without]
        return torch.stack([_without(each.split(1), k).amin(0) for k in left_out]).mean(0)

    def _logits(self, x: Tensor, maps: list[Tensor], without: int | None) -> Tensor:
        """The mean over all members, or the one that has not seen the fold."""
        members = self.members if without is None else [self.members[without]]
        return torch.stack([member(self._shown(x), maps).float() for member in members]).mean(0)

    def _shown(self, x: Tensor) -> Tensor:
        return torch.cat([x, x.flip(-1)], dim=1) if self.settings.mirror else x

    def predict(self, x: Tensor, without: int | None = None) -> Prediction:
        """Both witnesses in units of their spread, averaged by weight; ``without`` what has seen this fold."""

        def one(images: Tensor) -> Prediction:
            images = self._read_over(images)
            z = [(w - c) / s for w, c, s in zip(self._witnesses(images, without), self.centre, self.spread, strict=False)]
            weight = self.settings.distance_weight
            mean = z[0] if len(z) == 1 else (z[0] + weight * z[1]) / (1.0 + weight)
            heatmap = (F.softplus(mean) * enclosed(images))[:, 0]
            return Prediction(self.score_of(heatmap), heatmap)

        return batch_invariant(one, x)

    def score_of(self, heatmap: Tensor) -> Tensor:
        """The mean of the highest ``top`` pixels of each map."""
        pixels = heatmap.flatten(1)
        highest = pixels.topk(max(1, round(self.settings.top * pixels.shape[1])), dim=1).values
        return highest.mean(1)

    def paper(self, x: Tensor) -> Prediction:
        """The paper's own score and restoration map, from the same model."""
        if not isinstance(self.dmd, DMD):
            raise ValueError("this model was trained without the source 'restoration', so it has no restoration map")
        return self.dmd.predict(x)

    def pseudo_healthy(self, x: Tensor) -> Tensor:
        """The paper's restorations, where there are any; otherwise the images themselves."""
        return self.dmd.pseudo_healthy(x) if isinstance(self.dmd, DMD) else x


def _without(parts: Sequence[Tensor], k: int | None) -> Tensor:
    """All parts in one, but for the ``k``-th."""
    return torch.cat([part for i, part in enumerate(parts) if i != k])


def _photometric(x: Tensor, step: Step) -> Tensor:
    """Another exposure: gamma, gain and a little noise, so that brightness alone is no shift."""
    b = len(x)
    gamma, amount = 0.8 + 0.45 * step.uniform(b, 1, 1, 1), 0.85 + 0.33 * step.uniform(b, 1, 1, 1)
    unit = ((x + 1.0) / 2.0).clamp(0.0, 1.0).pow(gamma) * amount
    return (2.0 * (unit + 0.02 * step.uniform(b, 1, 1, 1) * step.normal(*x.shape)) - 1.0).clamp(-1.0, 1.0)
