"""Trained stages on disk, shared by runs that would train the same: methods on one network, variants that differ at inference.

A stage is found by a hash of everything that decides what it learns. The file says the same in words, and is not believed
unless it agrees: whoever copies or renames files here gets a line, not another model.
"""

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from reshift.errors import UserError
from reshift.system.files import atomic_bytes

FORMAT = 3  # raised when the same settings come to train something else


class Identity(NamedTuple):
    """All that decides what a stage learns, as plain JSON values, and its hash."""

    facts: dict[str, Any]
    key: str


class StageCost(NamedTuple):
    """What a run had spent when the stage was done."""

    seconds: float
    updates: int | None  # of the stage; None: as many as its settings say


def identity(module: nn.Module, **facts: Any) -> Identity:
    """Identify a stage by ``facts`` and by the names and shapes of the weights it leaves."""
    shapes = {name: list(value.shape) for name, value in module.state_dict().items()}
    whole = {"format": FORMAT, "torch": torch.__version__.partition("+")[0], **facts, "weights": shapes}
    text = json.dumps(whole, sort_keys=True)
    return Identity(json.loads(text), hashlib.blake2b(text.encode(), digest_size=16).hexdigest())


def load_stage(folder: Path, wanted: Identity, module: nn.Module) -> StageCost | None:
    """Put the stage's weights into ``module`` and return what its training took; None where there is no such stage."""
    path = folder / f"{wanted.key}.safetensors"
    try:
        if not path.is_file():
            return None
    except OSError:  # a folder that nobody may enter is no cache
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["about"])
            if (other := _first_difference(about["facts"], wanted.facts)) is not None:
                raise UserError(f"{path}: a cached stage of another config ({other}); delete it, or set train.cache=off")
            module.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 (not a dict)
            return StageCost(float(about["seconds"]), about.get("updates"))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as err:
        raise UserError(f"{path}: damaged cached stage ({str(err).splitlines()[0]}); delete it, or set train.cache=off") from None


def save_stage(folder: Path, made: Identity, module: nn.Module, cost: StageCost) -> None:
    """Keep a finished stage for others. Where that fails, a warning says so: the run itself does not need the cache."""
    weights = {name: value.detach().cpu().contiguous().clone() for name, value in module.state_dict().items()}
    about = json.dumps({"facts": made.facts, **cost._asdict()})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_bytes(folder / f"{made.key}.safetensors", save(weights, metadata={"about": about}))
    except (OSError, UserError) as err:
        cause = err if isinstance(err, OSError) else err.__cause__
        why = cause.strerror if isinstance(cause, OSError) else str(err)
        advice = "other runs will train it again; set train.cache to another folder, or off"
        warnings.warn(f"{folder}: the trained stage cannot be kept there ({why}); {advice}", stacklevel=2)


def _first_difference(theirs: Any, ours: Any, name: str = "") -> str | None:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted({*theirs, *ours}):
            if (found := _first_difference(theirs.get(key), ours.get(key), f"{name}.{key}" if name else key)) is not None:
                return found
        return None
    return None if theirs == ours else f"{name} is {theirs!r} there and {ours!r} here"
