"""Which tables the cells of a benchmark allow: main results, ablation, sweeps, cost."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from reshift.bench.cells import slug
from reshift.bench.suite import value_suffix, value_text
from reshift.bench.tables.cell_metrics import UPDATES, extra_tables
from reshift.bench.tables.paper import claim
from reshift.bench.tables.significance import mark_differences
from reshift.bench.tables.summary import Cell, Table, current_cells, make_table
from reshift.evaluation.metrics.table import select_metrics

MAIN = ("baseline", "ours")  # groups of the main tables; ablations and sweeps have tables of their own
TITLES = {"image": "Image level", "pixel": "Pixel level", "normative": "Normative quality of restorations"}
READING = "The indices are in our reading of Bercea et al. 2025 (0 to 1, higher is better); they carry no interval."
ABLATION_NOTE = "Marks here compare a variant with the full method instead of a baseline."


class Sweep(NamedTuple):
    """What tells a sweep from others. A suite may vary one setting of one method twice, such as DMD's and the literal DMD's."""

    method: str
    setting: str
    label: str

    @property
    def name(self) -> str:
        """What its table and its figure are called in files."""
        method, label = slug(self.method), slug(self.label)
        return f"{label if label.startswith(method) else f'{method}-{label}'}-{slug(self.setting)}"


def make_tables(cells: Sequence[Cell]) -> list[Table]:
    """Make every table that the cells allow; rows and data sets come in the order of their first cells."""
    cells = current_cells(cells)
    sweeps = [sweep_table(sweep, mine) for sweep, mine in find_sweeps(cells).items()]
    made = [*_main_tables(cells), _marked_ablation(cells), *sweeps, *extra_tables(cells), _cost_table(cells)]
    return [table for table in made if table is not None]


def _main_tables(cells: Sequence[Cell]) -> list[Table]:
    main = [cell for cell in cells if cell["group"] in MAIN]
    if len({cell["row"] for cell in main}) < 2 and len(main) < len(cells):
        return []  # only the full method beside its ablations, which have a table of their own
    made = [
        make_table(level, title, main, select_metrics(level, place="tables"), [READING] if level == "normative" else [])
        for level, title in TITLES.items()
    ]
    baselines = [str(cell["row"]) for cell in main if cell["group"] == "baseline"]
    return [mark_differences(table, "ours", baselines) for table in made if table is not None]


def ablation_table(cells: Sequence[Cell]) -> Table | None:
    """The variants, and after them the full method that they are variants of."""
    variants = [cell for cell in cells if cell["group"] == "ablation"]
    methods = {cell["method"] for cell in variants}
    datasets = {cell["dataset"] for cell in variants}
    full = [cell for cell in cells if cell["group"] == "ours" and cell["method"] in methods and cell["dataset"] in datasets]
    return make_table("ablation", "Ablation", variants + full, select_metrics("image", "pixel", place="ablation"))


def _marked_ablation(cells: Sequence[Cell]) -> Table | None:
    table = ablation_table(cells)
    full = [row.label for row in table.rows if row.group == "ours"] if table is not None else []
    if table is None or not full:
        return table
    return mark_differences(table._replace(notes=(ABLATION_NOTE, *table.notes), against="the full method"), "ablation", full)


def find_sweeps(cells: Sequence[Cell]) -> dict[Sweep, list[Cell]]:
    """Cells of group sensitivity by sweep; numbers ascend, other values stay in the suite's order."""
    found: dict[Sweep, list[Cell]] = {}
    for cell in cells:
        if cell["group"] == "sensitivity" and cell.get("setting"):
            found.setdefault(sweep_of(cell), []).append(cell)
    return {sweep: sorted(mine, key=swept_value) if all(map(is_number, mine)) else mine for sweep, mine in found.items()}


def sweep_of(cell: Cell) -> Sweep:
    """The sweep of a cell; its label is the row without the value."""
    setting = str(cell["setting"]["name"])
    return Sweep(str(cell["method"]), setting, str(cell["row"]).removesuffix(value_suffix(setting, cell["setting"]["value"])))


def place_of(cell: Cell) -> float | None:
    """Where the value of the swept setting lies on an axis: as the suite says, or the number itself; None for other values."""
    value = cell["setting"].get("at", cell["setting"]["value"])
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def is_number(cell: Cell) -> bool:
    """Whether the swept setting has a place on an axis."""
    return place_of(cell) is not None


def swept_value(cell: Cell) -> float:
    """The place of the swept setting on the axis."""
    found = place_of(cell)
    if found is None:
        raise ValueError(f"{cell['setting']} is no number")
    return found


def sweep_table(sweep: Sweep, cells: Sequence[Cell]) -> Table | None:
    """One row per value of the setting; in brackets, where the value lies on the axis of the figure."""
    method, setting, label = sweep
    named = [{**cell, "row": _value_name(cell["setting"])} for cell in cells]
    stated = claim(setting) if method == "dmd" else None
    notes = [stated] if stated else []
    placed = [cell["setting"] for cell in cells if "at" in cell["setting"]]
    notes += [f"In brackets: {axis}." for axis in dict.fromkeys(setting.get("axis") for setting in placed) if axis]
    if setting == "model.mask_side":
        notes.append("A latent position is 8×8 pixels with the default widths: a side of 4 is a mask of 1024 pixels.")
    metrics = select_metrics("image", "pixel", place="sweep")
    table = make_table(f"sensitivity-{sweep.name}", f"Sensitivity of {label} to {setting}", named, metrics, notes)
    return table._replace(head=setting) if table else None


def _value_name(setting: Mapping[str, Any]) -> str:
    value = setting["value"]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text = f"{value:g}" if number else value_text(value)
    return f"{text} ({setting['at']:g})" if setting.get("axis") and "at" in setting else text


def _cost_table(cells: Sequence[Cell]) -> Table | None:
    chosen = [cell for cell in cells if cell["group"] != "sensitivity"]
    found = dict.fromkeys(_machine(cell) for cell in chosen if cell.get("machine"))
    where = "; ".join(name for name in found if name) or "an unnamed machine"
    note = f"Measured on {where}. Training time leaves out calibration; where a model is shared, it is that model's."
    return make_table("cost", "Cost", chosen, [*select_metrics("cost", place="tables"), UPDATES], [note])


def _machine(cell: Cell) -> str:
    known = cell["machine"]
    return str(known.get("gpu") or " ".join(str(known[k]) for k in ("cores", "cpu") if known.get(k)) or "")
