"""``reshift push``: a bundle with its checksums and card to the hub or to a folder."""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reshift.config import read_json
from reshift.errors import UserError
from reshift.exchange.card import card
from reshift.exchange.files import CHECKSUMS, FILES, list_files
from reshift.exchange.hub import upload
from reshift.exchange.places import Place
from reshift.inference.bundle import load_bundle
from reshift.system.files import atomic_json, writing


def push(bundle: Path, place: Place, metrics: Path | None = None, *, licence: str | None = None, private: bool = False) -> None:
    """Check the bundle, write its card and checksums aside, and send the whole. The bundle itself is not changed."""
    if place.kind == "url":
        raise UserError(f"{place.name}: a plain address cannot be pushed to; push to a folder, and copy it to your server")
    found = load_bundle(bundle)
    measured = _read_metrics(metrics, found.fingerprint) if metrics is not None else None
    with tempfile.TemporaryDirectory() as aside:
        folder = Path(aside)
        for name in FILES:
            if (bundle / name).is_file():
                shutil.copyfile(bundle / name, folder / name)
        own = folder / "README.md"
        text = own.read_text() if own.is_file() else "# Reshift bundle\n"
        own.write_text(card(text, found.config, measured, licence))
        atomic_json(folder / CHECKSUMS, list_files(folder))
        if place.kind == "hub":
            upload(place, folder, private=private)
        else:
            _copy(folder, Path(place.name))


def _copy(folder: Path, target: Path) -> None:
    """The list comes last: without it, nobody takes a half-written copy for a bundle."""
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
        (target / CHECKSUMS).unlink(missing_ok=True)
        for path in sorted(folder.iterdir(), key=lambda path: path.name == CHECKSUMS):
            shutil.copyfile(path, target / path.name)


def _read_metrics(path: Path, fingerprint: str) -> Mapping[str, Any]:
    try:
        found = read_json(path.read_bytes())
        theirs, _ = found.get("model_sha256"), found["dataset"]
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        raise UserError(f"{path}: not a metrics.json of 'reshift evaluate'") from None
    if theirs != fingerprint:
        raise UserError(f"{path}: metrics of another model; evaluate this bundle")
    return dict(found)
