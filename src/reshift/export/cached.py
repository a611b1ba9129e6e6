"""A bundle's copy for ONNX Runtime in the cache folder: made once, checked like every export, found again by content."""

import hashlib
import json
import os
import platform
import shutil
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import reshift
from reshift import methods
from reshift.config import read_json
from reshift.errors import UserError
from reshift.inference.bundle import Bundle
from reshift.inference.exported.load import ABOUT, ExportedDetector, load_exported, require
from reshift.system.cache import VARIABLE, cache_folder
from reshift.system.files import writing
from reshift.system.lock import locked

# What brings the converter with it is imported inside functions: to find a conversion takes no more than a hash.
FOLDER = "converted"  # in the cache folder
CODE = ("core", "nets", "methods", "export")  # what decides how a bundle becomes a graph


def check_convertible(path: Path, bundle: Bundle) -> None:
    """Refuse, before any work is done, what cannot be converted or kept."""
    from reshift.export.folder import check_exportable
    from reshift.export.formats import check_packages

    check_packages("onnx")
    _conversions()
    if bundle.config.method not in methods.METHODS:
        why = "is code outside reshift, which can change unnoticed; use 'reshift export'"
        raise UserError(f"{path}: method '{bundle.config.method}' {why}")
    check_exportable(path, bundle)


def find_conversion(bundle: Bundle) -> ExportedDetector | None:
    """The detector of a conversion made before; None without one, or where it is damaged."""
    require("onnxruntime")
    folder = _conversions() / conversion_key(bundle)
    try:
        return _load(folder, bundle) if folder.is_dir() else None
    except (UserError, OSError):
        return None


def make_conversion(path: Path, bundle: Bundle) -> ExportedDetector:
    """Convert the bundle in ``path``, which ``bundle`` was read from. Where that is refused or fails, nothing is left."""
    from reshift.export.folder import export

    check_convertible(path, bundle)
    home = _conversions()
    with writing(home):
        home.mkdir(parents=True, exist_ok=True)
    with locked(home, wait=True):
        _remove_leftovers(home)
        if (found := find_conversion(bundle)) is not None:  # made by another process meanwhile
            return found
        folder = home / conversion_key(bundle)
        shutil.rmtree(folder, ignore_errors=True)  # damaged
        export(path, "onnx", folder)
        try:
            return _load(folder, bundle)
        except UserError:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def conversion_key(bundle: Bundle) -> str:
    """A hash of all that decides what a conversion says, and whether it passes: bundle, packages and our own code."""
    features = {name: dict(about) for name, about in bundle.features.items()}
    parts = [bundle.fingerprint, bundle.config.model_dump_json(), json.dumps(features, sort_keys=True)]
    parts += [bundle.calibration.model_dump_json() if bundle.calibration else ""]
    parts += [torch.__version__, _version("onnxruntime"), platform.machine(), _code()]
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def _conversions() -> Path:
    """The folder of all conversions."""
    cache = cache_folder("auto")
    if cache is None:
        raise UserError(f"{VARIABLE}=off: a converted bundle has no place; set it to a folder, or unset it")
    return cache / FOLDER


def _load(folder: Path, bundle: Bundle) -> ExportedDetector:
    """The detector, if the folder was made of this bundle: somebody may calibrate it anew while it is converted."""
    found = load_exported(folder)
    pairs = ((found.config, bundle.config), (found.calibration, bundle.calibration))
    same = read_json((folder / ABOUT).read_bytes())["bundle_sha256"] == bundle.fingerprint
    if not same or any(a is None or b is None or a.model_dump() != b.model_dump() for a, b in pairs):
        raise UserError("the bundle has changed while it was converted; run it again")
    assert isinstance(found.detector, ExportedDetector)
    for file in folder.iterdir():  # used now, which 'reshift cache prune' looks at
        with suppress(OSError):
            os.utime(file)
    return found.detector


def _remove_leftovers(home: Path) -> None:
    """What a killed process was writing; nobody else writes while we hold the lock."""
    for path in home.glob(".*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # its package for other hardware has another name
        return ""


def _code() -> str:
    """A hash of our source: one per release, and a checkout that is worked on does not take what it converted before."""
    root, digest = Path(reshift.__file__).parent, hashlib.blake2b(digest_size=16)
    for path in sorted(file for name in CODE for file in (root / name).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
