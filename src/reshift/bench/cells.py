"""A cell is one result: a method with its settings and seed on one data set. A pure function, and so known by a hash.

Its file is written whole or not at all, and may be copied from another machine: what counts is the key inside, not the name.
"""

import hashlib
import json
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from errno import EDQUOT, EFBIG, ENOSPC
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from reshift.bench.events import Event
from reshift.errors import Stopped, UserError, reason
from reshift.methods import caveat
from reshift.system.files import atomic_text

# Settings of [train] that decide where and how fast, but not what is learned: other machines may differ in them.
FREE = ("cache", "device", "log_every", "checkpoint_seconds", "tensorboard")
FACTS = ("config", "predict", "data", "seed", "code", "normative")  # all that decides a result
SHOWN_AS = ("suite", "row", "group", "dataset", "trained_on", "setting")  # what a suite calls it


class DiskFullError(UserError):
    """No room: every other cell would fail for the same reason, so the run stops; what is finished stays."""


@dataclass(frozen=True)
class Spec:
    """All that is known of a cell before it is run; plain values, so that it can be sent to another process."""

    suite: str
    row: str
    method: str
    group: str
    dataset: str
    trained_on: str
    seed: int
    setting: dict[str, Any] | None
    config: dict[str, Any]
    predict: dict[str, Any]  # what differs from ``config`` when predicting
    normative: bool
    data: str
    code: str
    model: str  # the hash of its trained model
    train_path: str
    test_path: str

    @property
    def name(self) -> str:
        """``<dataset>-<row>-<seed>``."""
        return f"{self.dataset}-{slug(self.row)}-{self.seed}"

    @property
    def key(self) -> str:
        """The hash of all that decides the result."""
        return key_of(vars(self))

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.name}-{self.key[:8]}.json"

    def about(self) -> dict[str, Any]:
        """Return the part of the record that is known before the cell is run."""
        facts = {name: vars(self)[name] for name in (*SHOWN_AS, "method", *FACTS)}
        return {"key": self.key, **facts, "config": deciding(self.config), "caveat": caveat(self.method)}


class Task(NamedTuple):
    """Cells that share a trained model, and the folder of the benchmark."""

    out: str
    cells: tuple[Spec, ...]

    @property
    def folder(self) -> Path:
        """Where their model is trained."""
        return Path(self.out) / "models" / self.cells[0].model


def slug(text: str) -> str:
    """A name that is safe in a file name."""
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-.") or "row"


def key_of(facts: Mapping[str, Any]) -> str:
    """Hash what decides a result."""
    return digest({**{name: facts[name] for name in FACTS}, "config": deciding(facts["config"])})


def deciding(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config without what only says where and how fast."""
    return {**config, "train": {k: v for k, v in config["train"].items() if k not in FREE}}


def digest(value: Any) -> str:
    """The hash of plain values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


# ---- files ---------------------------------------------------------------------------------------------------------


def write_cell(out: Path, file: str, cell: Mapping[str, Any]) -> None:
    """Write one record, a line per entry: short enough to be kept in a repository."""
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in cell.items())
    folder = out / "cells"
    folder.mkdir(parents=True, exist_ok=True)
    atomic_text(folder / file, f"{{\n{lines}\n}}\n")


def read_cells(out: Path) -> tuple[dict[Path, dict[str, Any]], list[str]]:
    """Every whole record below ``out/cells``, and a line about each file that is none."""
    found, warnings = dict[Path, dict[str, Any]](), list[str]()
    for path in sorted((out / "cells").glob("*.json")):
        try:
            cell = json.loads(path.read_text(encoding="utf-8"))
            fault = _fault(cell)
        except (ValueError, OSError, KeyError, TypeError, AttributeError):
            fault = "damaged, not a whole cell"
        if fault:
            warnings.append(f"{path}: {fault}; left out, and run again if the suite has it")
        else:
            found[path] = cell
    return found, warnings


def _fault(cell: dict[str, Any]) -> str | None:
    if cell["status"] not in ("done", "failed"):
        raise KeyError
    if cell["status"] == "done":
        _ = cell["metrics"]["image"], cell["metrics"]["pixel"], cell["paired"]["scores"]
    _ = [cell[name] for name in (*SHOWN_AS, "method")]
    return None if cell["key"] == key_of(cell) else "its key is not that of its contents"


def failed(spec: Spec, error: str) -> dict[str, Any]:
    """The record of a cell that could not be computed."""
    line = " ".join(error.split())
    empty = dict.fromkeys(("metrics", "paired", "train_seconds", "images_per_second", "steps", "machine"))
    return {**spec.about(), "status": "failed", "error": line, **empty, "date": today()}


def today() -> str:
    """The date, for the reader; nothing is decided by it."""
    return datetime.now(UTC).date().isoformat()


# ---- work ----------------------------------------------------------------------------------------------------------


def run_task(task: Task, device: str = "auto", tell: Callable[[Event], object] = lambda _: None) -> None:
    """Train what is not trained yet, evaluate every cell and write it. A cell that fails says why; the rest goes on."""
    from reshift.bench.work import evaluated, free_memory, trained

    out, begun = Path(task.out), time.monotonic()
    tell(Event("started", task.cells[0].name))
    error = _attempt(task, lambda: trained(task, device))
    for i, spec in enumerate(task.cells):
        if i > 0:
            tell(Event("started", spec.name))
        cell = error or _attempt(task, partial(evaluated, task, spec, device))
        if isinstance(cell, str):
            cell = failed(spec, cell)
        write_cell(out, spec.file, cell)
        done = cell["status"] == "done"
        tell(Event("done" if done else "failed", spec.name, time.monotonic() - begun, figure(cell) if done else cell["error"]))
        begun = time.monotonic()
    free_memory()


def _attempt(task: Task, work: Callable[[], Any]) -> Any:
    """What ``work`` returns, or one line about why it failed; a full disk or a wish to stop is no failure of the cell."""
    try:
        return work()
    except Stopped:
        raise
    except Exception as err:
        if disk_full(err):
            plain = f"{task.out}: could not be written ({reason(err)}); make room, and run it again"
            raise DiskFullError(str(err) if isinstance(err, UserError) else plain) from err
        with suppress(OSError):
            traceback.print_exc(file=sys.stderr)
        return reason(err).strip() or type(err).__name__


def disk_full(err: BaseException | None) -> bool:
    """Whether a lack of room is behind ``err``."""
    while err is not None:
        if isinstance(err, OSError) and err.errno in (ENOSPC, EDQUOT, EFBIG):
            return True
        err = err.__cause__ or err.__context__
    return False


def figure(cell: Mapping[str, Any]) -> str:
    """Image AUC and pixel AP in a few characters."""
    values = (("AUC", cell["metrics"]["image"].get("auc")), ("AP", cell["metrics"]["pixel"].get("ap")))
    return ", ".join(f"{name} {value:.3f}" for name, value in values if value is not None)
