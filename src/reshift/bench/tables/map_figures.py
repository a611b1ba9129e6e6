"""Figures of heat-maps, pixel histograms and embeddings, from the evaluations that ``--keep-maps`` left; nothing is predicted."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from reshift.bench.cells import slug
from reshift.bench.suite import Figures
from reshift.bench.tables.summary import Cell
from reshift.errors import UserError
from reshift.evaluation.results import Results, load_results
from reshift.reports.figures.maps import pixel_histogram, qualitative_sets
from reshift.reports.figures.paper import tsne_sets

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_ROWS = 8  # of the tables, in one figure, unless the suite names them
MAX_PANELS = 5  # data sets, in one figure of embeddings

Runs = dict[str, dict[str, Results]]  # data set → row → the evaluation of its first seed


def map_figures(cells: Sequence[Cell], evaluations: Path, wanted: Figures) -> dict[str, "Figure"]:
    """Every figure that the kept evaluations allow, by name; one line on stderr says why another could not be drawn."""
    runs = _find_runs(cells, evaluations, wanted)
    makers: dict[str, Callable[[], Figure]] = {}
    if rows := _common_rows(runs):
        sets = {dataset: [found[row] for row in rows] for dataset, found in runs.items()}
        makers["qualitative"] = partial(qualitative_sets, sets, rows, wanted.cases)
    for dataset, found in runs.items():
        if any((run.folder / "pixels.npz").exists() for run in found.values()):
            makers[f"pixel-histogram-{dataset}"] = partial(pixel_histogram, list(found.values()))
    ours = {str(cell["row"]) for cell in cells if cell["group"] == "ours"}
    for row in dict.fromkeys(row for found in runs.values() for row in found if row in ours):
        embedded = [found[row] for found in runs.values() if row in found and (found[row].folder / "features.npy").exists()]
        if embedded:
            makers[f"tsne-{slug(row)}"] = partial(tsne_sets, embedded[:MAX_PANELS])
    drawn: dict[str, Figure] = {}
    for name, make in makers.items():
        try:
            drawn[name] = make()
        except UserError as err:
            print(f"no figure {name}: {err}", file=sys.stderr)
    return drawn


def _find_runs(cells: Sequence[Cell], evaluations: Path, wanted: Figures) -> Runs:
    """The evaluations with maps of the wanted rows and data sets, in the order of the tables."""
    main = dict.fromkeys(str(cell["row"]) for cell in cells if cell["group"] in ("baseline", "ours"))
    rows = wanted.rows or list(main)[-MAX_ROWS:]
    found: Runs = {}
    for row in rows:
        mine = sorted((cell for cell in cells if cell["row"] == row and cell["status"] == "done"), key=lambda c: int(c["seed"]))
        for cell in mine:
            dataset, folder = str(cell["dataset"]), evaluations / str(cell["key"])
            if (wanted.datasets and dataset not in wanted.datasets) or row in found.get(dataset, {}):
                continue
            if (folder / "arrays").is_dir():
                run = load_results(folder)
                found.setdefault(dataset, {})[row] = run._replace(metrics={**run.metrics, "method": row, "dataset": dataset})
    return found


def _common_rows(runs: Runs) -> list[str]:
    """The rows that every data set has maps of."""
    sets = list(runs.values())
    return [row for row in sets[0] if all(row in other for other in sets)] if sets else []
