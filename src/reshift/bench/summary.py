"""Cells → tables as data: per row, dataset and figure the mean over seeds, and all that must stand beside it."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from reshift.evaluation.metrics.confidence import Interval, mean_std

Cell = Mapping[str, Any]
MAIN = ("baseline", "ours")  # groups of the main tables; ablations and sweeps have their own


class Figure(NamedTuple):
    """A column's kind: where its number lies in a cell, and how it is shown."""

    level: str  # image, pixel, normative: a table of the metrics; cost: the cell itself
    name: str
    label: str
    unit: float = 100.0  # shown is the number times this
    digits: int = 1
    ranked: bool = True

    def shown(self, value: float) -> str:
        """The number as tables print it."""
        return f"{value * self.unit:.{self.digits}f}"

    def spread(self, value: float) -> str:
        """A standard deviation, with a digit more where the paper has one more."""
        return f"{value * self.unit:.{min(2, self.digits + 1)}f}"


AUC, AP, F1 = (Figure("image", name, name.upper()) for name in ("auc", "ap", "f1"))
AP_PIX, DICE, AUPRO = Figure("pixel", "ap", "AP_pix"), Figure("pixel", "dice", "Dice"), Figure("pixel", "aupro", "AUPRO")
NORMATIVE = tuple(Figure("normative", name, name.upper(), 1.0, 2) for name in ("rqi", "ahi", "caci"))
COST = (
    Figure("cost", "train_seconds", "training [s]", 1.0, 1, ranked=False),
    Figure("cost", "images_per_second", "images/s", 1.0, 1, ranked=False),
)


class Verdict(NamedTuple):
    """A paired comparison with another row on the same images."""

    against: str
    difference: float
    p_value: float
    adjusted: float  # by Holm, over the columns of the row
    mark: str = ""  # "+" better, "-" worse, at 5 % after the correction


class Entry(NamedTuple):
    """One figure of one row on one dataset."""

    seeds: int = 0  # finished cells that have the figure
    done: int = 0
    failed: int = 0
    mean: float | None = None
    std: float | None = None  # over seeds
    interval: Interval | None = None  # over subjects
    rank: int = 0  # 1 best, 2 second
    verdict: Verdict | None = None


Column = tuple[str, Figure]  # dataset, figure


class Row(NamedTuple):
    """One line of a table."""

    label: str
    group: str
    caveat: str | None
    cells: Mapping[str, Sequence[Cell]]  # by dataset
    entries: Mapping[Column, Entry]

    @property
    def title(self) -> str:
        """The label, with its † where the method is a stand-in."""
        return self.label if not self.caveat or self.label.endswith("†") else f"{self.label}†"


