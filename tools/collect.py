"""Keep the cells of a benchmark as one small CSV file: what each was, and all its metrics.

python tools/collect.py bench/real/cells results/real.csv
"""

import csv
import json
import sys
from pathlib import Path
from typing import Any

from reshift.evaluation.metrics.table import select_metrics

ABOUT = ("dataset", "trained_on", "row", "group", "method", "setting", "seed")
COST = ("steps", *(metric.name for metric in select_metrics("cost")), "code", "date")


def short(value: object) -> object:
    """A number with six digits."""
    return f"{value:.6g}" if isinstance(value, float) else value


def metrics(found: dict[str, Any]) -> dict[str, Any]:
    """All metrics of an evaluation, with the bounds of their 95 % intervals."""
    row = dict[str, Any]()
    for level in ("image", "pixel"):
        bounds = (found.get("intervals") or {}).get(level) or {}
        for name, value in (found.get(level) or {}).items():
            row[f"{level}.{name}"] = value
            if bounds.get(name):
                row[f"{level}.{name}.low"], row[f"{level}.{name}.high"] = bounds[name]
    lesions = found.get("lesions") or {}
    return row | {f"lesions.{name}": lesions.get(name) for name in ("n", "rate")}


def machine(about: dict[str, Any]) -> str:
    """Graphics card or processor, and the version of torch."""
    place = about.get("gpu") or f"{about.get('cores')} cores {about.get('cpu')}"
    return f"{place}, torch {about.get('torch')}"


def cell_row(cell: dict[str, Any]) -> dict[str, Any]:
    """One finished cell of ``reshift bench``."""
    row = {name: cell.get(name) for name in ABOUT}
    if setting := cell.get("setting"):
        row["setting"] = f"{setting['name']}={setting['value']}"
    cost = {name: cell.get(name) for name in COST}
    return {**row, **metrics(cell["metrics"]), **observed(cell), **cost, "machine": machine(cell["machine"])}


def observed(cell: dict[str, Any]) -> dict[str, Any]:
    """What a method says of its training, and the AUC of image scores that are made of its heat-maps."""
    found = {f"{part}.{name}": value for part, values in (cell.get("training") or {}).items() for name, value in values.items()}
    return found | {
        f"map_scores.{rule}.auc": (scores or {}).get("auc") for rule, scores in (cell.get("map_scores") or {}).items()
    }


def collect(cells: Path, out: Path) -> None:
    """Write one row for each finished cell below ``cells``."""
    found = [json.loads(path.read_text()) for path in cells.rglob("*.json")]
    rows = [cell_row(cell) for cell in found if cell["status"] == "done"]
    rows.sort(key=lambda row: (row["dataset"], row["group"], row["row"], row["seed"]))
    columns = dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row)  # the longest row sets the order
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: short(value) for name, value in row.items()} for row in rows)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python tools/collect.py CELLS OUT.csv")
    collect(Path(sys.argv[1]), Path(sys.argv[2]))
