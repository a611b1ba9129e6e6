"""A sweep among evaluations: runs that differ in one number, whatever it is, and their figures against it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from reshift.errors import UserError
from reshift.evaluation.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = {"AUC": ("image", "auc"), "AP_pix": ("pixel", "ap")}
LEAST = 3  # values; two points are no curve
STABLE = 0.95  # of the best mean: what is as good as that is called stable


class Sweep(NamedTuple):
    """One setting's values, and per figure the runs' results at each of them, over seeds."""

    setting: str
    curves: dict[str, list[tuple[float, list[float]]]]


def find_sweep(runs: Sequence[Results]) -> Sweep:
    """Find the one setting in which the runs differ, seeds aside; refuse, in a line, what is no sweep."""
    described = [_described(run.metrics) for run in runs]
    names = {name for about in described for name in about}
    varying = sorted(name for name in names if len({repr(about.get(name)) for about in described}) > 1)
    if len(varying) != 1:
        found = f"they differ in {', '.join(varying[:4])}" if varying else "they differ in none"
        raise UserError(f"a sensitivity figure needs evaluations that differ in one setting; {found}")
    values = [about.get(varying[0]) for about in described]
    numbers = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(values) or len(set(numbers)) < LEAST:
        given = ", ".join(sorted(set(map(str, values))))
        raise UserError(f"a sensitivity figure needs at least {LEAST} different numbers of {varying[0]}, not {given}")
    curves: dict[str, list[tuple[float, list[float]]]] = {}
    for label, (level, name) in FIGURES.items():
        pairs = [(x, run.metrics[level].get(name)) for x, run in zip(numbers, runs, strict=True)]
        known = {x: [value for at, value in pairs if at == x and value is not None] for x in sorted(set(numbers))}
        if any(known.values()):
            curves[label] = list(known.items())
    return Sweep(varying[0], curves)


def stable_range(curve: Sequence[tuple[float, Sequence[float]]]) -> tuple[tuple[float, float], float]:
    """The run of neighbouring values around the best whose means come near it, and the best."""
    means = [(x, sum(values) / len(values)) for x, values in curve if values]
    at = max(range(len(means)), key=lambda i: means[i][1])
    low = high = at
    while low > 0 and means[low - 1][1] >= STABLE * means[at][1]:
        low -= 1
    while high + 1 < len(means) and means[high + 1][1] >= STABLE * means[at][1]:
        high += 1
    return (means[low][0], means[high][0]), means[at][0]


def sweep_figure(runs: Sequence[Results]) -> "Figure":
    """Draw both figures against the setting; the range in which the last of them stays near its best is shaded."""
    from reshift.reports.figures.paper import sensitivity

    found = find_sweep(runs)
    if not found.curves:
        raise UserError("none of the evaluations has an AUC or a pixel AP to draw")
    stable, best = stable_range(list(found.curves.values())[-1])
    shaded = stable if stable[0] < stable[1] else None
    return sensitivity(found.curves, xlabel=found.setting, ylabel=" and ".join(found.curves), stable=shaded, best=best)


def _described(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What a run may differ in from another: method, data and settings, but not the seed."""
    return {"method": metrics["method"], "dataset": metrics.get("dataset"), **_flat(metrics.get("settings") or {})}


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in table.items():
        out |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return out
