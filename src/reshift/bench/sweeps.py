"""Ablation and sensitivity as tables and figures, from the same cells as everything else."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reshift.bench.cells import slug
from reshift.bench.printed import claim
from reshift.bench.summary import AP, AP_PIX, AUC, DICE, F1, Cell, Figure, Table, table_of, value_of
from reshift.reports.figures.paper import sensitivity
from reshift.reports.figures.style import PAGE, blank, legend_below, line_style, save, style
from reshift.reports.figures.sweep import LEAST, stable_range
from reshift.system.files import writable_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

ABLATION = (AUC, AP, F1, AP_PIX, DICE)
SWEPT = (AUC, AP_PIX, DICE)
NAMES = {
    "model.t_star": "restoration step t*",
    "model.mask_side": "mask side ℓ_M, in latent positions",
    "model.lambda_cls": "weight λ of the discriminative loss",
}
Sweep = tuple[str, str]  # method, setting


def ablation_cells(cells: Sequence[Cell]) -> list[Cell]:
    """The variants, and after them the full method that they are variants of."""
    variants = [cell for cell in cells if cell["group"] == "ablation"]
    methods = {cell["method"] for cell in variants}
    datasets = {cell["dataset"] for cell in variants}
    full = [cell for cell in cells if cell["group"] == "ours" and cell["method"] in methods and cell["dataset"] in datasets]
    return variants + full


def sweeps(cells: Sequence[Cell]) -> dict[Sweep, list[Cell]]:
    """Cells of group sensitivity by method and setting; numbers ascend, other values stay in the suite's order."""
    found: dict[Sweep, list[Cell]] = {}
    for cell in cells:
        if cell["group"] == "sensitivity" and cell.get("setting"):
            found.setdefault((str(cell["method"]), str(cell["setting"]["name"])), []).append(cell)
    return {sweep: sorted(mine, key=number) if all(map(_numeric, mine)) else mine for sweep, mine in found.items()}


def _numeric(cell: Cell) -> bool:
    value = cell["setting"]["value"]
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(cell: Cell) -> float:
    """The value of the setting that a sweep varies."""
    return float(cell["setting"]["value"])


def sweep_table(sweep: Sweep, cells: Sequence[Cell]) -> Table | None:
    """One row per value of the setting."""
    method, setting = sweep
    named = [{**cell, "row": f"{number(cell):g}" if _numeric(cell) else str(cell["setting"]["value"])} for cell in cells]
    said = claim(setting) if method == "dmd" else None
    notes = [said] if said else []
    if setting == "model.mask_side":
        notes.append("A latent position is 8×8 pixels with the default widths: a side of 4 is a mask of 1024 pixels.")
    key = f"sensitivity-{slug(method)}-{slug(setting)}"
    found = table_of(key, f"Sensitivity of {method} to {setting}", named, SWEPT, notes)
    return found._replace(head=setting) if found else None


def figures(cells: Sequence[Cell], out: Path) -> list[Path]:
    """Write the figures of ablations and sweeps that the cells allow; return the PNGs."""
    drawn = {f"ablation-{slug(name)}": ablation_figure(table) for name, table in _ablations(cells)}
    for sweep, mine in sweeps(cells).items():
        made = {figure: sweep_figure(sweep, mine, figure) for figure in SWEPT}
        name = f"sensitivity-{slug(sweep[0])}-{slug(sweep[1])}"
        drawn |= {f"{name}-{slug(figure.label)}": drawing for figure, drawing in made.items() if drawing is not None}
    if drawn:
        writable_folder(out)
    return [save(drawing, out / name) for name, drawing in drawn.items()]


def _ablations(cells: Sequence[Cell]) -> list[tuple[str, Table]]:
    mine = ablation_cells(cells)
    by_method = [(method, [c for c in mine if c["method"] == method]) for method in dict.fromkeys(c["method"] for c in mine)]
    found = [(str(method), table_of("ablation", "Ablation", chosen, ABLATION)) for method, chosen in by_method]
    return [(method, table) for method, table in found if table is not None]


def sweep_figure(sweep: Sweep, cells: Sequence[Cell], figure: Figure) -> "Drawing | None":
    """Draw one figure against the setting, a curve per dataset; None where fewer than three values have it."""
    curves: dict[str, list[tuple[float, list[float]]]] = {}
    cells = [cell for cell in cells if cell["status"] == "done" and _numeric(cell)]
    for dataset in dict.fromkeys(str(cell["dataset"]) for cell in cells):
        points: dict[float, list[float]] = {}
        for cell in cells:
            found = value_of(cell, figure) if cell["dataset"] == dataset else None
            if found is not None:
                points.setdefault(number(cell), []).append(found * figure.unit)
        if len(points) >= LEAST:
            curves[dataset] = list(points.items())
    if not curves:
        return None
    stable, best = stable_range(next(iter(curves.values()))) if len(curves) == 1 else (None, None)
    shaded = stable if stable and stable[0] < stable[1] else None
    label = NAMES.get(sweep[1], sweep[1])
    return sensitivity(curves, xlabel=f"{sweep[0]}: {label}", ylabel=f"{figure.label} [%]", stable=shaded, best=best)


@style()
def ablation_figure(table: Table) -> "Drawing":
    """Draw each variant's figures as dots with their deviation over seeds, a panel per figure, a colour per dataset."""
    shown = [figure for figure in (AUC, AP_PIX, DICE) if figure in table.figures] or list(table.figures)
    drawing = blank(PAGE, 0.5 + max(0.22, 0.07 * len(table.datasets)) * len(table.rows))
    axes = drawing.subplots(1, len(shown), squeeze=False, sharey=True)[0]
    for ax, figure in zip(axes, shown, strict=True):
        for i, dataset in enumerate(table.datasets):
            known = [(y, row.entries[dataset, figure]) for y, row in enumerate(table.rows)]
            points = [(e.mean * figure.unit, y, (e.std or 0.0) * figure.unit) for y, e in known if e.mean is not None]
            offset = (i - (len(table.datasets) - 1) / 2) * min(0.12, 0.8 / len(table.datasets))
            look = {"color": line_style(i)["color"], "marker": "o", "linestyle": "none", "elinewidth": 0.6, "capsize": 1.5}
            x, at, spread = ([p[0] for p in points], [p[1] + offset for p in points], [p[2] for p in points])
            ax.errorbar(x, at, xerr=spread, label=dataset, **look)
        ax.set(xlabel=f"{figure.label} [%]")
        ax.grid(axis="y", linewidth=0.3)
    axes[0].set_yticks(range(len(table.rows)), [row.title for row in table.rows])
    axes[0].invert_yaxis()
    legend_below(drawing, axes[0], 4, "mean ± SD over seeds")
    return drawing
