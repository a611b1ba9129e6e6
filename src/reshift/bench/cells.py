"""A cell is one result of a benchmark: one method with its settings and one seed, on one data set.

Its key is a hash of everything that decides the result. Its file is complete or absent, and may come from another machine:
the key inside counts, not the file's name. Nothing here imports torch, because worker processes read this before they set
their number of threads.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from reshift.config import RUNTIME_SETTINGS, read_json
from reshift.methods import caveat
from reshift.system.files import atomic_text

KEY_FIELDS = ("config", "predict", "data", "seed", "code", "normative")  # everything that decides a result
SUITE_FIELDS = ("suite", "row", "group", "dataset", "trained_on", "setting")  # what a suite calls it


class Event(NamedTuple):
    """What an engine reports about one cell."""

    kind: Literal["started", "done", "failed", "cached"]
    cell: str
    seconds: float = 0.0
    detail: str = ""  # its main metrics, or why it failed
    rank: float | None = None  # the first of its main metrics; the highest rank is the best cell


@dataclass(frozen=True)
class Spec:
    """Everything that is known of a cell before it is run; plain values, so that it can be sent to another process."""

    suite: str
    row: str
    method: str
    group: str
    dataset: str
    trained_on: str
    seed: int
    setting: dict[str, Any] | None
    config: dict[str, Any]
    predict: dict[str, Any]  # the settings that differ from ``config`` during prediction
    normative: str | None  # the distance that tells how good restorations are, where that is asked
    data: str
    code: str
    model: str  # the hash of its trained model
    train_path: str
    test_path: str

    @property
    def name(self) -> str:
        """``<dataset>-<row>-<seed>``."""
        return cell_name(self.dataset, self.row, self.seed)

    @property
    def key(self) -> str:
        """The hash of everything that decides the result."""
        return key_of(vars(self))

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.name}-{self.key[:8]}.json"

    def record(self) -> dict[str, Any]:
        """Return the part of the cell's record that is known before it is run."""
        from reshift.data.manifest import data_caveat  # here: it imports numpy

        facts = {name: vars(self)[name] for name in (*SUITE_FIELDS, "method", *KEY_FIELDS)}
        caveats = {"caveat": caveat(self.method), "data_caveat": data_caveat(Path(self.test_path))}
        return {"key": self.key, **facts, "config": deciding_config(self.config), **caveats}


class Task(NamedTuple):
    """Cells that share a trained model, the folder of the benchmark, and what to keep there."""

    out: str
    cells: tuple[Spec, ...]
    keep_maps: int = 0  # abnormal test images of each cell whose heat-maps are kept, for figures
    stages: tuple[str, ...] = ()  # keys of trained stages that other tasks can take over; one of them trains, the others wait

    @property
    def folder(self) -> Path:
        """Where their model is trained."""
        return Path(self.out) / "models" / self.cells[0].model

    @property
    def trained(self) -> bool:
        """Whether their model is complete."""
        return (self.folder / "bundle" / "config.json").exists()


def cell_name(dataset: str, row: str, seed: int) -> str:
    """The name that people see; two suites may give one cell different names."""
    return f"{dataset}-{slug(row)}-{seed}"


def slug(text: str) -> str:
    """Return ``text`` as it may stand in a file name."""
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-.") or "row"


def key_of(facts: Mapping[str, Any]) -> str:
    """Hash what decides a result."""
    return digest({**{name: facts[name] for name in KEY_FIELDS}, "config": deciding_config(facts["config"])})


def deciding_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config without the settings that do not change the result."""
    kept = {table: {k: v for k, v in config[table].items() if k not in names} for table, names in RUNTIME_SETTINGS.items()}
    return {**config, **kept}


def digest(value: Any) -> str:
    """Hash plain values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def write_cell(out: Path, file: str, cell: Mapping[str, Any]) -> None:
    """Write one record with a line per field, so that it can be kept in a repository."""
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in cell.items())
    folder = out / "cells"
    folder.mkdir(parents=True, exist_ok=True)
    atomic_text(folder / file, f"{{\n{lines}\n}}\n")


def read_cells(out: Path) -> tuple[dict[Path, dict[str, Any]], list[str]]:
    """Read every complete record in ``out/cells``; return a warning for each of the other files, too."""
    found, warnings = dict[Path, dict[str, Any]](), list[str]()
    for path in sorted((out / "cells").glob("*.json")):
        try:
            cell = read_json(path.read_text(encoding="utf-8"))
            fault = _fault(cell)
        except (ValueError, OSError, KeyError, TypeError, AttributeError):
            fault = "damaged or incomplete"
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
    _ = [cell[name] for name in (*SUITE_FIELDS, "method")]
    return None if cell["key"] == key_of(cell) else "its key does not match its contents"


def write_failed_cell(out: Path, spec: Spec, error: str) -> None:
    """Record a cell that could not be computed; ``error`` is one line."""
    from reshift.evaluation.metrics.table import select_metrics  # here: it imports numpy

    cost = (metric.name for metric in select_metrics("cost"))
    empty = dict.fromkeys(("metrics", "paired", "thresholds", "map_scores", "training", *cost, "steps", "updates", "machine"))
    write_cell(out, spec.file, {**spec.record(), "status": "failed", "error": error, **empty, "date": today()})


def today() -> str:
    """The date, for readers; nothing depends on it."""
    return datetime.now(UTC).date().isoformat()
