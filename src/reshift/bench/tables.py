"""The benchmark's tables from its cells: ``tables.md``, ``tables.tex``, ``tables.csv`` and ``figures/``."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from reshift.bench.latex import latex
from reshift.bench.markdown import LEGEND, TESTS, csv_text, line, section
from reshift.bench.printed import SENTENCE, printed_table
from reshift.bench.significance import judge
from reshift.bench.summary import (
    AP,
    AP_PIX,
    AUC,
    AUPRO,
    COST,
    DICE,
    F1,
    MAIN,
    NORMATIVE,
    Cell,
    Figure,
    Row,
    Table,
    current,
    table_of,
)
from reshift.bench.sweeps import ABLATION, ablation_cells, figures, sweep_table, sweeps
from reshift.errors import UserError
from reshift.system.files import atomic_text, writable_folder

PARTS: tuple[tuple[str, str, tuple[Figure, ...]], ...] = (
    ("image", "Image level", (AUC, AP, F1)),
    ("pixel", "Pixel level", (AP_PIX, DICE, AUPRO)),
    ("normative", "Normative quality of restorations", NORMATIVE),
)
READING = "RQI, AHI and CACI are in our reading of Bercea et al. 2025 (0 to 1, higher is better); they carry no interval."


def tables(cells: Sequence[Cell]) -> list[Table]:
    """Make every table that the cells allow; rows and datasets come in the order of their first cells."""
    cells = current(cells)
    return [*_main(cells), *_ablation(cells), *_sensitivity(cells), *_cost(cells)]


def _main(cells: Sequence[Cell]) -> list[Table]:
    main = [cell for cell in cells if cell["group"] in MAIN]
    if len({cell["row"] for cell in main}) < 2 and len(main) < len(cells):
        return []  # the full method beside its ablations: their table has it
    made = [table_of(key, title, main, chosen, [READING] if key == "normative" else []) for key, title, chosen in PARTS]
    baselines = [str(cell["row"]) for cell in main if cell["group"] == "baseline"]
    return [judge(table, "ours", baselines) for table in made if table is not None]


def _ablation(cells: Sequence[Cell]) -> list[Table]:
    mine = ablation_cells(cells)
    table = table_of("ablation", "Ablation", mine, ABLATION)
    full = [str(cell["row"]) for cell in mine if cell["group"] == "ours"]
    if table is None or not full:
        return [table] if table is not None else []
    note = "Marks here compare a variant with the full method instead of a baseline."
    return [judge(table._replace(notes=(note, *table.notes), against="the full method"), "ablation", full)]


def _sensitivity(cells: Sequence[Cell]) -> list[Table]:
    made = [sweep_table(sweep, mine) for sweep, mine in sweeps(cells).items()]
    return [table for table in made if table is not None]


def _cost(cells: Sequence[Cell]) -> list[Table]:
    chosen = [cell for cell in cells if cell["group"] != "sensitivity"]
    table = table_of("cost", "Cost", chosen, COST, [_machines(chosen)])
    return [table] if table is not None else []


def _machines(cells: Sequence[Cell]) -> str:
    """Say where the seconds were measured."""
    found = dict.fromkeys(_machine(cell) for cell in cells if cell.get("machine"))
    where = "; ".join(name for name in found if name) or "an unnamed machine"
    return f"Measured on {where}. Training time leaves out calibration; where a model is shared, it is that model's."


def _machine(cell: Cell) -> str:
    known = cell["machine"]
    return str(known.get("gpu") or " ".join(str(known[k]) for k in ("cores", "cpu") if known.get(k)) or "")


def markdown(cells: Sequence[Cell], made: Sequence[Table]) -> str:
    """The whole page."""
    cells = current(cells)
    suites = ", ".join(dict.fromkeys(str(cell["suite"]) for cell in cells)) or "no cells"
    failed = [cell for cell in cells if cell["status"] == "failed"]
    rows, datasets = len({cell["row"] for cell in cells}), len({cell["dataset"] for cell in cells})
    seeds = ", ".join(map(str, sorted({int(cell["seed"]) for cell in cells})))
    said = [f"{len(cells)} cells: {rows} rows, {datasets} datasets, seeds {seeds}; {len(failed)} failed."] if cells else []
    said += _versions(cells)
    lines = [f"# Benchmark: {suites}", "", *said, "", LEGEND]
    lines += [TESTS] if any(_judged(row) for table in made for row in table.rows) else []
    lines += [f"{SENTENCE}\n"] if any(printed_table(table) for table in made) else []
    for table in made:
        lines += section(table)
    if failed:
        lines += ["## Failed cells", "", line(["dataset", "row", "seed", "error"]), "|---|---|---|---|"]
        lines += [line([str(cell[k]) for k in ("dataset", "row", "seed", "error")]) for cell in failed]
    return "\n".join(lines).rstrip() + "\n"


def _versions(cells: Sequence[Cell]) -> list[str]:
    """Warn where the cells of one method were made by different code; each method has a version of its own."""
    known = {(str(cell["method"]), str(cell["code"])) for cell in cells if cell.get("code")}
    count = Counter(method for method, _ in known)
    mixed = ", ".join(method for method, n in count.items() if n > 1)
    return [f"\n**Note:** cells of different versions of the code are mixed in: {mixed}; run the suite again."] if mixed else []


def _judged(row: Row) -> bool:
    return any(entry.verdict is not None for entry in row.entries.values())


def write_all(cells: Sequence[Cell], out: Path) -> None:
    """Write tables and figures; one line on stderr says what is missing if figures cannot be drawn."""
    writable_folder(out)
    made = tables(cells)
    beside = [other for table in made if (other := printed_table(table)) is not None]
    atomic_text(out / "tables.md", markdown(cells, made))
    atomic_text(out / "tables.tex", latex([*made, *beside]))
    atomic_text(out / "tables.csv", csv_text(made))
    try:
        figures(current(cells), out / "figures")
    except UserError as err:
        print(f"no figures: {err}", file=sys.stderr)
