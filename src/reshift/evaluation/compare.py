"""``reshift compare``: several methods on the same test images: one table with intervals, paired tests, maps side by side."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.errors import UserError
from reshift.evaluation.metrics.confidence import delong, paired_image, paired_pixels
from reshift.evaluation.results import Results, load_results, subject_pixels
from reshift.methods import caveat
from reshift.reports.comparison import IMAGE_FIGURES, PIXEL_FIGURES, markdown, page
from reshift.system.files import atomic_json, atomic_text, writable_folder


class Run(NamedTuple):
    """One row of the comparison."""

    label: str
    results: Results
    scores: NDArray[np.float64]  # of the shared images, in the shared order


def compare(folders: Sequence[Path], out: Path) -> dict[str, Any]:
    """Write ``compare.json``, ``compare.md`` and ``compare.html``; return the first. Tests are against the first run."""
    runs, names = _load(folders)
    writable_folder(out)
    first = runs[0]
    rows = [
        _row(run) | ({"against": first.label, "paired": _paired(first, run, names)} if run is not first else {}) for run in runs
    ]
    datasets = {str(run.results.metrics.get("dataset")) for run in runs}
    table = {"dataset": " / ".join(sorted(datasets)), "images": len(names), "runs": rows, "warnings": _warnings(runs, names)}
    atomic_json(out / "compare.json", table)
    atomic_text(out / "compare.md", markdown(table))
    atomic_text(out / "compare.html", page(table, [(run.label, run.results) for run in runs], names))
    return table


def _load(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Read all evaluations and keep the test images they share, in the first one's order."""
    found = [load_results(folder / "evaluation" if (folder / "evaluation").is_dir() else folder) for folder in folders]
    if len(found) < 2:
        raise UserError("compare needs at least two evaluation folders")
    by_name = [{str(case["input"]): case for case in results.cases} for results in found]
    names = [name for name in by_name[0] if all(name in cases for cases in by_name[1:])]
    if not names:
        raise UserError(f"{folders[0]} and {folders[1]} have no test image in common; compare evaluations of one test set")
    for name in names:
        labels = {cases[name]["label"] for cases in by_name}
        if len(labels) > 1:
            raise UserError(f"{name} is normal in one evaluation and abnormal in another; compare evaluations of one test set")
    scores = [np.array([cases[name]["score"] for name in names]) for cases in by_name]
    labels_ = _labels(found, folders)
    return [Run(*triple) for triple in zip(labels_, found, scores, strict=True)], names


def _labels(found: Sequence[Results], folders: Sequence[Path]) -> list[str]:
    """The method's name, and the folder's too where two runs share a method."""
    count = Counter(results.name for results in found)
    labels = [r.name if count[r.name] == 1 else f"{r.name} ({f})" for r, f in zip(found, folders, strict=True)]
    if len(set(labels)) < len(labels):
        raise UserError("one evaluation is given twice; name each folder once")
    return labels


def _row(run: Run) -> dict[str, Any]:
    metrics = run.results.metrics
    intervals = metrics.get("intervals") or {}
    row: dict[str, Any] = {"label": run.label, "method": metrics["method"], "seed": metrics.get("seed")}
    for level, figures in (("image", IMAGE_FIGURES), ("pixel", PIXEL_FIGURES)):
        known = intervals.get(level) or {}
        row[level] = {name: {"value": metrics[level].get(name), "interval": known.get(name)} for name in figures}
    return row


def _paired(first: Run, other: Run, names: Sequence[str]) -> dict[str, Any]:
    """Differences other - first on the shared images: DeLong for AUC, a bootstrap over subjects for the rest."""
    cases = {str(case["input"]): case for case in first.results.cases}
    labels = np.array([cases[name]["label"] == 1 for name in names])
    subjects = [str(cases[name]["subject"]) for name in names]
    first_limit, other_limit = (run.results.metrics["image"].get("threshold") for run in (first, other))
    image = {"auc": delong(labels, other.scores, first.scores)}
    for name in IMAGE_FIGURES[1:]:
        image[name] = paired_image(labels, other.scores, first.scores, subjects, other_limit, first_limit, name)
    a, b = subject_pixels(other.results), subject_pixels(first.results)
    whole = len(first.results.cases) == len(other.results.cases) == len(names)  # pixel counts are of all cases, not of some
    same = whole and a is not None and b is not None and a.subjects == b.subjects
    pixel = {name: paired_pixels(a, b, name) if same and a and b else None for name in PIXEL_FIGURES}
    plain = {
        level: {k: v._asdict() if v else None for k, v in found.items()} for level, found in (("image", image), ("pixel", pixel))
    }
    return json.loads(json.dumps(plain))  # type: ignore[no-any-return]


def _warnings(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    out = [
        f"{run.label} was evaluated on {len(run.results.cases)} images; only the {len(names)} shared ones enter the paired tests"
        for run in runs
        if len(run.results.cases) != len(names)
    ]
    out += dict.fromkeys(text for run in runs if (text := caveat(run.results.metrics["method"])))
    datasets = {str(run.results.metrics.get("dataset")) for run in runs}
    return out + (["the evaluations carry different data set names: " + ", ".join(sorted(datasets))] if len(datasets) > 1 else [])
