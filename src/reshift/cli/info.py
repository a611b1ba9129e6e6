"""``reshift info`` and ``reshift methods``."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from reshift.cli.shared import AsJson, BundlePath
from reshift.system.imports import heavy_imports


def info(bundle: BundlePath, as_json: AsJson = False) -> None:
    """Describe a bundle: method, training data, thresholds, settings."""
    with heavy_imports():
        from reshift.inference.bundle import load_bundle

    found = load_bundle(bundle)
    known: dict[str, Any] = {
        "method": found.config.method, "seed": found.config.seed, **found.facts, "model_sha256": found.fingerprint,
        "parameters": sum(p.numel() for p in found.detector.parameters()),
    }  # fmt: skip
    if found.features:
        known["features"] = {name: _features(bundle, name, about) for name, about in found.features.items()}
    if found.calibration is not None:
        chosen = found.calibration.reference
        known |= {"calibrated_on": f"{chosen.normals} ({found.calibration.default})"}
        known |= {"image_threshold": chosen.image_threshold, "pixel_threshold": chosen.pixel_threshold}
        known |= {"acquisition": _acquisition(found.calibration.acquisition), "warnings": found.calibration.warnings()}
    if as_json:
        typer.echo(json.dumps({**known, "config": found.config.model_dump(mode="json")}, indent=1))
        return
    for key, value in known.items():
        typer.echo(f"{key:16} {value}")


def methods(as_json: AsJson = False) -> None:
    """List the methods."""
    from reshift.methods import METHODS

    if as_json:
        typer.echo(json.dumps({name: _about(entry) for name, entry in METHODS.items()}, indent=1))
        return
    for name, entry in METHODS.items():
        typer.echo(f"{name:14} {entry.summary}")


def _about(entry: Any) -> dict[str, Any]:
    """What ``--json`` says of a method; ``no_export`` is why it cannot be exported."""
    return {"summary": entry.summary, "caveat": entry.caveat or None, "export": not entry.no_export,
            "no_export": entry.no_export or None}  # fmt: skip


def _features(bundle: Path, name: str, about: Mapping[str, str]) -> str:
    """Which weights of a pretrained network a bundle was made with."""
    from reshift.inference.features import embedded_path

    carried = ", in the bundle" if embedded_path(bundle, name).exists() else ""
    return f"{about['what']}, SHA-256 {about['sha256']}{carried}"


def _acquisition(known: Any) -> str:
    """How a bundle compares new images with its training images."""
    if known is None:
        return "not checked: too few training images"
    if known.features is None:
        return "by grey values; before training, pip install 'reshift[features]' adds image features"
    return f"by grey values and {known.features.network} features"
