"""Read the rows of results/*.csv, average them over seeds, and write them as Markdown."""

import csv
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
Row = dict[str, str]
SETS = ("lgg_flair", "busi", "arc_t1_stroke", "wmh_flair", "nih_cxr")
PAPER = {  # AUC, AP_pix and Dice of the paper's DMD, on the paper's own data
    "lgg_flair": ("BraTS2021", "0.872", "0.789", "0.763"), "busi": ("BUSI", "0.938", "0.713", "0.724"),
    "arc_t1_stroke": ("ATLAS 2.0", "–", "0.495", "0.547"), "wmh_flair": ("WMH", "–", "0.564", "0.609"),
    "nih_cxr": ("VinDr-CXR", "0.843", "–", "–"),
}  # fmt: skip


def read(name: str) -> list[Row]:
    """The rows of ``results/NAME.csv``."""
    with (ROOT / "results" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def select(rows: Iterable[Row], **wanted: str) -> list[Row]:
    """The rows whose columns have these values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def mean(rows: Sequence[Row], column: str) -> str:
    """The mean over seeds, or a dash where nothing was measured."""
    values = [float(row[column]) for row in rows if row[column]]
    return f"{statistics.mean(values):.3f}" if values else "–"


def spread(rows: Sequence[Row], column: str) -> str:
    """Mean ± standard deviation over seeds."""
    values = [float(row[column]) for row in rows if row[column]]
    deviation = f"{statistics.stdev(values):.3f}" if len(values) > 1 else "0.000"
    return mean(rows, column) + (f" ± {deviation}" if float(deviation) else "")


def interval(row: Row, column: str) -> str:
    """A value with its 95 % interval."""
    return fixed(row[column]) + bounds(row, column)


def bounds(row: Row, column: str) -> str:
    """The 95 % interval of a value alone; nothing where there is none."""
    low, high = row[f"{column}.low"], row[f"{column}.high"]
    return f" ({float(low):.3f}–{float(high):.3f})" if low and high else ""


def fixed(value: str) -> str:
    """Three digits after the point."""
    return f"{float(value):.3f}" if value else "–"


def table(header: str, lines: Iterable[Sequence[str]]) -> list[str]:
    """Markdown."""
    return [f"| {header} |", "|" + "---|" * (header.count("|") + 1), *(f"| {' | '.join(line)} |" for line in lines)]
