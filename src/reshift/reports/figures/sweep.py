"""A sweep among evaluations: runs that differ in one number, and their metrics against it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from reshift.errors import UserError
from reshift.evaluation.metrics.table import Metric, select_metrics
from reshift.evaluation.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIN_VALUES = 3  # of the setting; two points are no curve
STABLE = 0.95  # of the best mean: values that reach it are in the stable range


class Sweep(NamedTuple):
    """One setting, and for each metric the results of the runs at each of its values, over seeds."""

    setting: str
    curves: dict[str, list[tuple[float, list[float]]]]


def find_sweep(runs: Sequence[Results]) -> Sweep:
    """Find the one setting in which the runs differ, seeds aside; refuse runs that are no sweep."""
    described = [_described(run.metrics) for run in runs]
    names = {name for about in described for name in about}
    varying = sorted(name for name in names if len({repr(about.get(name)) for about in described}) > 1)
    if len(varying) != 1:
        found = f"they differ in {', '.join(varying[:4])}" if varying else "they differ in none"
        raise UserError(f"a sensitivity figure needs evaluations that differ in one setting; {found}")
    values = [about.get(varying[0]) for about in described]
    numbers = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(values) or len(set(numbers)) < MIN_VALUES:
        given = ", ".join(sorted(set(map(str, values))))
        raise UserError(f"a sensitivity figure needs at least {MIN_VALUES} different numbers of {varying[0]}, not {given}")
    curves: dict[str, list[tuple[float, list[float]]]] = {}
    for metric in _shown():
        pairs = [(x, metric.read(run.metrics)) for x, run in zip(numbers, runs, strict=True)]
        known = {x: [value for at, value in pairs if at == x and value is not None] for x in sorted(set(numbers))}
        if any(known.values()):
            curves[metric.caption] = list(known.items())
    return Sweep(varying[0], curves)


def stable_range(curve: Sequence[tuple[float, Sequence[float]]]) -> tuple[tuple[float, float], float]:
    """The range of neighbouring values around the best whose means are close to its mean, and the best value."""
    means = [(x, sum(values) / len(values)) for x, values in curve if values]
    at = max(range(len(means)), key=lambda i: means[i][1])
    low = high = at
    while low > 0 and means[low - 1][1] >= STABLE * means[at][1]:
        low -= 1
    while high + 1 < len(means) and means[high + 1][1] >= STABLE * means[at][1]:
        high += 1
    return (means[low][0], means[high][0]), means[at][0]


def common_range(curves: Iterable[Sequence[tuple[float, Sequence[float]]]]) -> tuple[float, float] | None:
    """The range that is stable for every curve, of several data sets for example; None where they share none."""
    ranges = [stable_range(curve)[0] for curve in curves]
    low, high = max(low for low, _ in ranges), min(high for _, high in ranges)
    return (low, high) if low < high else None


def sweep_figure(runs: Sequence[Results]) -> "Figure":
    """Draw the metrics against the setting; the range in which the last of them stays close to its best is shaded."""
    from reshift.reports.figures.paper import sensitivity

    found = find_sweep(runs)
    if not found.curves:
        raise UserError(f"none of the evaluations has a value of {' or '.join(metric.caption for metric in _shown())}")
    last = list(found.curves.values())[-1]
    options = {"xlabel": found.setting, "ylabel": " and ".join(found.curves)}
    return sensitivity(found.curves, **options, stable=common_range([last]), best=stable_range(last)[1])


def _shown() -> list[Metric]:
    """The first swept metric of images, and the first of pixels."""
    return [select_metrics(level, place="sweep")[0] for level in ("image", "pixel")]


def _described(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What runs may differ in: method, data and settings, but not the seed."""
    return {"method": metrics["method"], "dataset": metrics.get("dataset"), **_flat(metrics.get("settings") or {})}


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in table.items():
        out |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return out
