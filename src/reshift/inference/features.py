"""The pretrained networks of a bundle: recorded by hash, carried along if wanted, and found again before the bundle is used."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from reshift.errors import UserError
from reshift.system.files import atomic_bytes
from reshift.weights.convert import convert
from reshift.weights.find import SUFFIX, Found, find, in_use, known_variant, local_file, missing, use
from reshift.weights.registry import ENTRIES, Hub

FOLDER = "features"
Records = Mapping[str, Mapping[str, str]]


def record(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """What a bundle says about the networks that its detector uses."""
    found = [in_use(name) for name in names]
    return {f.name: {"architecture": f.architecture, "sha256": f.sha256, "what": f.what} for f in found}


def embed(bundle: Path, names: Iterable[str]) -> None:
    """Put the weights of the networks into the bundle, which then needs nothing else."""
    for name in names:
        found = in_use(name)
        (bundle / FOLDER).mkdir(exist_ok=True)
        atomic_bytes(embedded_path(bundle, name), convert(found.path, found.architecture, found.sha256))


def embedded_path(bundle: Path, name: str) -> Path:
    """Where a bundle carries the weights of ``name``, which may be a path."""
    return bundle / FOLDER / f"{Path(name).name.removesuffix(SUFFIX)}{SUFFIX}"


def parse_records(value: Any) -> Records:
    """Check what config.json says; bundles without features say nothing."""
    table: Any = {} if value is None else value
    if not isinstance(table, dict) or not all(isinstance(about, dict) for about in table.values()):
        raise UserError("its table of features is damaged; copy the bundle again")
    if not all(isinstance(about.get(key), str) for about in table.values() for key in ("sha256", "what")):
        raise UserError("its table of features is damaged; copy the bundle again")
    return table


def require(bundle: Path, records: Records) -> None:
    """Find the networks that the bundle was made with, its own copies first; refuse others."""
    for name, about in records.items():
        if os.path.lexists(embedded_path(bundle, name)):
            use(_embedded(bundle, name, about["sha256"]))
            continue
        try:
            found = find(name, about["sha256"])
        except UserError:
            needs = f"made with the weights {about['sha256'][:12]}… of {name} ({about['what']}), which are not on this machine"
            raise UserError(f"{bundle}: {needs}; {_remedy(name, about['sha256'])}") from None
        use(found)


def _embedded(bundle: Path, name: str, sha256: str) -> Found:
    path = embedded_path(bundle, name)
    found = local_file(str(path))
    variant = known_variant(ENTRIES[name], found.sha256) if name in ENTRIES else None
    same = variant.sha256 if variant else found.sha256 if name not in ENTRIES else None  # a known name has known weights only
    if same != sha256:
        raise UserError(f"{path}: damaged, or not the weights that config.json names; copy the bundle again")
    return Found(name, found.architecture, path, sha256, variant.what if variant else "a local file")


def _remedy(name: str, sha256: str) -> str:
    """How to get exactly these weights."""
    if name.endswith(SUFFIX):
        return "copy that file here, or train with --embed"
    variant = known_variant(ENTRIES[name], sha256) if name in ENTRIES else None
    if variant is None:
        return "this version of reshift does not know them; train again, or with --embed there"
    if not variant.sources:
        return missing(name)
    kinds = {"hub" if isinstance(place, Hub) else "index" for place in variant.sources}
    source = f" --source {kinds.pop()}" if len(kinds) == 1 and len(ENTRIES[name].variants) > 1 else ""
    return f"get them with: reshift weights pull {name}{source}"


def summary(names: Iterable[str]) -> str | None:
    """One line for whoever trains: which networks are used, and which stronger ones are a command away."""
    used = [in_use(name) for name in names]
    if not used:
        return None
    line = "features: " + ", ".join(f"{found.name} ({found.sha256[:12]}…, {found.what})" for found in used)
    if any(found.name != "efficientnet-lite0" for found in used):
        return line
    others = [name for name, known in ENTRIES.items() if name != "efficientnet-lite0" and not known.distance]
    return f"{line}; others, often stronger: reshift weights pull {'|'.join(others)}, then --set model.features=NAME"
