"""``reshift calibrate`` and the last step of training: score normal images, and make thresholds and p-values of the scores."""

from collections.abc import Sequence
from functools import partial, reduce
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from reshift.data.cases import Case, expand_volumes
from reshift.data.manifest import load_cases
from reshift.data.read import read_image
from reshift.data.source import Source, folds
from reshift.errors import UserError
from reshift.evaluation.metrics.pixels import PixelHistogram
from reshift.inference.acquisition import Acquisition, fit_acquisition, fit_features, tissue_share
from reshift.inference.bundle import load_bundle, replace_bundle, weights_sha256
from reshift.inference.calibration import Calibration, Reference, reference
from reshift.inference.consensus import place, stacks, together
from reshift.inference.false_positives import SubjectShares
from reshift.inference.model import Model
from reshift.inference.stream import Sample, average_stacks, predict_samples, prepare_sample
from reshift.inference.tissue import has_empty_border, smallest_tissue
from reshift.system.device import device_scope, precision
from reshift.system.progress import progress

_NONE = np.empty((0, 0))


class NormalScores(NamedTuple):
    """What a calibration is made of: one row per image, and all their pixels."""

    scores: list[float]
    subjects: list[str]
    pixels: PixelHistogram
    shares: SubjectShares
    descriptors: NDArray[np.float64]  # (n, d), see acquisition.describe
    empty: list[bool]  # whether each background is
    features: NDArray[np.float64] | None = None  # (n, 1280), see Model.launch_features

    def join(self, other: "NormalScores") -> "NormalScores":
        """Both; the pixels are counted into this one's histogram."""
        self.pixels.merge(other.pixels)
        self.shares.merge(other.shares)
        known = self.features is not None and other.features is not None
        features = np.concatenate([self.features, other.features]) if known else None
        descriptors = np.concatenate([self.descriptors, other.descriptors])
        rows = self.scores + other.scores, self.subjects + other.subjects
        return NormalScores(*rows, self.pixels, self.shares, descriptors, self.empty + other.empty, features)

    def reference(self, model: Model, *, plain: bool = False) -> Reference | None:
        """Thresholds and p-values; None without images. ``plain``: by the paper's rule."""
        own, settings = model.detector.pixel_threshold, model.bundle.config.calibrate
        return reference(self.scores, self.subjects, self.pixels, settings, shares=self.shares, pixel_threshold=own, plain=plain)


class UnseenNormals(NamedTuple):
    """Normals that a method has not learned from, if it predicts without what has seen ``fold``."""

    cases: list[Case]
    fold: int | None


def calibrate(model: Model, kept: Sequence[Case], held: Sequence[Case]) -> Calibration:
    """Fit the method's normalisation; then both references: unseen normals (recommended), training normals (the paper's rule)."""
    settings = model.bundle.config.calibrate
    parts = unseen_normals(model, kept, held)
    _fit_normalisation(model, parts or [UnseenNormals(_sample(model, kept, settings.unseen_sample), None)])
    found = [score_normals(model, cases, _label(fold), fold) for cases, fold in parts]
    learned = score_normals(model, _sample(model, kept, settings.training_sample), "calibrating on training normals")
    acquisition = _acquisition(model, found[:-1] or [learned], found[-1:])
    return Calibration(
        image_quantile=settings.image_quantile,
        pixel_quantile=settings.pixel_quantile,
        default=settings.reference,
        held_out=reduce(NormalScores.join, found).reference(model) if found else None,
        training=learned.reference(model, plain=True),
        acquisition=acquisition,
        smallest_tissue=_smallest_tissue([*found, learned]),
    )


def calibrate_bundle(folder: Path, data: Path, device: str = "auto", subject: str | None = None) -> Calibration:
    """Adapt a bundle to the normals in ``data`` as far as its method can without training, and redo the held-out reference.

    ``subject`` finds the subjects in the file names of a plain folder; a bundle's own rule is not used, it may be a stranger's.
    The training reference stays, unless the method has changed. The bundle is replaced as a whole or not at all.
    """
    bundle = load_bundle(folder)
    cases = [case for case in load_cases(data, subject) if case.label == 0 and case.split != "test"]
    if not cases:
        raise UserError(f"{data}: has no normal images outside its test split to calibrate with")
    settings, model = bundle.config.calibrate, Model(bundle, device)
    before = weights_sha256(bundle.detector)
    parts = _adapt(model, expand_volumes(cases, bundle.config.data))
    changed = weights_sha256(bundle.detector) != before
    found = reduce(NormalScores.join, [score_normals(model, some, "calibrating on these normals", fold) for some, fold in parts])
    known = bundle.calibration.acquisition if bundle.calibration else None
    calibration = Calibration(
        image_quantile=settings.image_quantile,
        pixel_quantile=settings.pixel_quantile,
        default="held-out",
        held_out=found.reference(model),
        training=bundle.calibration.training if bundle.calibration and not changed else None,
        acquisition=_refit(known, found) if known else _acquisition(model, [found], [found]),
        smallest_tissue=_smallest_tissue([found]),
    )
    replace_bundle(folder, bundle.detector, bundle.config, calibration, bundle.facts)
    return calibration


