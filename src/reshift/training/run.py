"""From data to a calibrated bundle: split, fit, calibrate, save. What ``reshift train`` and ``reshift calibrate`` do."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from reshift import __version__, methods
from reshift.config import Config, merge, parse
from reshift.data.consensus import stacks
from reshift.data.manifest import Case, expand, fingerprint, hold_out, load_cases
from reshift.data.source import Source, check_images, folds
from reshift.errors import UserError
from reshift.evaluation.metrics.pixels import PixelHistogram
from reshift.inference.acquisition import Acquisition, fit_acquisition, fit_features
from reshift.inference.bundle import Bundle, build, load_bundle, save_bundle, save_calibration
from reshift.inference.calibration import Calibration, reference
from reshift.inference.model import Model, NormalScores, check_consensus, normal_scores
from reshift.system.device import barrier, device_scope, pick_device, precision, ranks
from reshift.system.files import atomic_json, sweep, writable_folder
from reshift.training.loop import CHECKPOINT, as_module, fit

MIN_IMAGES = 8  # fewer normals cannot be learned from, let alone calibrated with
_NONE = np.empty((0, 0))
FREE = ("cache", "device", "log_every", "checkpoint_seconds", "tensorboard")  # train settings that may change on resume


def resolve(method: str | None, profile: str, layers: Sequence[dict[str, Any]]) -> Config:
    """Merge defaults, profile and the user's layers into one fully spelled-out config."""
    given = merge(*layers, {"method": method} if method else {})
    cls = methods.get(str(given.get("method", Config().method)), given=bool(method))
    if profile not in cls.profiles:
        raise UserError(f"unknown profile '{profile}'; known: {', '.join(cls.profiles)}")
    config = parse(Config, merge(cls.profiles[profile], given))
    settings = parse(cls.Settings, config.model, "model")
    return config.model_copy(update={"model": settings.model_dump(mode="json")})


def train_run(config: Config, data: Path, out: Path, *, resume: bool = False) -> Path:
    """Train, calibrate and save ``out/bundle``; return its path."""
    device = pick_device(config.train.device)
    with ranks(device) as place:
        detector = build(config)  # a mistake in the settings shows before any image is read
        check_consensus(detector, config)
        learned = [case for case in load_cases(data, config.data.subject) if case.split != "test"]
        kept, held = split_normals(expand(learned, config.data), config, data)
        writable_folder(out)
        stamp: dict[str, Any] = {"config": config.model_dump(mode="json"), "data": fingerprint([*kept, *held])}
        _claim(out, stamp, resume=resume)
        barrier(place)  # or a late process would find the folder claimed by the first
        if (out / "bundle" / "config.json").exists():
            return out / "bundle"
        source = Source(kept, config.data, device)
        if source.resident:
            check_images(held, config.data)
        else:
            check_images([*kept, *held], config.data, source.readers)
        if place.rank == 0:
            sweep(out)
            sweep(out / "bundle")
            atomic_json(out / "run.json", stamp)
        seconds = fit(detector, source, config, out, place, stamp["data"])
        if place.rank > 0:
            return out / "bundle"
    facts = _facts(data, kept, held, stamp["data"], seconds)
    model = Model(Bundle(detector, config, None, facts, ""), config.train.device)
    calibration = calibrated(model, kept, held)
    save_bundle(out / "bundle", as_module(detector), config, calibration, facts)
    (out / CHECKPOINT).unlink(missing_ok=True)  # the bundle has the weights; the moments are of no more use
    return out / "bundle"


def calibrate_bundle(folder: Path, data: Path, device: str = "auto") -> Calibration:
    """Redo the held-out reference of a bundle from the normals in ``data``; the training reference stays."""
    bundle = load_bundle(folder)
    cases = [case for case in load_cases(data, bundle.config.data.subject) if case.label == 0 and case.split != "test"]
    if not cases:
        raise UserError(f"{data}: has no normal images outside its test split to calibrate with")
    settings = bundle.config.calibrate
    model = Model(bundle, device)
    cases = expand(cases, bundle.config.data)
    found = normal_scores(model, cases, "calibrating on these normals")
    before = bundle.calibration.training if bundle.calibration else None
    known = bundle.calibration.acquisition if bundle.calibration else None
    calibration = Calibration(
        image_quantile=settings.image_quantile, pixel_quantile=settings.pixel_quantile, default="held-out",
        held_out=reference(found.scores, found.pixels, settings), training=before,
        acquisition=_seen_from(known, found) if known else _acquisition(model, [found], [found]),
    )  # fmt: skip
    save_calibration(folder, calibration)
    return calibration


def split_normals(cases: Sequence[Case], config: Config, data: Path) -> tuple[list[Case], list[Case]]:
    """Training normals and held-out normals: the manifest's val split if it has one, else a share of the subjects."""
    train = [case for case in cases if case.split == "train"]
    if len(train) < MIN_IMAGES:
        raise UserError(f"{data}: {len(train)} normal training image(s); give it at least {MIN_IMAGES}")
    val = [case for case in cases if case.split == "val"]
    if val:
        return train, val
    kept, held = hold_out(train, config.data.holdout, lambda n: np.random.default_rng(config.seed).permutation(n).tolist())
    if len(kept) < MIN_IMAGES // 2:
        raise UserError(
            f"{data}: holding out {config.data.holdout:.0%} leaves {len(kept)} images to train on; lower data.holdout"
        )
    return kept, held


class Unseen(NamedTuple):
    """Normals that a method has not learned from, if it predicts without what has seen ``fold``."""

    cases: list[Case]
    fold: int | None