class Table(NamedTuple):
    """Rows × (datasets × figures)."""

    key: str
    title: str
    datasets: tuple[str, ...]
    figures: tuple[Figure, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    head: str = "method"
    against: str = "the best baseline"  # what marks compare with

    @property
    def usual_seeds(self) -> int:
        """How many seeds most figures have; the others say their number."""
        return _usual(entry.seeds for row in self.rows for entry in row.entries.values())


def current(cells: Iterable[Cell]) -> list[Cell]:
    """One cell per row, dataset and seed: a finished one before a failed one, then the later one; their order is kept."""
    best: dict[tuple[Any, ...], Cell] = {}
    for cell in cells:
        at = (cell["row"], cell["dataset"], cell["seed"])
        if at not in best or _worth(cell) >= _worth(best[at]):
            best[at] = cell
    return list(best.values())


def _worth(cell: Cell) -> tuple[bool, str]:
    return cell["status"] == "done", str(cell.get("date") or "")


def value_of(cell: Cell, figure: Figure) -> float | None:
    """Read the figure from a cell; None where it could not be measured."""
    place = cell if figure.level == "cost" else (cell.get("metrics") or {}).get(figure.level) or {}
    value = place.get(figure.name)
    return float(value) if value is not None and math.isfinite(value) else None


def interval_of(cell: Cell, figure: Figure) -> Interval | None:
    """Read the cell's own bootstrap interval over subjects."""
    known = ((cell.get("metrics") or {}).get("intervals") or {}).get(figure.level) or {}
    found = known.get(figure.name)
    return (float(found[0]), float(found[1])) if found else None


def entry(cells: Sequence[Cell], figure: Figure) -> Entry:
    """Summarise one row's seeds on one dataset; with several, the interval's bounds are the means of the seeds' bounds."""
    done = [cell for cell in cells if cell["status"] == "done"]
    failed = len(cells) - len(done)
    known = [(value, interval_of(cell, figure)) for cell in done if (value := value_of(cell, figure)) is not None]
    found = mean_std(value for value, _ in known)
    if found is None:
        return Entry(done=len(done), failed=failed)
    bounds = [interval for _, interval in known if interval is not None]
    whole = (sum(low for low, _ in bounds) / len(known), sum(high for _, high in bounds) / len(known))
    return Entry(len(known), len(done), failed, *found, whole if len(bounds) == len(known) else None)


def rows_of(cells: Sequence[Cell], figures: Sequence[Figure], datasets: Sequence[str]) -> list[Row]:
    """One row per label, in the order of their first cells."""
    labels = dict.fromkeys(str(cell["row"]) for cell in cells)
    rows = []
    for label in labels:
        mine = [cell for cell in cells if cell["row"] == label]
        by_set = {name: [cell for cell in mine if cell["dataset"] == name] for name in datasets}
        entries = {(name, figure): entry(by_set[name], figure) for name in datasets for figure in figures}
        rows.append(Row(label, str(mine[0]["group"]), mine[0].get("caveat") or None, by_set, entries))
    return rows


def table_of(key: str, title: str, cells: Sequence[Cell], figures: Sequence[Figure], notes: Sequence[str] = ()) -> Table | None:
    """Make a table of what ``cells`` have of ``figures``, best and second ranked; None if that is nothing."""
    named = list(dict.fromkeys(str(cell["dataset"]) for cell in cells))
    rows = rows_of(cells, figures, named)
    seen = {column for row in rows for column, found in row.entries.items() if found.mean is not None}
    datasets = tuple(name for name in named if any((name, figure) in seen for figure in figures) or _all_failed(cells, name))
    kept = tuple(figure for figure in figures if any((name, figure) in seen for name in datasets))
    if not kept:
        return None
    columns = [(name, figure) for name in datasets for figure in kept]
    rows = [row._replace(entries={column: row.entries[column] for column in columns}) for row in rows]
    caveats = dict.fromkeys(row.caveat for row in rows if row.caveat)
    return Table(key, title, datasets, kept, tuple(ranked(rows, columns)), (*notes, *(f"† {text}" for text in caveats)))


def _all_failed(cells: Sequence[Cell], dataset: str) -> bool:
    return all(cell["status"] == "failed" for cell in cells if cell["dataset"] == dataset)


def ranked(rows: Sequence[Row], columns: Sequence[Column]) -> list[Row]:
    """Rank each column; what prints the same ranks the same. A row of fewer seeds counts, too: some methods know no seed."""
    places: dict[tuple[int, Column], int] = {}
    for dataset, figure in columns:
        column = (dataset, figure)
        known = [(i, found) for i, row in enumerate(rows) if (found := row.entries[column]).mean is not None]
        values = {i: float(figure.shown(found.mean or 0.0)) for i, found in known}
        if figure.ranked and len(values) > 1:
            order = sorted(set(values.values()), reverse=True)[:2]
            places |= {(i, column): order.index(value) + 1 for i, value in values.items() if value in order}
    return [
        row._replace(entries={c: found._replace(rank=places.get((i, c), 0)) for c, found in row.entries.items()})
        for i, row in enumerate(rows)
    ]


def _usual(counts: Iterable[int]) -> int:
    found = Counter(count for count in counts if count)
    return max(found, key=lambda n: (found[n], n), default=0)


def blocks(table: Table, across: int = 10) -> list[Table]:
    """Cut a table that is too wide into several of whole datasets."""
    step = max(1, across // len(table.figures))
    return [table._replace(datasets=table.datasets[at : at + step]) for at in range(0, len(table.datasets), step)]
