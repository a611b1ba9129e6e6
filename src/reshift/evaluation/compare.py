"""Several methods on the same test images: their metrics with intervals, and paired tests against the first method."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.errors import UserError
from reshift.evaluation.metrics.confidence import Paired, delong, paired_image, paired_pixels
from reshift.evaluation.metrics.table import METRICS, Metric, select_metrics
from reshift.evaluation.results import Results, load_results, subject_pixels
from reshift.methods import caveat

LEVELS = ("image", "pixel")


class Run(NamedTuple):
    """One evaluation of the comparison."""

    label: str
    results: Results
    scores: NDArray[np.float64]  # of the shared images, in the shared order


class Comparison(NamedTuple):
    """Evaluations of one test set, and the images that all of them have."""

    runs: list[Run]
    images: list[str]
    table: dict[str, Any]  # the content of compare.json


def compare(folders: Sequence[Path]) -> Comparison:
    """Read the evaluations and compare each with the first."""
    runs, names = _load(folders)
    rows = [_row(run) for run in runs]
    for row, run in zip(rows[1:], runs[1:], strict=True):
        row |= {"against": runs[0].label, "paired": _paired(runs[0], run, names)}
    table = {"dataset": " / ".join(_datasets(runs)), "images": len(names), "runs": rows, "warnings": _warnings(runs, names)}
    return Comparison(runs, names, table)


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
        if len({cases[name]["label"] for cases in by_name}) > 1:
            raise UserError(f"{name} is normal in one evaluation and abnormal in another; compare evaluations of one test set")
    scores = [np.array([cases[name]["score"] for name in names]) for cases in by_name]
    return [Run(*parts) for parts in zip(_labels(found, folders), found, scores, strict=True)], names


def _labels(found: Sequence[Results], folders: Sequence[Path]) -> list[str]:
    """The method's name, and the folder's too where two runs share a method."""
    count = Counter(results.name for results in found)
    labels = [r.name if count[r.name] == 1 else f"{r.name} ({f})" for r, f in zip(found, folders, strict=True)]
    if len(set(labels)) < len(labels):
        raise UserError("one evaluation is given twice; name each folder once")
    return labels


def _row(run: Run) -> dict[str, Any]:
    metrics = run.results.metrics
    row: dict[str, Any] = {"label": run.label, "method": metrics["method"], "seed": metrics.get("seed")}
    for level in LEVELS:
        shown = select_metrics(level, place="tables")
        row[level] = {m.name: {"value": m.read(metrics), "interval": m.read_interval(metrics)} for m in shown}
    return row


def _paired(first: Run, other: Run, names: Sequence[str]) -> dict[str, Any]:
    """Differences other - first on the shared images: DeLong for AUC, a bootstrap over subjects for the rest."""
    cases = {str(case["input"]): case for case in first.results.cases}
    labels = np.array([cases[name]["label"] == 1 for name in names])
    subjects = [str(cases[name]["subject"]) for name in names]
    thresholds = [METRICS["image.threshold"].read(run.results.metrics) for run in (other, first)]
    a, b = subject_pixels(other.results), subject_pixels(first.results)
    whole = len(first.results.cases) == len(other.results.cases) == len(names)  # pixel counts are of all cases, not of some

    def test(metric: Metric) -> Paired | None:
        if metric.samples is None:
            return None
        if metric.level == "pixel":
            return paired_pixels(a, b, metric.name) if whole and a and b and a.subjects == b.subjects else None
        if metric.delong:
            return delong(labels, other.scores, first.scores)
        return paired_image(labels, other.scores, first.scores, subjects, thresholds[0], thresholds[1], metric.name)

    found = {level: {m.name: test(m) for m in select_metrics(level, place="tables")} for level in LEVELS}
    return {level: {name: test and test._asdict() for name, test in tests.items()} for level, tests in found.items()}


def _warnings(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    out = [
        f"{run.label} was evaluated on {len(run.results.cases)} images; only the {len(names)} shared ones enter the paired tests"
        for run in runs
        if len(run.results.cases) != len(names)
    ]
    out += dict.fromkeys(text for run in runs if (text := caveat(run.results.metrics["method"])))
    datasets = _datasets(runs)
    return out + ([f"the evaluations have different data set names: {', '.join(datasets)}"] if len(datasets) > 1 else [])


def _datasets(runs: Sequence[Run]) -> list[str]:
    return sorted({str(run.results.metrics.get("dataset")) for run in runs})
