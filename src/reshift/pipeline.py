"""From data to a calibrated bundle: split, fit, calibrate, save. What ``reshift train`` and ``reshift calibrate`` do."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reshift import __version__, methods
from reshift.acquisition import Acquisition, fit_acquisition, fit_features
from reshift.bundle import Bundle, build, load_bundle, save_bundle, save_calibration
from reshift.calibrate import Calibration, reference
from reshift.config import Config, merge, parse
from reshift.data.manifest import Case, expand, fingerprint, hold_out, load_cases
from reshift.data.source import Source, check_images
from reshift.errors import UserError
from reshift.predict import Model, NormalScores, normal_scores
from reshift.runtime import pick_device, precision, processes
from reshift.train import CHECKPOINT, as_module, fit
from reshift.write import atomic_json, sweep, writable_folder

MIN_IMAGES = 8  # fewer normals cannot be learned from, let alone calibrated with
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
    with processes(device) as place:
        detector = build(config)  # a mistake in the settings shows before any image is read
        learned = [case for case in load_cases(data, config.data.subject) if case.split != "test"]
        kept, held = split_normals(expand(learned, config.data), config, data)
        writable_folder(out)
        stamp: dict[str, Any] = {"config": config.model_dump(mode="json"), "data": fingerprint([*kept, *held])}
        _claim(out, stamp, resume=resume)
        if (out / "bundle" / "config.json").exists():
            return out / "bundle"
        source = Source(kept, config.data, device)
        check_images(held if source.resident else [*kept, *held], config.data)
        if place.rank == 0:
            sweep(out)
            sweep(out / "bundle")
            atomic_json(out / "run.json", stamp)
        seconds = fit(detector, source, config, out, place, stamp["data"])
        if place.rank > 0:
            return out / "bundle"
    facts = _facts(data, kept, held, stamp["data"], seconds)
    model = Model(Bundle(detector, config, None, facts, ""), config.train.device)
    _settle(model, held or kept)
    calibration = _calibration(model, held, kept)
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
    found = normal_scores(model, cases, "calibrating")
    before = bundle.calibration.training if bundle.calibration else None
    known = bundle.calibration.acquisition if bundle.calibration else None
    calibration = Calibration(
        image_quantile=settings.image_quantile, pixel_quantile=settings.pixel_quantile, default="held-out",
        held_out=reference(found.scores, found.pixels, settings), training=before,
        acquisition=_seen_from(known, found) if known else _acquisition(model, found, found),
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


def _settle(model: Model, normals: Sequence[Case]) -> None:
    """Show a method that asks for it the normals that it was not trained on, once."""
    settle = getattr(model.detector, "settle", None)
    if settle is not None:
        with torch.inference_mode(), precision(model.device, "auto"):
            settle(Source(normals, model.bundle.config.data, model.device).batches())


def _calibration(model: Model, held: Sequence[Case], kept: Sequence[Case]) -> Calibration:
    """Both references: held-out normals (recommended) and a sample of the training normals (the paper's rule)."""
    settings = model.bundle.config.calibrate
    sample = sorted(np.random.default_rng(0).permutation(len(kept))[: settings.training_sample].tolist())
    unseen = normal_scores(model, held, "calibrating on held-out normals")
    learned = normal_scores(model, [kept[i] for i in sample], "calibrating on training normals")
    return Calibration(
        image_quantile=settings.image_quantile,
        pixel_quantile=settings.pixel_quantile,
        default=settings.reference,
        held_out=reference(unseen.scores, unseen.pixels, settings),
        training=reference(learned.scores, learned.pixels, settings),
        acquisition=_acquisition(model, learned, unseen),
    )


def _acquisition(model: Model, learned: NormalScores, unseen: NormalScores) -> Acquisition | None:
    """Where the training normals lie by grey values and, where there is a feature network, by its features."""
    known = fit_acquisition(learned.descriptors, unseen.descriptors)
    if known is None or learned.features is None or unseen.features is None or model.embedder is None:
        return known
    return known.model_copy(update={"features": fit_features(learned.features, unseen.features, model.embedder.name)})


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
