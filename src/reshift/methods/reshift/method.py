"""Reshift, the default method: several witnesses of what is not normal. Ours; it builds on the paper's idea.

The paper's classifier separates whole images from their decoded restorations, which it can do by their blur alone. Here
discriminators are dense: parts of normal images are shifted (shifts.py), and they mark the shifted pixels, beside frozen
features of pretrained networks (featured) or, without any, from the image alone (plain; discriminator.py). Beside them stand
the distance of those features to the nearest features of normals (memory.py), what a denoiser would change (denoising.py)
and, where lesions are bright or dark, the rarity of that brightness (tail.py). Where an image shows a whole
organ, the score also asks how unlike all normals it is as a whole (overall.py); where normals are symmetric, each place can be
compared with its mirror image (symmetry.py).

Every witness has one part per fold of the subjects, which has not seen that fold: all normals are learned from, and all
set the thresholds. fusion.py measures each witness over the normals it has not seen and averages them.

Burned-in text is removed first, as far as it consists of thin bright strokes. More text is painted into training images,
where it does not count as a shift (annotations.py). What the normals decide, such as how much grey values are varied in training
and how bright an image is made before it is judged, is in rules.py.

Heat-map: softplus of the fused map in units of its spread over normals, 0 outside the anatomy. Image score: half how high the
heat-map rises above its mean, half how high the witnesses' own maps do; "overall" has a share beside both.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from reshift.methods.detector import Detector, Normals, Objective, Prediction, Profiles, Stage, Step
from reshift.methods.dmd.method import DMD
from reshift.methods.ops.augment import random_affine
from reshift.methods.reshift.annotations import draw_marks, paint_marks, remove_text
from reshift.methods.reshift.denoising import Denoiser, noisy
from reshift.methods.reshift.discriminator import Discriminator
from reshift.methods.reshift.fusion import Fusion
from reshift.methods.reshift.memory import Memory
from reshift.methods.reshift.overall import ROWS as OVERALL_ROWS
from reshift.methods.reshift.overall import Overall
from reshift.methods.reshift.photometry import blur_and_noise, expose, mild_photometry, strong_photometry
from reshift.methods.reshift.rules import decide
from reshift.methods.reshift.settings import EMBEDDED, PER_NETWORK, ReshiftSettings
from reshift.methods.reshift.shifts import SOURCES, Source, anatomy, shift
from reshift.methods.reshift.symmetry import Symmetry
from reshift.methods.reshift.tail import Tail
from reshift.methods.reshift.witness import Example, Seen, TrainedWitness, Witness
from reshift.nets.efficientnet_lite import HEAD as VECTOR
from reshift.nets.efficientnet_lite import efficientnet_lite0
from reshift.nets.features import feature_net

CHUNK = 16  # images per pass where nothing is trained
RESTORATION = "restoration"
VISIBLE = 0.3  # a painted mark counts where it covers more of a pixel than this
# Settings that change neither what is learned nor what is remembered: a trained stage is shared by runs that differ in them.
AFTERWARDS = {
    "witnesses", "silent", "polarity", "overall", "overall_share", "symmetry", "exposure", "weights", "score_weights",
    "map_share", "centring", "blur", "flips", "top", "spreads", "dmd",
}  # fmt: skip
PATCHES_EACH = 10  # a sample that takes so many patches of each normal needs no more normals to fill a memory from
QUICK = {
    "features": "embedded", "folds": 1, "mirror": False,
    "steps": 900, "widths": [16, 32, 64, 128], "photometry": "mild", "blobs": 3, "smallest": 0.023,
    "denoising_steps": 400, "denoising_widths": [32, 64, 128], "denoising_grain": 2, "bank": 2048, "spreads": 2.75,
    "sample": 20_000, "weights": {"featured": 3.0, "memory": 2.0, "symmetry": 2.0, "tail": 4.0}, "score_weights": {"memory": 2.0},
}  # fmt: skip


class Reshift(Detector):
    """The detector; see the module's docstring."""

    Settings = ReshiftSettings
    bf16 = True
    recordable = True
    profiles: ClassVar[Profiles] = {
        "paper": {
            "data": {"holdout": 0.0, "level": "auto"},
            "train": {"batch": 32, "lr": 1e-3, "weight_decay": 1e-4, "schedule": "cosine", "warmup": 0.05},
        },
        "quick": {
            "data": {"holdout": "auto", "level": "auto"},
            "train": {"batch": 4, "lr": 1e-3, "weight_decay": 1e-4, "schedule": "cosine", "warmup": 0.05},
            "model": QUICK,
            "calibrate": {"training_sample": 100},
        },
    }
    marks: Tensor

    def __init__(self, settings: ReshiftSettings, size: int, channels: int) -> None:
        super().__init__()
        s = self.settings = settings
        deepest = max(2 ** (len(s.widths) - 1), s.denoising_grain * 2 ** (len(s.denoising_widths) - 1))
        if size % deepest:
            raise ValueError(f"data.size {size} is not a multiple of {deepest}, which so many widths need")
        self.size, self.folds = size, s.folds
        self.feature_names = tuple(dict.fromkeys([*s.networks, *([EMBEDDED] if "overall" in s.present else [])]))
        self.dmd = DMD(s.dmd, size, channels) if RESTORATION in s.sources else nn.Identity()
        self.witnesses = nn.ModuleList(w for kind in s.present for w in self._build(kind, channels))
        kinds, heard = [str(w.kind) for w in self.witnesses], [self._heard(w) for w in self.witnesses]
        shares = {"top": s.top, "map_share": s.map_share, "overall_share": s.share_of_overall, "centring": s.share_of_mean}
        self.fusion = Fusion(kinds, heard, s.map_weights, s.top_weights, **shares)
        self.register_buffer("marks", draw_marks() if s.marks else torch.empty(0), persistent=False)

    def _build(self, kind: str, channels: int) -> Iterator[Witness]:
        """The witnesses of one kind: one, or one per feature network."""
        s = self.settings
        discriminator = partial(Discriminator, channels, s.widths, s.folds, mirror=s.mirror)
        if kind == "plain":
            yield discriminator()
        elif kind == "denoising":
            yield Denoiser(channels, s.denoising_widths, s.folds, grain=s.denoising_grain)
        elif kind == "tail":
            yield Tail(dark=s.polarity == "dark")
        elif kind == "overall":
            efficientnet_lite0()  # missing weights show now
            yield Overall(EMBEDDED, VECTOR, s.folds)
        for name in s.networks if kind in PER_NETWORK else ():
            net = feature_net(name, "cpu")  # missing weights show now, not after reading the images
            maps = net.channels
            blur = s.blur * self.size / 128 * net.side / net.side_for(self.size)  # a share of a patch
            if kind == "featured":
                yield discriminator(network=name, features=maps)
            elif kind == "memory":
                yield Memory(name, sum(maps[-2:]), s.folds, rows=s.bank, sample=s.sample, blur=blur)
            else:
                yield Symmetry(name, blur=blur)

    def _heard(self, witness: Any) -> bool:
        return witness.kind in self.settings.heard and witness.network not in self.settings.silent

    def choose_settings(self, normals: Normals) -> dict[str, Any]:
        """What the settings leave to the normals (rules.py)."""
        return decide(self.settings, normals)

    def notes(self) -> list[str]:
        """Say so where stronger features could be used."""
        if not self.feature_names:
            return ["trained without pretrained features, which find more: pip install 'reshift[features]' and train again"]
        return []

    def remarks(self) -> list[str]:
        """Say what the normals have decided where it could be wrong."""
        if self.settings.polarity == "likely bright":
            wrong = "--set model.polarity=none --set model.exposure=1"
            return [
                f"normal tissue has nearly one grey, so lesions are taken to be bright rather than dark; if they are not: {wrong}"
            ]
        return []

    @property
    def pixel_threshold(self) -> float:  # type: ignore[override]
        """So many spreads of normal pixels above their mean, as the heat-map shows it."""
        return math.log1p(math.exp(self.settings.spreads))

    # ---- training --------------------------------------------------------------------------------------------------

    def stages(self) -> Sequence[Stage]:
        """The paper's two stages where they make shifts; then one stage per witness that learns."""
        stages = list(self.dmd.stages()) if isinstance(self.dmd, DMD) else []
        return (*stages, *(self._stage(witness) for witness in self.witnesses if not isinstance(witness, Symmetry)))

    def _stage(self, witness: Any) -> Stage:
        s = self.settings
        name = f"{witness.kind} {witness.network}" if witness.network else str(witness.kind)
        decided_by = {"what": name, **s.model_dump(mode="json", exclude=AFTERWARDS)}
        enough = max(OVERALL_ROWS, s.sample // PATCHES_EACH)
        if isinstance(witness, Memory | Overall):
            return Stage(name, 0, (), partial(self._fill_memory, witness), decided_by, folds=s.folds, begin_images=enough)
        if isinstance(witness, Tail):
            decided_by["sign"] = witness.sign
            return Stage(name, 0, (), partial(self._fill_tail, witness), decided_by, begin_images=enough)
        assert isinstance(witness, TrainedWitness)
        steps = s.denoising_steps if isinstance(witness, Denoiser) else s.steps
        objective = Objective((witness,), partial(self._loss, witness))
        return Stage(name, 0, (objective,), None, decided_by, steps, s.folds)

    def _fill_tail(self, tail: Tail, images: Iterable[Tensor]) -> None:
        tail.fill(map(self._remove_text, images))

    def _fill_memory(self, memory: Memory | Overall, images: Iterable[Tensor], fold: int = 0, *, extend: bool = False) -> None:
        parts = (self._remove_text(part) for batch in images for part in batch.split(CHUNK))
        if isinstance(memory, Overall):
            memory.fill(map(self._vector, parts), fold, extend=extend)
        else:
            memory.fill((self._maps(str(memory.network), part) for part in parts), fold, extend=extend)

    def _loss(self, witness: TrainedWitness, x: Tensor, step: Step) -> dict[str, Tensor]:
        """The mean loss of a witness's networks on fresh examples."""
        with torch.no_grad():
            x, other = self._augmented(x, step)
            example = self._noisy(x, step) if isinstance(witness, Denoiser) else self._shifted(x, other, step)
            maps = self._maps(witness.network, example.image) if witness.network else ()
        return {"loss": witness.loss(example, maps)}

    def _augmented(self, x: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """The images, and for each another of its own fold to borrow from: one part of each witness must learn from neither."""
        s = self.settings
        u = step.uniform(len(x), 10)  # a row per image, so that ranks see what one process would
        other = torch.cat([part.roll(1, 0) for part in x.chunk(self.folds)])
        affine = partial(random_affine, degrees=s.degrees, shift=s.move, zoom=s.zoom)
        return affine(x, u[:, :5]), affine(other, u[:, 5:])

    def _noisy(self, x: Tensor, step: Step) -> Example:
        return noisy(self._remove_text(x), self.settings.noise_grid, self.settings.noise_std, step)

    def _shifted(self, x: Tensor, other: Tensor, step: Step) -> Example:
        """Shift and annotate normals."""
        s = self.settings
        photometry = mild_photometry if s.photometry == "mild" else strong_photometry
        image, target, inside = shift(
            photometry(x, step), other, self._sources(), step,
            smallest=s.smallest * min(1.0, 128 / self.size), largest=s.largest, most=s.blobs, untouched=s.untouched,
        )  # fmt: skip
        if s.late_noise:
            image = blur_and_noise(image, inside, s.late_noise, step)
        if s.marks:
            image, cover = paint_marks(image, self.marks, step, share=s.marks)
            inside = torch.maximum(inside, (cover > VISIBLE).to(x.dtype))  # outside the anatomy, too, text is not a shift
        return Example(self._remove_text(image), target, inside)

    def _sources(self) -> dict[str, Source]:
        known = {**SOURCES, RESTORATION: self._restoration}
        return {name: known[name] for name in self.settings.sources}

    def _restoration(self, x: Tensor, _other: Tensor, step: Step) -> Tensor:
        return x + self.dmd.reconstruction_shift(x, step) if isinstance(self.dmd, DMD) else x

    def fit_normalisation(self, batches: Iterable[tuple[Tensor, int | None]]) -> None:
        """Measure every witness over normals that its part was not trained on."""
        parts = ((self._see(part), fold) for batch, fold in batches for part in batch.split(CHUNK))
        self.fusion.fit((self._maps_of_witnesses(seen, fold), seen.inside) for seen, fold in parts)

    def adapt(self, batches: Iterable[tuple[Tensor, int]]) -> bool:
        """Add a new site's patches to the memories, fold by fold, and measure every witness again."""
        given, memories = list(batches), [witness for witness in self.witnesses if isinstance(witness, Memory | Overall)]
        if self.folds == 1 or not memories:
            self.fit_normalisation((x, None) for x, _ in given)
            return False
        for memory in memories:
            for fold in range(self.folds):
                self._fill_memory(memory, [x for x, k in given if k == fold], fold, extend=True)
        self.fit_normalisation(given)
        return True

    # ---- inference -------------------------------------------------------------------------------------------------

    def forward(self, x: Tensor, without: int | None = None) -> Prediction:
        """The fused witnesses; ``without`` uses nothing that has seen this fold."""
        score, heatmap = self.fusion(*self.witness_maps(x, without))
        return Prediction(score, heatmap)

    def witness_maps(self, x: Tensor, without: int | None = None) -> tuple[list[Tensor], Tensor]:
        """What ``fusion`` takes: the map ``(B, 1, H, W)`` of every witness, and where the anatomy is."""
        seen = self._see(x)
        return self._maps_of_witnesses(seen, without), seen.inside

    def _maps_of_witnesses(self, seen: Seen, without: int | None) -> list[Tensor]:
        """The map of every witness; zeros for one that is silent."""
        silent = torch.zeros_like(seen.inside, dtype=torch.float32)
        return [w(seen, without).float() if self._heard(w) else silent for w in self.witnesses]

    def _see(self, x: Tensor) -> Seen:
        x, exposure = self._remove_text(x), self.settings.exposure
        vector = self._vector(x) if "overall" in self.settings.heard else None
        if exposure not in (1.0, "auto"):
            x = expose(x, float(exposure))
        seen = self._view(x)._replace(vector=vector)
        return seen._replace(mirrored=self._view(x.flip(-1))) if self.settings.flips else seen

    def _view(self, x: Tensor) -> Seen:
        maps = {name: self._maps(name, x) for name in self.settings.networks}
        return Seen(x, anatomy(x), maps)

    def _remove_text(self, x: Tensor) -> Tensor:
        contrast = self.settings.strokes
        return remove_text(x, contrast, line=max(1, round(self.size / 128))) if contrast else x

    def _maps(self, network: str, x: Tensor) -> list[Tensor]:
        net = feature_net(network, str(x.device))
        return net.maps(x, net.side_for(self.size))

    def _vector(self, x: Tensor) -> Tensor:
        return efficientnet_lite0(x.device).vector(x)

    def rescore(self, score: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """What the witnesses said apart stays; the top of the heat-map is another."""
        return self.fusion.rescore(score, before, after)

    @property
    def restores(self) -> bool:
        """Only the paper's part and a denoiser restore; other witnesses see lesions without it."""
        return isinstance(self.dmd, DMD) or any(isinstance(witness, Denoiser) for witness in self.witnesses)

    def pseudo_healthy(self, x: Tensor) -> Tensor | None:
        """The paper's restorations with the source "restoration"; else what the denoiser makes of the images."""
        if isinstance(self.dmd, DMD):
            return self.dmd.pseudo_healthy(x)
        for witness in self.witnesses:
            if isinstance(witness, Denoiser):
                return torch.cat([witness.denoised(self._view(part)) for part in x.split(1)]).clamp(-1.0, 1.0)
        return None
