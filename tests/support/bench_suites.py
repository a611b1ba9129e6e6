"""Small suites for the tests of ``reshift bench``."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reshift.bench.cells import Event, Task

SUITES = Path(__file__).parents[2] / "suites"
SMALLER = (
    ("size = 64", "size = 32"),
    (r"epochs = \d+", "epochs = 4"),
    ("images = 48", "images = 16"),
    (r"test_(\w+) = 16", r"test_\1 = 6"),
    (r"seeds = \[0, 1\]", "seeds = [0]"),
)
HEAD = """
name = "tiny"
profile = "quick"
[set]
data = { size = 32 }
calibrate = { features = "off" }
train = { batch = 8, checkpoint_seconds = 0.0 }
[datasets.brain]
phantom = { images = 16, test_normal = 4, test_abnormal = 4, size = 32, slices = 2 }
"""
BRIGHTNESS = '[[rows]]\nmethod = "brightness"\n'
DAE = '[[rows]]\nmethod = "dae"\nupdates = { epochs = 6 }\nset = { model = { widths = [4, 8] } }\n'
SWEEP = """
[[sweeps]]
method = "dae"
label = "DAE"
setting = "model.map"
values = ["absolute", "squared"]
inference = true
updates = { epochs = 6 }
set = { model = { widths = [4, 8] } }
"""
LONG, LONG_SWEEP = (text.replace("epochs = 6", "epochs = 60") for text in (DAE, SWEEP))  # to be interrupted
IMPOSSIBLE = '[[rows]]\nlabel = "Impossible"\nmethod = "dae"\nset = { model = { widths = [4, 8, 8, 8, 8, 8, 8] } }\n'


def smaller_smoke(folder: Path) -> Path:
    """``suites/smoke.toml`` in seconds instead of minutes."""
    text = (SUITES / "smoke.toml").read_text()
    for pattern, smaller in SMALLER:
        text, times = re.subn(pattern, smaller, text)
        assert times, f"smoke.toml has no {pattern}"
    return write_suite(folder, text)


TINY = (
    (r'^profile = "paper"', 'profile = "quick"'),
    (r"holdout = 0.0", "holdout = 0.0, size = 32"),
    (r"(\w*epochs) = [0-9_]+", r"\1 = 1"),
    (r'reference = "training"', 'reference = "training", training_sample = 2'),
    (r"stride = 5 ", "stride = 125 "),
    (r'"(tinyvit-sam|dinov2-small)"', '"efficientnet-lite0"'),  # the others would have to be pulled
    (r"(values|at) = \[((?:[^,]+, ){2}[^,]+), .+\]", r"\1 = [\2]"),
    (r'^(method = "(ddpm|anoddpm|autoddpm|thor-.*)")$', r"\1\nset = { model = { stride = 50, widths = [16, 32] } }"),
    (r"^set = \{ model = \{ stride = 1 \} \}.*$", "set = { model = { stride = 100, widths = [16, 32] } }"),
)


def tiny_suite(folder: Path, name: str, *changes: tuple[str, str]) -> Path:
    """A suite of this repository with every row, but small images and networks, one update per stage, three values per sweep."""
    text = (SUITES / f"{name}.toml").read_text()
    for pattern, smaller in (*TINY, *changes):
        text = re.sub(pattern, smaller, text, flags=re.MULTILINE)
    return write_suite(folder, text)


def write_suite(folder: Path, *parts: str) -> Path:
    path = folder / "suite.toml"
    path.write_text("\n".join(parts))
    return path


def cells_in(out: Path) -> dict[str, dict[str, Any]]:
    """Every cell by file name."""
    return {path.name: json.loads(path.read_text()) for path in sorted((out / "cells").glob("*.json"))}


def results_in(out: Path) -> dict[str, Any]:
    """What two equal runs have in common, to the bit."""
    found = cells_in(out)
    for cell in found.values():
        if cell["metrics"]:
            cell["metrics"].pop("seconds")
    return {name: [cell[part] for part in ("key", "status", "metrics", "paired", "steps")] for name, cell in found.items()}


def times(folder: Path) -> dict[Path, int]:
    """When each file was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def run_in_process(tasks: Sequence[Task], _workers: int, _device: str, report: Callable[[Event], object]) -> None:
    """Take the place of the local engine: to start a worker takes seconds, and most tests are not about workers."""
    from reshift.bench.compute import run_task

    for task in tasks:
        run_task(task, "cpu", report)
