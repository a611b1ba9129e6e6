"""``reshift train`` and ``reshift calibrate``."""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from reshift.cli.shared import BundlePath, Data, Device, unpack, warn
from reshift.system.imports import heavy_imports
from reshift.system.lock import locked


def train(
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="run folder; created if needed")],
    method: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="a method of 'reshift methods', or your own as module:Class; default: reshift"),
    ] = None,
    profile: Annotated[
        str, typer.Option(metavar="paper|quick", help="paper: the authors' settings; quick: minutes on two CPU cores")
    ] = "paper",
    config: Annotated[Path | None, typer.Option(metavar="FILE.toml", help="settings that replace those of the profile")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change one setting, e.g. train.lr=1e-4; repeatable")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="seed of all random numbers; default: 0")] = None,
    device: Annotated[str | None, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:1, …; default: auto")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue an interrupted run in --out")] = False,
    embed: Annotated[
        bool, typer.Option("--embed", help="copy the pretrained feature networks into the bundle, which then needs no others")
    ] = False,
) -> None:
    """Train a method on normal images and calibrate it on held-out ones. Writes RUN/bundle and RUN/log.jsonl."""
    with heavy_imports():
        from reshift.config import parse_assignment, read_toml
        from reshift.inference.bundle import load_bundle
        from reshift.inference.features import embed as embed_features
        from reshift.training.run import resolve, train_run

    layers: list[dict[str, Any]] = [read_toml(config)] if config else []
    layers += [parse_assignment(text) for text in set_ or ()]
    layers += [{"seed": seed}] if seed is not None else []
    layers += [{"train": {"device": device}}] if device else []
    bundle = train_run(resolve(method, profile, layers), unpack(data), out, resume=resume, announce=_announce)
    if os.environ.get("RANK", "0") == "0":
        trained = load_bundle(bundle)
        if embed:
            embed_features(bundle, trained.detector.feature_names)
        warn(trained.notes() + (trained.calibration.warnings() if trained.calibration else []))
        typer.echo(f"bundle: {bundle}")


def _announce(detector: Any, normals: Any) -> None:
    from reshift.data.subjects import about_subjects
    from reshift.inference.features import summary

    for line in filter(None, [about_subjects(normals), summary(detector.feature_names), *detector.remarks()]):
        typer.echo(f"note: {line}", err=True)


def calibrate(
    bundle: BundlePath,
    data: Data,
    subject: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="plain folders: finds the subject in a file's name, in its first group"),
    ] = None,
    device: Device = "auto",
) -> None:
    """Adapt a bundle to other normal images without training: normalisation, thresholds and p-values."""
    with heavy_imports():
        from reshift.inference.calibrate import calibrate_bundle

    data = unpack(data)
    with locked(bundle) if bundle.is_dir() else nullcontext():  # what is wrong with another path is said below
        calibration = calibrate_bundle(bundle, data, device, subject)
    chosen = calibration.reference
    thresholds = f"image threshold {chosen.image_threshold:.6g}, pixel threshold {chosen.pixel_threshold:.6g}"
    typer.echo(f"{thresholds}, {chosen.normals}")
    warn(calibration.warnings())
