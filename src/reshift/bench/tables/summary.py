"""Cells → tables as data: for each row, data set and metric the mean over seeds, its spread, interval and rank."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from reshift.evaluation.metrics.bootstrap import Interval
from reshift.evaluation.metrics.confidence import mean_std
from reshift.evaluation.metrics.table import Metric

Cell = Mapping[str, Any]
Column = tuple[str, Metric]  # data set, metric


class Verdict(NamedTuple):
    """A paired comparison with another row on the same images."""

    against: str
    difference: float
    p_value: float
    adjusted: float  # after Holm's correction over the columns of the row
    mark: str = ""  # "+" better, "-" worse, at 5 % after the correction


class Entry(NamedTuple):
    """One metric of one row on one data set."""

    seeds: int = 0  # finished cells that have the metric
    done: int = 0
    failed: int = 0
    mean: float | None = None
    std: float | None = None  # over seeds
    interval: Interval | None = None  # over subjects
    rank: int = 0  # 1 best, 2 second
    verdict: Verdict | None = None


class Row(NamedTuple):
    """One line of a table."""

    label: str
    group: str
    caveat: str | None
    cells: Mapping[str, Sequence[Cell]]  # by data set
    entries: Mapping[Column, Entry]

    @property
    def title(self) -> str:
        """The label, with † where the method is a stand-in."""
        return self.label if not self.caveat or self.label.endswith("†") else f"{self.label}†"


class Table(NamedTuple):
    """Rows × (data sets × metrics)."""

    key: str
    title: str
    datasets: tuple[str, ...]
    metrics: tuple[Metric, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    head: str = "method"
    against: str = "the best baseline"  # what marks compare with

    @property
    def columns(self) -> list[Column]:
        """Data sets × metrics, in the order of printing."""
        return [(name, metric) for name in self.datasets for metric in self.metrics]

    @property
    def usual_seeds(self) -> int:
        """How many seeds most entries have; the others state their number."""
        found = Counter(entry.seeds for row in self.rows for entry in row.entries.values() if entry.seeds)
        return max(found, key=lambda n: (found[n], n), default=0)


def current_cells(cells: Iterable[Cell]) -> list[Cell]:
    """One cell per row, data set and seed: finished before failed, then the later one; their order is kept."""
    best: dict[tuple[Any, ...], Cell] = {}
    for cell in cells:
        place = (cell["row"], cell["dataset"], cell["seed"])
        if place not in best or _priority(cell) >= _priority(best[place]):
            best[place] = cell
    return list(best.values())


def _priority(cell: Cell) -> tuple[bool, str]:
    return cell["status"] == "done", str(cell.get("date") or "")


def summarise(cells: Sequence[Cell], metric: Metric) -> Entry:
    """Summarise one row's seeds on one data set; the bounds of the interval are the means of the seeds' bounds."""
    done = [cell for cell in cells if cell["status"] == "done"]
    failed = len(cells) - len(done)
    known = [(value, metric.read_interval(cell["metrics"])) for cell in done if (value := metric.read_cell(cell)) is not None]
    found = mean_std(value for value, _ in known)
    if found is None:
        return Entry(done=len(done), failed=failed)
    bounds = [interval for _, interval in known if interval is not None]
    mean = (sum(low for low, _ in bounds) / len(known), sum(high for _, high in bounds) / len(known))
    return Entry(len(known), len(done), failed, *found, mean if len(bounds) == len(known) else None)


def make_table(key: str, title: str, cells: Sequence[Cell], metrics: Sequence[Metric], notes: Sequence[str] = ()) -> Table | None:
    """Make a table of the metrics that ``cells`` have, with best and second ranked; None if they have none."""
    named = list(dict.fromkeys(str(cell["dataset"]) for cell in cells))
    rows = _rows(cells, metrics, named)
    known = {column for row in rows for column, found in row.entries.items() if found.mean is not None}
    datasets = tuple(name for name in named if any((name, metric) in known for metric in metrics) or _all_failed(cells, name))
    kept = tuple(metric for metric in metrics if any((name, metric) in known for name in datasets))
    if not kept:
        return None
    caveats = dict.fromkeys(row.caveat for row in rows if row.caveat)
    of_data = {str(cell["dataset"]): cell["data_caveat"] for cell in cells if cell.get("data_caveat")}
    about = [f"{name}: {of_data[name]}" for name in datasets if name in of_data]
    table = Table(key, title, datasets, kept, tuple(rows), (*notes, *(f"† {text}" for text in caveats), *about))
    rows = [row._replace(entries={column: row.entries[column] for column in table.columns}) for row in rows]
    return table._replace(rows=tuple(_ranked(rows, table.columns)))


def _rows(cells: Sequence[Cell], metrics: Sequence[Metric], datasets: Sequence[str]) -> list[Row]:
    """One row per label, in the order of their first cells."""
    rows = []
    for label in dict.fromkeys(str(cell["row"]) for cell in cells):
        mine = [cell for cell in cells if cell["row"] == label]
        by_set = {name: [cell for cell in mine if cell["dataset"] == name] for name in datasets}
        entries = {(name, metric): summarise(by_set[name], metric) for name in datasets for metric in metrics}
        rows.append(Row(label, str(mine[0]["group"]), mine[0].get("caveat") or None, by_set, entries))
    return rows


def _all_failed(cells: Sequence[Cell], dataset: str) -> bool:
    return all(cell["status"] == "failed" for cell in cells if cell["dataset"] == dataset)


def _ranked(rows: Sequence[Row], columns: Sequence[Column]) -> list[Row]:
    """Rank each column. Equal printed values have equal ranks; rows with fewer seeds count, since some methods use no seed."""
    ranks: dict[tuple[int, Column], int] = {}
    for column in columns:
        metric = column[1]
        means = {i: mean for i, row in enumerate(rows) if (mean := row.entries[column].mean) is not None}
        printed = {i: float(metric.table_text(mean)) for i, mean in means.items()}
        if metric.better and len(printed) > 1:
            best = sorted(set(printed.values()), reverse=metric.better == "higher")[:2]
            ranks |= {(i, column): best.index(value) + 1 for i, value in printed.items() if value in best}
    return [
        row._replace(entries={c: found._replace(rank=ranks.get((i, c), 0)) for c, found in row.entries.items()})
        for i, row in enumerate(rows)
    ]


def split_wide(table: Table, across: int = 10) -> list[Table]:
    """Cut a table that is too wide into several with whole data sets."""
    step = max(1, across // len(table.metrics))
    return [table._replace(datasets=table.datasets[at : at + step]) for at in range(0, len(table.datasets), step)]
