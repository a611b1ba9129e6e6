"""The numbers printed in the paper, shown beside ours and never ranked among them."""

import json
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from reshift.bench.tables.summary import Cell, Column, Entry, Row, Table
from reshift.evaluation.metrics.table import Metric

SENTENCE = "Printed numbers are the paper's own, on its data and its splits; they are not measured here and enter no ranking."


class Printed(NamedTuple):
    """One number of the paper as a fraction: 87.2 per cent is 0.872."""

    dataset: str
    mean: float
    std: float | None
    runs: int | None


@cache
def paper() -> dict[str, Any]:
    """Every table of the paper: rows of [mean, standard deviation or null] by name, and what of ours they belong to."""
    text = (resources.files("reshift.bench.tables") / "paper_tables.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def paper_row(cell: Cell) -> str | None:
    """The paper's name of what a cell ran; None for what the paper lacks, such as a sweep or two components off at once."""
    if cell.get("setting") or cell["method"] not in paper()["methods"]:
        return None
    settings = (cell.get("config") or {}).get("model") or {}
    off = [name for flag, name in paper()["variants"].items() if cell["method"] == "dmd" and settings.get(flag) is False]
    name = paper()["methods"][cell["method"]] if not off else off[0]
    return str(name) if len(off) < 2 else None


def paper_dataset(name: str) -> tuple[str, str] | None:
    """The paper's data set that ``name`` is or replaces, and how the two are related."""
    found = paper()["datasets"].get(name)
    return (str(found[0]), str(found[1])) if found else None


def find_printed(table: str, row: Row, column: Column) -> Printed | None:
    """Find what the paper prints for this row and column."""
    dataset, metric = column
    known, cells = paper_dataset(dataset), [cell for mine in row.cells.values() for cell in mine]
    source = paper()["tables"].get(table)
    name = paper_row(cells[0]) if cells else None
    if known is None or source is None or name not in source["rows"]:
        return None
    head = f"{known[0]}/{metric.key}"
    if head not in source["columns"]:
        return None
    mean, std = source["rows"][name][source["columns"].index(head)]
    unit = source["unit"]
    return Printed(known[0], mean / unit, std / unit if std is not None else None, source["runs"])


def printed_metrics(table: Table, dataset: str) -> list[Metric]:
    """The metrics of ``table`` that the paper prints for the data set in at least one row."""
    return [m for m in table.metrics if any(find_printed(table.key, row, (dataset, m)) for row in table.rows)]


def printed_table(table: Table) -> Table | None:
    """The paper's numbers for the rows of ``table``, under the paper's names of the data sets; None if it prints none."""
    rows = [row._replace(entries=_entries(table, row), caveat=None, label=row.label.removesuffix("†")) for row in table.rows]
    rows = [row for row in rows if row.entries]
    known = {column for row in rows for column in row.entries}
    if not known:
        return None
    names = dict.fromkeys(found[0] for name in table.datasets if (found := paper_dataset(name)))
    datasets = tuple(name for name in names if any(name == other for other, _ in known))
    metrics = tuple(metric for metric in table.metrics if any(metric == other for _, other in known))
    ours = tuple(name for name in table.datasets if (found := paper_dataset(name)) and found[0] in datasets)
    made = table._replace(
        key=f"{table.key}-printed", title=f"{table.title}: printed in the paper", datasets=datasets, metrics=metrics,
        notes=(SENTENCE, *relations(ours)),
    )  # fmt: skip
    full = (row._replace(entries={column: row.entries.get(column, Entry()) for column in made.columns}) for row in rows)
    return made._replace(rows=tuple(full))


def _entries(table: Table, row: Row) -> dict[Column, Entry]:
    found: dict[Column, Entry] = {}
    for name, metric in table.columns:
        if (number := find_printed(table.key, row, (name, metric))) is not None:
            found[number.dataset, metric] = Entry(number.runs or 1, 1, mean=number.mean, std=number.std)
    return found


def relations(datasets: tuple[str, ...]) -> list[str]:
    """For each data set, which of the paper's data sets is shown beside it, and whether the data are the same."""
    known = [(name, paper_dataset(name)) for name in datasets]
    return [f"{name}: the paper's {found[0]} ({found[1]})." for name, found in known if found]


def claim(setting: str) -> str | None:
    """What the paper says about the best value of a setting."""
    found = paper()["claims"].get(setting)
    return f"The paper: {found}." if found else None