def _adapt(model: Model, cases: Sequence[Case]) -> list[UnseenNormals]:
    """Let the method adapt; return the normals as they are to be scored: by folds, where it has kept something of them."""
    config, count = model.bundle.config, model.detector.folds
    groups = [[cases[i] for i in group] for group in folds(cases, count, config.seed)]
    pairs = ((x, k) for k, some in enumerate(groups) for x in Source(some, config.data, model.device).batches())
    with device_scope(model.device), torch.inference_mode(), precision(model.device, "auto"):
        kept = model.detector.adapt(pairs)
    if kept and count == 1:
        raise ValueError(f"method '{config.method}' keeps images of a new site, but has no folds to judge them by")
    return [UnseenNormals(some, k) for k, some in enumerate(groups)] if kept else [UnseenNormals(list(cases), None)]


def score_normals(model: Model, cases: Sequence[Case], label: str, without: int | None = None) -> NormalScores:
    """Score normal images, ``without`` what has learned from this fold."""
    config = model.bundle.config.data
    cases, where = together(cases) if config.sigma else cases, partial(place, slice_mm=config.slice_mm)

    def read(case: Case) -> Sample[Case]:
        sample = prepare_sample(case, read_image(case.image, case.slice, config.max_pixels), config)
        sample.image = None
        return sample

    scores, subjects, pixels, shares = list[float](), list[str](), PixelHistogram(), SubjectShares()
    descriptors, empty, features = list[NDArray[np.float64]](), list[bool](), list[NDArray[np.float64]]()
    with progress(label, len(cases)) as advance:
        for sample in average_stacks(model, predict_samples(model, cases, read, without=without), where):
            if sample.error is not None:
                raise sample.error
            scores.append(sample.score)
            subjects.append(sample.case.subject)
            pixels.add(sample.heatmap)
            shares.add(sample.case.subject, sample.heatmap)
            descriptors.append(sample.descriptor)
            empty.append(has_empty_border(sample.prepared.pixels))
            features.extend([] if sample.features is None else [sample.features])
            advance()
    rows = np.array(descriptors), empty, np.array(features) if features else None
    return NormalScores(scores, subjects, pixels, shares, *rows)


def unseen_normals(model: Model, kept: Sequence[Case], held: Sequence[Case]) -> list[UnseenNormals]:
    """Training normals fold by fold, where the method is cross-fitted, and held-out normals, where there are any."""
    config, count = model.bundle.config, model.detector.folds
    groups = folds(kept, count, config.seed) if count > 1 else []
    most = -(-config.calibrate.unseen_sample // max(1, count))
    parts = [UnseenNormals(_sample(model, [kept[i] for i in group], most), k) for k, group in enumerate(groups)]
    return parts + ([UnseenNormals(list(held), None)] if held else [])


def _label(fold: int | None) -> str:
    return "calibrating on held-out normals" if fold is None else f"calibrating on normals of fold {fold + 1}"


def _sample(model: Model, cases: Sequence[Case], most: int) -> list[Case]:
    """At most so many. Where slices are averaged, stacks stay whole: a slice without its neighbours gets another score."""
    rng = np.random.default_rng(0)
    if not model.bundle.config.data.sigma:
        return [cases[i] for i in sorted(rng.permutation(len(cases))[:most].tolist())]
    known, chosen = stacks(cases), list[int]()
    for index in rng.permutation(len(known)):
        if not chosen or len(chosen) + len(known[index]) <= most:
            chosen += known[index]
    return [cases[i] for i in sorted(chosen)]


def _fit_normalisation(model: Model, parts: Sequence[UnseenNormals]) -> None:
    """Show the method the normals that it was not trained on, once."""
    settings = model.bundle.config.data
    with device_scope(model.device), torch.inference_mode(), precision(model.device, "auto"):
        model.detector.fit_normalisation(
            (x, fold) for cases, fold in parts for x in Source(cases, settings, model.device).batches()
        )


def _acquisition(model: Model, learned: Sequence[NormalScores], others: Sequence[NormalScores]) -> Acquisition | None:
    """Where some normals lie by grey values and, where there is a feature network, by its features, as judged by others."""
    rows, other_rows = (np.concatenate([part.descriptors for part in parts]) if parts else _NONE for parts in (learned, others))
    known = fit_acquisition(rows, other_rows)
    if known is None or model.feature_network is None:
        return known
    features, other_features = (_features(parts) for parts in (learned, others))
    return known.model_copy(update={"features": fit_features(features, other_features, model.feature_network.name)})


def _smallest_tissue(parts: Sequence[NormalScores]) -> float | None:
    shares = [tissue_share(row) for part in parts for row in part.descriptors]
    return smallest_tissue(shares, [empty for part in parts for empty in part.empty])


def _features(parts: Sequence[NormalScores]) -> NDArray[np.float64]:
    return np.concatenate([part.features for part in parts if part.features is not None] or [_NONE])


def _refit(known: Acquisition, found: NormalScores) -> Acquisition:
    """Judge by other normals. Without the feature network their features are unknown, and the old ones would be wrong."""
    features = known.features.refit(found.features) if known.features and found.features is not None else None
    return known.refit(found.descriptors).model_copy(update={"features": features})
