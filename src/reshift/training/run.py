"""``reshift train``: split, fit, calibrate, save."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from reshift import __version__, methods
from reshift.config import RUNTIME_SETTINGS, Config, merge, nearest, parse, read_json
from reshift.data.cases import Case, expand_volumes, fingerprint, held_out_share, hold_out
from reshift.data.manifest import load_cases
from reshift.data.source import Source
from reshift.errors import UserError
from reshift.inference.bundle import Bundle, build, save_bundle
from reshift.inference.calibrate import calibrate
from reshift.inference.consensus import slice_spacing
from reshift.inference.model import Model, check_consensus
from reshift.methods.detector import Detector
from reshift.system.device import barrier, pick_device, ranks
from reshift.system.files import atomic_json, create_output_folder, remove_temporary_files
from reshift.system.lock import locked
from reshift.training.checkpoint import Position
from reshift.training.flat import check_patience
from reshift.training.level import choose_level
from reshift.training.log import check_tensorboard
from reshift.training.loop import CHECKPOINT, fit
from reshift.training.normals import describe
from reshift.training.stacks import choose_sigma

Announce = Callable[[Detector, Sequence[Case]], None]  # told who learns, and from which normals
MIN_IMAGES = 8  # fewer normals cannot be learned from, let alone calibrated with


def resolve(method: str | None, profile: str, layers: Sequence[dict[str, Any]]) -> Config:
    """Merge defaults, profile and the user's layers into one fully spelled-out config."""
    given = merge(*layers, {"method": method} if method else {})
    cls = methods.get(str(given.get("method", Config().method)), given=bool(method))
    if profile not in cls.profiles:
        raise UserError(f"unknown profile '{profile}'{nearest(profile, cls.profiles)}")
    # A setting that is named like a profile, and true, brings the other values of that profile with it.
    model: Any = given.get("model")
    presets = [values for name, values in cls.profiles.items() if isinstance(model, dict) and model.get(name) is True]
    config = parse(Config, merge(cls.profiles[profile], *presets, given))
    settings = parse(cls.Settings, config.model, "model")
    return config.model_copy(update={"model": settings.model_dump(mode="json")})


def train_run(config: Config, data: Path, out: Path, *, resume: bool = False, announce: Announce | None = None) -> Path:
    """Train, calibrate and save ``out/bundle``; return its path."""
    device = pick_device(config.train.device)
    with ExitStack() as lock:
        with ranks(device) as place:
            detector = build(config)  # a mistake in the settings shows before any image is read
            check_consensus(detector, config)
            check_tensorboard(wanted=config.train.tensorboard)
            learned = [case for case in load_cases(data, config.data.subject) if case.split != "test"]
            kept, held = split_normals(expand_volumes(learned, config.data), config, data)
            check_patience(config.train, held)
            config = _with_choices(config, detector, kept)  # the bundle says what it does
            detector = build(config)
            create_output_folder(out)
            if place.rank == 0:  # for all ranks
                lock.enter_context(locked(out))
            stamp: dict[str, Any] = {"config": config.model_dump(mode="json"), "data": fingerprint([*kept, *held])}
            _claim(out, stamp, resume=resume)
            if announce is not None and place.rank == 0:
                announce(detector, [*kept, *held])
            barrier(place)  # or a late process would find the folder claimed by the first
            if (out / "bundle" / "config.json").exists():
                return out / "bundle"
            source = Source(kept, config.data, device)
            source.check(held)
            if place.rank == 0:
                remove_temporary_files(out)
                atomic_json(out / "run.json", stamp)
            end = fit(detector, source, config, out, place, stamp["data"], held)
            if place.rank > 0:
                return out / "bundle"
        config = _with_consensus(config, detector, [*kept, *held], learned)
        facts = {**_facts(data, kept, held), "data": stamp["data"], **_cost(detector, end)}
        model = Model(Bundle(detector, config, None, facts, ""), config.train.device)
        save_bundle(out / "bundle", detector, config, calibrate(model, kept, held), facts)
        (out / CHECKPOINT).unlink(missing_ok=True)  # the bundle has the weights; the moments are of no more use
    return out / "bundle"


def _with_choices(config: Config, detector: Detector, kept: Sequence[Case]) -> Config:
    """Decide by the training normals what the settings leave open."""
    data = config.data
    if data.level == "auto":
        data = data.model_copy(update={"level": choose_level(kept, data)})
    decided = detector.choose_settings(describe(kept, data)) if detector.overrides("choose_settings") else {}
    return config.model_copy(update={"data": data, "model": {**config.model, **decided}})


def _with_consensus(config: Config, detector: Detector, cases: Sequence[Case], listed: Sequence[Case]) -> Config:
    """Decide ``data.consensus = auto`` by the training normals, for a method that can, and which slices it counts.

    The bundle keeps both numbers.
    """
    data, auto = config.data, config.data.consensus == "auto"
    sigma = data.sigma if not auto else choose_sigma(cases, listed, data) if detector.overrides("rescore") else 0.0
    slice_mm = data.slice_mm or (slice_spacing(cases) if sigma else 0.0)
    return config.model_copy(update={"data": data.model_copy(update={"consensus": sigma, "slice_mm": slice_mm})})


def split_normals(cases: Sequence[Case], config: Config, data: Path) -> tuple[list[Case], list[Case]]:
    """Training normals and held-out normals: the manifest's val split if it has one, else a share of the subjects.

    The paper learns from all normals and takes thresholds from them; who asks for that has no use for a val split.
    """
    train, val = ([case for case in cases if case.split == split] for split in ("train", "val"))
    if config.data.holdout == 0 and config.calibrate.reference == "training":
        train, val = [*train, *val], []
    if len(train) < MIN_IMAGES:
        raise UserError(f"{data}: {len(train)} normal training image(s); give it at least {MIN_IMAGES}")
    if val:
        return train, val
    share = held_out_share(train, config.data.holdout)
    kept, held = hold_out(train, share, lambda n: np.random.default_rng(config.seed).permutation(n).tolist())
    if len(kept) < MIN_IMAGES // 2:
        raise UserError(f"{data}: holding out {share:.0%} leaves {len(kept)} images to train on; lower data.holdout")
    return kept, held


def _claim(out: Path, stamp: dict[str, Any], *, resume: bool) -> None:
    """A folder belongs to one run: refuse to overwrite another, or to resume with other settings or data."""
    path = out / "run.json"
    if not path.exists():
        return
    if not resume:
        raise UserError(f"{out}: already holds a run; --resume continues it, or choose another --out")
    try:
        before = read_json(path.read_text())
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
        if key in RUNTIME_SETTINGS.get(prefix.removesuffix("."), ()):
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            if inner := _first_change(old, new, f"{name}."):
                return inner
        elif old != new:
            return f"was started with {name} = {old!r}, now {new!r}"
    return None


def _facts(data: Path, kept: Sequence[Case], held: Sequence[Case]) -> dict[str, Any]:
    folder = data if data.is_dir() else data.parent
    return {
        "dataset": folder.resolve().name,
        "images": len(kept),
        "subjects": len({case.subject for case in kept}),
        "held_out_images": len(held),
        "date": datetime.now(UTC).date().isoformat(),
        "reshift": __version__,
    }


def _cost(detector: Detector, end: Position) -> dict[str, Any]:
    """What training took. A run that an older version began does not know the updates of its first stages."""
    names = [stage.name for stage in detector.stages()]
    known = len(names) == len(end.updates)
    return {"seconds": round(end.seconds, 1), "updates": dict(zip(names, end.updates, strict=True)) if known else {}}
