"""Figures of ablations and sweeps, from the same cells as the tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reshift.bench.cells import slug
from reshift.bench.tables.build import Sweep, ablation_table, find_sweeps, is_number, swept_value
from reshift.bench.tables.summary import Cell, Table
from reshift.evaluation.metrics.table import Metric, select_metrics
from reshift.reports.figures.paper import sensitivity
from reshift.reports.figures.style import PAGE, blank, legend_below, line_style, save, style
from reshift.reports.figures.sweep import MIN_VALUES, stable_range
from reshift.system.files import create_output_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXIS_NAMES = {
    "model.t_star": "restoration step t*",
    "model.mask_side": "mask side ℓ_M, in latent positions",
    "model.lambda_cls": "weight λ of the discriminative loss",
}


def write_figures(cells: Sequence[Cell], out: Path) -> list[Path]:
    """Write the figures of ablations and sweeps that the cells allow; return the PNGs."""
    drawn: dict[str, Figure] = {}
    for method in dict.fromkeys(str(cell["method"]) for cell in cells if cell["group"] == "ablation"):
        table = ablation_table([cell for cell in cells if cell["method"] == method])
        drawn |= {f"ablation-{slug(method)}": ablation_figure(table)} if table is not None else {}
    for sweep, mine in find_sweeps(cells).items():
        for metric in select_metrics("image", "pixel", place="sweep"):
            figure = sweep_figure(sweep, mine, metric)
            name = f"sensitivity-{slug(sweep[0])}-{slug(sweep[1])}-{slug(metric.caption)}"
            drawn |= {name: figure} if figure is not None else {}
    if drawn:
        create_output_folder(out)
    return [save(figure, out / name) for name, figure in drawn.items()]


def sweep_figure(sweep: Sweep, cells: Sequence[Cell], metric: Metric) -> "Figure | None":
    """Draw one metric against the setting, a curve per data set; None where fewer than three values have it."""
    curves: dict[str, list[tuple[float, list[float]]]] = {}
    cells = [cell for cell in cells if cell["status"] == "done" and is_number(cell)]
    for dataset in dict.fromkeys(str(cell["dataset"]) for cell in cells):
        points: dict[float, list[float]] = {}
        for cell in cells:
            found = metric.read_cell(cell) if cell["dataset"] == dataset else None
            if found is not None:
                points.setdefault(swept_value(cell), []).append(found * metric.unit)
        if len(points) >= MIN_VALUES:
            curves[dataset] = list(points.items())
    if not curves:
        return None
    stable, best = stable_range(next(iter(curves.values()))) if len(curves) == 1 else (None, None)
    shaded = stable if stable and stable[0] < stable[1] else None
    xlabel = f"{sweep[0]}: {AXIS_NAMES.get(sweep[1], sweep[1])}"
    return sensitivity(curves, xlabel=xlabel, ylabel=metric.axis, stable=shaded, best=best)


@style()
def ablation_figure(table: Table) -> "Figure":
    """Draw each variant's metrics as dots with their deviation over seeds, a panel per metric, a colour per data set."""
    shown = [metric for metric in table.metrics if "sweep" in metric.places] or list(table.metrics)
    figure = blank(PAGE, 0.5 + max(0.22, 0.07 * len(table.datasets)) * len(table.rows))
    axes = figure.subplots(1, len(shown), squeeze=False, sharey=True)[0]
    for ax, metric in zip(axes, shown, strict=True):
        for i, dataset in enumerate(table.datasets):
            known = [(y, row.entries[dataset, metric]) for y, row in enumerate(table.rows)]
            points = [(e.mean * metric.unit, y, (e.std or 0.0) * metric.unit) for y, e in known if e.mean is not None]
            offset = (i - (len(table.datasets) - 1) / 2) * min(0.12, 0.8 / len(table.datasets))
            look = {"color": line_style(i)["color"], "marker": "o", "linestyle": "none", "elinewidth": 0.6, "capsize": 1.5}
            x, at, spread = ([p[0] for p in points], [p[1] + offset for p in points], [p[2] for p in points])
            ax.errorbar(x, at, xerr=spread, label=dataset, **look)
        ax.set(xlabel=metric.axis)
        ax.grid(axis="y", linewidth=0.3)
    axes[0].set_yticks(range(len(table.rows)), [row.title for row in table.rows])
    axes[0].invert_yaxis()
    legend_below(figure, axes[0], 4, "mean ± SD over seeds")
    return figure
