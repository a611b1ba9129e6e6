"""Figures of heat-maps, pixel histograms and embeddings, from the evaluations that ``--keep-maps`` left; nothing is predicted."""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from reshift.bench.cells import slug
from reshift.bench.suite import Figures
from reshift.bench.tables.summary import Cell
from reshift.errors import UserError
from reshift.evaluation.results import Results, choose_cases, load_results
from reshift.reports.figures.maps import pixel_histogram, qualitative_sets
from reshift.reports.figures.paper import tsne_sets

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_ROWS = 8  # of the tables, in one figure, unless the suite names them
MAX_PANELS = 5  # data sets, in one figure of embeddings

Runs = dict[str, dict[str, Results]]  # data set → row → the evaluation of its first seed


def map_figures(cells: Sequence[Cell], evaluations: Path, wanted: Figures) -> dict[str, "Figure"]:
    """Every figure that the kept evaluations allow, by name; lines on stderr say what could not be drawn, and why."""
    runs = _find_runs(cells, evaluations, wanted)
    makers: dict[str, Callable[[], Figure]] = {}
    if runs:
        _print(*_left_out(cells, runs, wanted))
        rows = [row for row in dict.fromkeys(_rows(cells, wanted)) if any(row in found for found in runs.values())]
        sets = {dataset: [found.get(row) for row in rows] for dataset, found in runs.items()}
        makers["qualitative"] = partial(qualitative_sets, sets, rows, wanted.cases)
    for dataset, found in runs.items():
        makers[f"pixel-histogram-{dataset}"] = partial(pixel_histogram, list(found.values()))
    ours = {str(cell["row"]) for cell in cells if cell["group"] == "ours"}
    for row in dict.fromkeys(row for found in runs.values() for row in found if row in ours):
        mine = {dataset: found[row] for dataset, found in runs.items() if row in found}
        makers[f"tsne-{slug(row)}"] = partial(_embeddings, f"tsne-{slug(row)}", mine)
    drawn: dict[str, Figure] = {}
    for name, make in makers.items():
        try:
            drawn[name] = make()
        except UserError as err:
            _print(f"no figure {name}: {err}")
    return drawn


def _print(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr)


def _rows(cells: Sequence[Cell], wanted: Figures) -> list[str]:
    return wanted.rows or _main_rows(cells)[-MAX_ROWS:]


def _main_rows(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(str(cell["row"]) for cell in cells if cell["group"] in ("baseline", "ours")))


def _find_runs(cells: Sequence[Cell], evaluations: Path, wanted: Figures) -> Runs:
    """The evaluations with maps of the wanted rows and data sets, in the order of the tables."""
    found: Runs = {}
    for row in _rows(cells, wanted):
        mine = sorted((cell for cell in cells if cell["row"] == row and cell["status"] == "done"), key=lambda c: int(c["seed"]))
        for cell in mine:
            dataset, folder = str(cell["dataset"]), evaluations / str(cell["key"])
            if (wanted.datasets and dataset not in wanted.datasets) or row in found.get(dataset, {}):
                continue
            if (folder / "arrays").is_dir():
                run = load_results(folder)
                found.setdefault(dataset, {})[row] = run._replace(metrics={**run.metrics, "method": row, "dataset": dataset})
    return found


def _left_out(cells: Sequence[Cell], runs: Runs, wanted: Figures) -> Iterator[str]:
    """Lines about rows and data sets that the figures do not show."""
    rows = _rows(cells, wanted)
    if not wanted.rows and (more := _main_rows(cells)[:-MAX_ROWS]):
        yield f"left out of the figures of heat-maps: {', '.join(more)} ({MAX_ROWS} rows at most; [figures] may choose others)"
    bare: dict[str, list[str]] = {}
    for row, dataset in dict.fromkeys((str(cell["row"]), str(cell["dataset"])) for cell in cells):
        if row in rows and (not wanted.datasets or dataset in wanted.datasets) and row not in runs.get(dataset, {}):
            bare.setdefault(dataset, []).append(row)
    for dataset, names in bare.items():
        yield f"left out of the figures of heat-maps of {dataset}: {', '.join(names)} (no maps were kept)"
    for dataset, found in runs.items():
        if not choose_cases(list(found.values()), 1):
            yield f"left out of figure qualitative: {dataset} (no abnormal image has a map of every row)"


def _embeddings(name: str, runs: dict[str, Results]) -> "Figure":
    """One row's embeddings on as many data sets as fit; the others are named."""
    usable = [dataset for dataset, run in runs.items() if (run.folder / "features.npy").exists()]
    if not usable:
        raise UserError("no evaluation has image features")
    if bare := [dataset for dataset in runs if dataset not in usable]:
        _print(f"left out of figure {name}: {', '.join(bare)} (no image features)")
    if more := usable[MAX_PANELS:]:
        _print(f"left out of figure {name}: {', '.join(more)} ({MAX_PANELS} data sets at most; [figures] may choose others)")
    return tsne_sets([runs[dataset] for dataset in usable[:MAX_PANELS]])
