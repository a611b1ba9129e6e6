"""``reshift compare``: several methods on the same test images as JSON, Markdown and one page with maps side by side."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from reshift.evaluation.compare import LEVELS, Comparison, compare
from reshift.evaluation.metrics.table import METRICS, Metric, select_metrics
from reshift.evaluation.results import Results, case_arrays, choose_cases
from reshift.inference.overlay import colours
from reshift.reports import page
from reshift.system.files import atomic_json, atomic_text
from reshift.system.lock import output_folder

SHOWN = 48  # cases; more would only make the file large


def write_comparison(folders: Sequence[Path], out: Path) -> dict[str, Any]:
    """Write ``compare.json``, ``compare.md`` and ``compare.html``; return the first. Tests are against the first folder."""
    comparison = compare(folders)
    with output_folder(out):
        atomic_json(out / "compare.json", comparison.table)
        atomic_text(out / "compare.md", markdown(comparison.table))
        atomic_text(out / "compare.html", comparison_page(comparison))
    return comparison.table


def markdown(table: Mapping[str, Any]) -> str:
    """The table as Markdown; a metric with its 95 % interval, and the p-value of its difference to the first row."""
    metrics = _metrics()
    lines = [
        f"# {table['dataset']}: {table['images']} test images",
        "",
        "| method | " + " | ".join(metric.caption for metric in metrics) + " |",
        "|---" * (len(metrics) + 1) + "|",
    ]
    lines += [f"| {row['label']} | " + " | ".join(_cell(row, metric) for metric in metrics) + " |" for row in table["runs"]]
    first = table["runs"][0]["label"]
    note = f"p: two-sided test of the difference to {first} on the same images (AUC: DeLong; others: bootstrap over subjects)."
    return "\n".join([*lines, "", note, *(f"\n**Warning:** {text}" for text in table["warnings"])]) + "\n"


def comparison_page(comparison: Comparison) -> str:
    """The page as text."""
    metrics = _metrics()
    return page.fill(
        "compare.html",
        table=comparison.table,
        labels=[run.label for run in comparison.runs],
        headings=[metric.caption for metric in metrics],
        rows=[(row["label"], [_cell(row, metric) for metric in metrics]) for row in comparison.table["runs"]],
        cases=_cases(comparison),
    )


def _metrics() -> list[Metric]:
    return select_metrics(*LEVELS, place="tables")


def _cell(row: Mapping[str, Any], metric: Metric) -> str:
    """One metric as text."""
    value, interval = row[metric.level][metric.name].values()
    paired = (row.get("paired") or {}).get(metric.level, {}).get(metric.name)
    if value is None:
        return "–"
    text = f"{value:.3f}" + (f" ({interval[0]:.3f}–{interval[1]:.3f})" if interval else "")
    if not paired:
        return text
    return f"{text}, p {'< 0.001' if paired['p_value'] < 0.001 else '= ' + format(paired['p_value'], '.3f')}"


def _cases(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """The cases that the page shows: name, label, scores and images."""
    runs = comparison.runs
    by_name = [{str(case["input"]): case for case in run.results.cases} for run in runs]
    for name in _choose(comparison):
        arrays = [case_arrays(run.results, cases[name]) for run, cases in zip(runs, by_name, strict=True)]
        maps = [
            (f"map of {run.label}", colours(np.clip(found.heatmap / _scale(run.results), 0, 1)))
            for run, found in zip(runs, arrays, strict=True)
        ]
        mask = arrays[0].mask if arrays[0].mask is not None else np.zeros(arrays[0].image.shape, dtype=bool)
        images = [("input", arrays[0].image), *maps, ("ground truth", mask.astype(np.uint8) * 255)]
        yield {
            "name": name,
            "kind": "abnormal" if by_name[0][name]["label"] == 1 else "normal",
            "scores": ", ".join(f"{run.label} {cases[name]['score']:.4g}" for run, cases in zip(runs, by_name, strict=True)),
            "images": [(caption, page.encode(Image.fromarray(pixels))) for caption, pixels in images],
        }


def _choose(comparison: Comparison) -> list[str]:
    """Abnormal cases, largest lesion first, then some normal ones; the same on every call."""
    found = [run.results for run in comparison.runs]
    shared, stored = set(comparison.images), [{str(c["input"]) for c in results.cases if c.get("arrays")} for results in found]
    normal = [str(c["input"]) for c in found[0].cases if c["label"] == 0 and c["input"] in shared]
    normal = [name for name in normal if all(name in arrays for arrays in stored)]
    return choose_cases(found, SHOWN * 3 // 4)[::-1] + normal[:: max(1, -(-len(normal) * 4 // SHOWN))]


def _scale(results: Results) -> float:
    """The map value of full colour: twice the calibrated pixel threshold."""
    threshold = METRICS["pixel.threshold"].read(results.metrics) or 0.0
    return 2 * threshold if threshold > 0 else 1.0
