"""The figures printed in the paper, to stand beside ours and never among them."""

import json
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from reshift.bench.summary import Cell, Column, Entry, Figure, Row, Table

SENTENCE = "Printed figures are the paper's own, on its data and its splits; they are not measured here and enter no ranking."


class Printed(NamedTuple):
    """One number of the paper, in the paper's own unit divided out: 87.2 per cent is 0.872."""

    dataset: str
    mean: float
    std: float | None
    runs: int | None


@cache
def paper() -> dict[str, Any]:
    """Read every table of the paper: rows of [mean, standard deviation or null] by name, and what of ours they belong to."""
    text = (resources.files("reshift.bench") / "paper_tables.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def paper_row(cell: Cell) -> str | None:
    """The paper's name of what a cell ran; None for what it does not have, such as a sweep or two components off at once."""
    if cell.get("setting") or cell["method"] not in paper()["methods"]:
        return None
    settings = (cell.get("config") or {}).get("model") or {}
    off = [name for flag, name in paper()["variants"].items() if cell["method"] == "dmd" and settings.get(flag) is False]
    name = paper()["methods"][cell["method"]] if not off else off[0]
    return str(name) if len(off) < 2 else None


def paper_dataset(name: str) -> tuple[str, str] | None:
    """The paper's dataset that ``name`` is or stands in for, and how the two are related."""
    found = paper()["datasets"].get(name)
    return (str(found[0]), str(found[1])) if found else None


def lookup(table: str, row: Row, column: Column) -> Printed | None:
    """Find what the paper prints for this row and column."""
    dataset, figure = column
    known, cells = paper_dataset(dataset), [cell for mine in row.cells.values() for cell in mine]
    source = paper()["tables"].get(table)
    name = paper_row(cells[0]) if cells else None
    if known is None or source is None or name not in source["rows"]:
        return None
    head = f"{known[0]}/{figure.level}.{figure.name}"
    if head not in source["columns"]:
        return None
    mean, std = source["rows"][name][source["columns"].index(head)]
    unit = source["unit"]
    return Printed(known[0], mean / unit, std / unit if std is not None else None, source["runs"])


def printed_table(table: Table) -> Table | None:
    """The paper's figures of the rows of ``table``, under the paper's names of the datasets; None if it prints none."""
    rows = [row._replace(entries=_entries(table, row), caveat=None, label=row.label.removesuffix("†")) for row in table.rows]
    rows = [row for row in rows if row.entries]
    known = {column for row in rows for column in row.entries}
    if not known:
        return None
    names = dict.fromkeys(found[0] for name in table.datasets if (found := paper_dataset(name)))
    datasets = tuple(name for name in names if any(name == other for other, _ in known))
    figures = tuple(figure for figure in table.figures if any(figure == other for _, other in known))
    whole = [row._replace(entries={(n, f): row.entries.get((n, f), Entry()) for n in datasets for f in figures}) for row in rows]
    beside = tuple(name for name in table.datasets if (found := paper_dataset(name)) and found[0] in datasets)
    return table._replace(
        key=f"{table.key}-printed", title=f"{table.title}: printed in the paper", datasets=datasets, figures=figures,
        rows=tuple(whole), notes=(SENTENCE, *relations(beside)),
    )  # fmt: skip


def _entries(table: Table, row: Row) -> dict[Column, Entry]:
    found: dict[Column, Entry] = {}
    for name in table.datasets:
        for figure in table.figures:
            if (number := lookup(table.key, row, (name, figure))) is not None:
                found[number.dataset, figure] = Entry(number.runs or 1, 1, mean=number.mean, std=number.std)
    return found


def relations(datasets: tuple[str, ...]) -> list[str]:
    """Say of each dataset which of the paper's figures stand beside it, and whether they are on the same data."""
    known = [(name, paper_dataset(name)) for name in datasets]
    return [f"{name}: the paper's {found[0]} ({found[1]})." for name, found in known if found]


def claim(setting: str) -> str | None:
    """What the paper says about the best value of a setting, in its text and figures."""
    found = paper()["claims"].get(setting)
    return f"The paper: {found}." if found else None


def figures_of(table: Table, dataset: str) -> list[Figure]:
    """The figures of ``table`` that the paper prints for the dataset in at least one row."""
    return [f for f in table.figures if any(lookup(table.key, row, (dataset, f)) for row in table.rows)]