def calibrated(model: Model, kept: Sequence[Case], held: Sequence[Case]) -> Calibration:
    """Settle the method if it wants to; both references: unseen normals (recommended), training normals (the paper's rule)."""
    settings = model.bundle.config.calibrate
    parts = unseen(model, kept, held)
    _settle(model, parts or [Unseen(_sample(model, kept, settings.unseen_sample), None)])
    found = [normal_scores(model, cases, _label(fold), fold) for cases, fold in parts]
    learned = normal_scores(model, _sample(model, kept, settings.training_sample), "calibrating on training normals")
    acquisition = _acquisition(model, found[:-1] or [learned], found[-1:])
    everyone = found[0] if found else NormalScores([], PixelHistogram(), learned.descriptors[:0])
    for other in found[1:]:
        everyone = everyone.join(other)
    return Calibration(
        image_quantile=settings.image_quantile,
        pixel_quantile=settings.pixel_quantile,
        default=settings.reference,
        held_out=reference(everyone.scores, everyone.pixels, settings),
        training=reference(learned.scores, learned.pixels, settings),
        acquisition=acquisition,
    )


def unseen(model: Model, kept: Sequence[Case], held: Sequence[Case]) -> list[Unseen]:
    """Training normals fold by fold, where the method is cross-fitted, and held-out normals, where there are any."""
    config, count = model.bundle.config, getattr(model.detector, "folds", 1)
    groups = folds(kept, count, config.seed) if count > 1 else []
    most = -(-config.calibrate.unseen_sample // max(1, count))
    parts = [Unseen(_sample(model, [kept[i] for i in group], most), k) for k, group in enumerate(groups)]
    return parts + ([Unseen(list(held), None)] if held else [])


def _label(fold: int | None) -> str:
    return "calibrating on held-out normals" if fold is None else f"calibrating on normals of fold {fold + 1}"


def _sample(model: Model, cases: Sequence[Case], most: int) -> list[Case]:
    """At most so many; where slices are averaged, stacks are taken whole, for a slice without its neighbours scores otherwise."""
    rng = np.random.default_rng(0)
    if not model.bundle.config.data.consensus:
        return [cases[i] for i in sorted(rng.permutation(len(cases))[:most].tolist())]
    known, chosen = stacks(cases), list[int]()
    for index in rng.permutation(len(known)):
        if not chosen or len(chosen) + len(known[index]) <= most:
            chosen += known[index]
    return [cases[i] for i in sorted(chosen)]


def _settle(model: Model, parts: Sequence[Unseen]) -> None:
    """Show a method that asks for it the normals that it was not trained on, once."""
    settle = getattr(model.detector, "settle", None)
    if settle is None:
        return
    settings = model.bundle.config.data
    with device_scope(model.device), torch.inference_mode(), precision(model.device, "auto"):
        settle((x, fold) for cases, fold in parts for x in Source(cases, settings, model.device).batches())


def _acquisition(model: Model, learned: Sequence[NormalScores], others: Sequence[NormalScores]) -> Acquisition | None:
    """Where some normals lie by grey values and, where there is a feature network, by its features, as seen from others."""
    rows, other_rows = (np.concatenate([part.descriptors for part in parts]) if parts else _NONE for parts in (learned, others))
    known = fit_acquisition(rows, other_rows)
    if known is None or model.embedder is None:
        return known
    seen, other_seen = (_features(parts) for parts in (learned, others))
    return known.model_copy(update={"features": fit_features(seen, other_seen, model.embedder.name)})


def _features(parts: Sequence[NormalScores]) -> NDArray[np.float64]:
    return np.concatenate([part.features for part in parts if part.features is not None] or [_NONE])


def _seen_from(known: Acquisition, found: NormalScores) -> Acquisition:
    """Judge by other normals; without the feature network theirs are unknown, and the old ones' would be wrong."""
    features = known.features.seen_from(found.features) if known.features and found.features is not None else None
    return known.seen_from(found.descriptors).model_copy(update={"features": features})


def _claim(out: Path, stamp: dict[str, Any], *, resume: bool) -> None:
    """A folder belongs to one run: refuse to overwrite another, or to resume with other settings or data."""
    path = out / "run.json"
    if not path.exists():
        return
    if not resume:
        raise UserError(f"{out}: already holds a run; --resume continues it, or choose another --out")
    try:
        before = json.loads(path.read_text())
        same_data = before["data"] == stamp["data"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: damaged, or not of a training run; choose another --out, or delete that folder") from None
    if not same_data:
        raise UserError(f"{out}: was trained on other data than these; resume with the same images, or choose another --out")
    changed = _first_change(before["config"], stamp["config"])
    if changed:
        raise UserError(f"{out}: {changed}; resume with the same settings, or choose another --out")


def _first_change(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> str | None:
    for key in sorted({*before, *now}):
        old, new, name = before.get(key), now.get(key), f"{prefix}{key}"
        if name.startswith("train.") and key in FREE:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            if inner := _first_change(old, new, f"{name}."):
                return inner
        elif old != new:
            return f"was started with {name} = {old!r}, now {new!r}"
    return None


def _facts(data: Path, kept: Sequence[Case], held: Sequence[Case], digest: str, seconds: float) -> dict[str, Any]:
    folder = data if data.is_dir() else data.parent
    return {
        "dataset": folder.resolve().name,
        "images": len(kept),
        "subjects": len({case.subject for case in kept}),
        "held_out_images": len(held),
        "data": digest,
        "seconds": round(seconds, 1),
        "date": datetime.now(UTC).date().isoformat(),
        "reshift": __version__,
    }
