"""Figures of ablations and sweeps, from the same cells as the tables; and those of kept heat-maps."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reshift.bench.cells import slug
from reshift.bench.suite import Figures
from reshift.bench.tables.build import Sweep, ablation_table, find_sweeps, is_number, sweep_of, swept_value
from reshift.bench.tables.map_figures import map_figures
from reshift.bench.tables.summary import Cell, Table
from reshift.evaluation.metrics.table import Metric, select_metrics
from reshift.reports.figures.paper import sensitivity
from reshift.reports.figures.style import PAGE, blank, legend_below, line_style, save, style
from reshift.reports.figures.sweep import MIN_VALUES, common_range, stable_range
from reshift.system.files import create_output_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXIS_NAMES = {
    "model.t_star": "restoration step t*",
    "model.mask_side": "mask side ℓ_M, in latent positions",
    "model.lambda_cls": "weight λ of the discriminative loss",
}


def write_figures(cells: Sequence[Cell], out: Path, evaluations: Path | None = None, wanted: Figures | None = None) -> list[Path]:
    """Write the figures that the cells allow, and those of kept evaluations; return the PNGs."""
    drawn: dict[str, Figure] = {}
    for method in dict.fromkeys(str(cell["method"]) for cell in cells if cell["group"] == "ablation"):
        table = ablation_table([cell for cell in cells if cell["method"] == method])
        drawn |= {f"ablation-{slug(method)}": ablation_figure(table)} if table is not None else {}
    for name, mine in _sweeps_by_figure(cells).items():
        for metric in select_metrics("image", "pixel", place="sweep"):
            figure = sweep_figure(mine, metric)
            drawn |= {f"sensitivity-{name}-{slug(metric.caption)}": figure} if figure is not None else {}
    if evaluations is not None:
        drawn |= map_figures(cells, evaluations, wanted or Figures())
    if drawn:
        create_output_folder(out)
    return [save(figure, out / name) for name, figure in drawn.items()]


def _sweeps_by_figure(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """The cells of each figure: of the sweeps that the suite puts in one, or of one sweep."""
    found: dict[str, list[Cell]] = {}
    for sweep, mine in find_sweeps(cells).items():
        for cell in mine:
            shared = cell["setting"].get("figure")
            found.setdefault(slug(shared) if shared else sweep.name, []).append(cell)
    return found


def sweep_figure(cells: Sequence[Cell], metric: Metric) -> "Figure | None":
    """Draw one metric against the setting, a curve per sweep and data set; None where fewer than three values have it.

    The range that is stable on every data set is shaded; where there are several sweeps, that of the first.
    """
    cells = [cell for cell in cells if cell["status"] == "done" and is_number(cell)]
    names = _curve_names(list(dict.fromkeys(map(sweep_of, cells))))
    found: dict[tuple[str, str], dict[float, list[float]]] = {}
    for cell in cells:
        if (value := metric.read_cell(cell)) is not None:
            curve = found.setdefault((names[sweep_of(cell)], str(cell["dataset"])), {})
            curve.setdefault(swept_value(cell), []).append(value * metric.unit)
    curves = {key: list(points.items()) for key, points in found.items() if len(points) >= MIN_VALUES}
    if not curves:
        return None
    sweeps, datasets = (list(dict.fromkeys(key[i] for key in curves)) for i in (0, 1))
    shaded = common_range(curve for key, curve in curves.items() if key[0] == sweeps[0])
    named = {_legend(key, sweeps, datasets): curve for key, curve in curves.items()}
    best = stable_range(next(iter(curves.values())))[1] if len(curves) == 1 else None
    text = "stable range" if len(sweeps) == 1 else f"stable range of {sweeps[0]}"
    setting, name = cells[0]["setting"], str(cells[0]["setting"]["name"])
    plain = AXIS_NAMES.get(name, name)
    xlabel = setting.get("axis") or (f"{sweeps[0]}: {plain}" if len(sweeps) == 1 else plain)
    return sensitivity(named, xlabel=xlabel, ylabel=metric.axis, stable=shaded, stable_text=text, best=best)


def _curve_names(sweeps: Sequence[Sweep]) -> dict[Sweep, str]:
    """Their labels; where two share one, also what is varied."""
    times = Counter(sweep.label for sweep in sweeps)
    return {s: s.label if times[s.label] == 1 else f"{s.label} ({s.method}, {s.setting})" for s in sweeps}


def _legend(key: tuple[str, str], sweeps: Sequence[str], datasets: Sequence[str]) -> str:
    """Whatever tells a curve from the others."""
    if len(sweeps) == 1:
        return key[1]
    return key[0] if len(datasets) == 1 else f"{key[0]}, {key[1]}"


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
