"""Figures of pixels: maps side by side, and histograms of their values."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.errors import UserError
from reshift.evaluation.results import CaseArrays, PixelCounts, Results, case_arrays, choose_cases, pixel_counts
from reshift.inference.overlay import colours
from reshift.reports.figures.style import ABNORMAL, COLUMN, NORMAL, PAGE, blank, legend_below, nothing, panels, run_names, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 60
UNKNOWN = "no mask"
NO_MAP = "no map"


class Part(NamedTuple):
    """Some test images of one data set, with each method's evaluation that has maps of them, or None."""

    runs: Sequence[Results | None]
    cases: Sequence[str]
    dataset: str = ""  # shown beside the images, where there are several


class _Column(NamedTuple):
    """The maps of one method on one data set."""

    run: Results
    arrays: list[CaseArrays]  # of each image
    scale: float  # the map value of full colour
    calibrated: bool


@style()
def qualitative(runs: Sequence[Results], cases: Sequence[str] | None = None, rows: int = 6) -> "Figure":
    """Draw input | map of each method | ground truth; each method has one colour scale for all its maps."""
    chosen = list(cases) if cases is not None else choose_cases(runs, rows)
    if not chosen:
        raise UserError("no abnormal case has a map in every evaluation; evaluate the methods on the same test images")
    return _grid([Part(runs, chosen)], run_names(runs))


@style()
def qualitative_sets(sets: Mapping[str, Sequence[Results | None]], methods: Sequence[str], rows: int = 2) -> "Figure":
    """The same with some images of each data set, one set below the other; each has one evaluation per method, or None."""
    parts = [Part(runs, choose_cases([run for run in runs if run is not None], rows), name) for name, runs in sets.items()]
    if not any(part.cases for part in parts):
        raise UserError("no abnormal case has a map in every evaluation of its data set")
    return _grid([part for part in parts if part.cases], methods)


def _grid(parts: Sequence[Part], methods: Sequence[str]) -> "Figure":
    shown = [[_column(run, part.cases) if run is not None else None for run in part.runs] for part in parts]
    known = [all(column.calibrated for column in columns if column is not None) for columns in zip(*shown, strict=True)]
    titles = ["input", *(name + ("" if sure else "*") for name, sure in zip(methods, known, strict=True)), "truth"]
    figure, grid = _tiles(sum(len(part.cases) for part in parts), titles, known, left=0.24 if parts[0].dataset else 0.14)
    lines = iter(grid)
    for part, columns in zip(parts, shown, strict=True):
        for i in range(len(part.cases)):
            _draw_line(next(lines), part, i, columns)
    return figure


def _column(run: Results, cases: Sequence[str]) -> _Column:
    arrays = [_stored(run, name) for name in cases]
    return _Column(run, arrays, *_scale(run, [found.heatmap for found in arrays]))


def _draw_line(axes: Sequence["Axes"], part: Part, i: int, columns: Sequence[_Column | None]) -> None:
    """One image, its map by every method, and its mask."""
    one = next(column for column in columns if column is not None)  # image and mask are the same in all
    first, label = one.arrays[i], _lesion(one.arrays[i], one.run, part.cases[i])
    axes[0].imshow(first.image, cmap="gray", vmin=0, vmax=255)
    axes[0].set_ylabel(f"{part.dataset}\n{label}" if part.dataset else label, fontsize=5, labelpad=2)
    for ax, column in zip(axes[1:-1], columns, strict=True):
        if column is None:
            nothing(ax, NO_MAP)
        else:
            ax.imshow(colours(np.nan_to_num(column.arrays[i].heatmap / column.scale)))
    if first.mask is None and label == UNKNOWN:  # black would say that there is no lesion
        nothing(axes[-1], UNKNOWN)
    else:
        axes[-1].imshow(first.mask if first.mask is not None else np.zeros_like(first.image), cmap="gray", vmin=0, vmax=1)


def _tiles(down: int, titles: Sequence[str], calibrated: Sequence[bool], left: float) -> tuple["Figure", list[list["Axes"]]]:
    """Lay out square tiles edge to edge, in inches: automatic layouts leave gaps around images."""
    across, gap, top, bottom = len(titles), 0.03, 0.16, 0.3 if all(calibrated) else 0.42
    tile = min(0.75, ((COLUMN if across <= 6 else PAGE) - left) / across - gap)
    width, height = left + across * (tile + gap), top + bottom + down * (tile + gap)
    figure = blank(width, height, "none")
    size = min(7.0, tile * 72 / (0.64 * max(len(title) for title in titles)))

    def place(x: float, y: float, w: float, h: float) -> "Axes":
        return figure.add_axes((x / width, y / height, w / width, h / height))

    step = tile + gap
    grid = [[place(left + x * step, bottom + gap + y * step, tile, tile) for x in range(across)] for y in reversed(range(down))]
    for ax in (ax for axes in grid for ax in axes):
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    for ax, title in zip(grid[0], titles, strict=True):
        ax.set_title(title, fontsize=size, pad=2)
    bar = min(2.0, width - 0.9)
    _colour_bar(figure, place((width - bar) / 2, bottom - 0.06, bar, 0.05), calibrated)
    return figure, grid


def _stored(run: Results, name: str) -> CaseArrays:
    for case in run.cases:
        if case["input"] == name and case.get("arrays"):
            return case_arrays(run, case)
    raise UserError(f"{run.folder}: no map of {name}; choose a case that every evaluation has")


def _scale(run: Results, maps: Sequence[NDArray[np.float32]]) -> tuple[float, bool]:
    """Return the map value of full colour, and whether it comes from calibration."""
    threshold = (run.metrics.get("pixel") or {}).get("threshold")
    if threshold is not None and threshold > 0.0:
        return 2.0 * threshold, True
    high = float(np.nanpercentile(np.concatenate([heatmap.ravel() for heatmap in maps]), 99.9))
    return (high if high > 0.0 else 1.0), False


def _lesion(arrays: CaseArrays, run: Results, name: str) -> str:
    """The share of the image that the lesion covers, as text."""
    if arrays.mask is not None and arrays.mask.any():
        return f"lesion {arrays.mask.mean():.1%}"
    return UNKNOWN if any(case["input"] == name and case["label"] == 1 for case in run.cases) else "normal"


def _colour_bar(figure: "Figure", ax: "Axes", calibrated: Sequence[bool]) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap

    ramp = ListedColormap(colours(np.linspace(0.0, 1.0, 256, dtype=np.float32)[None])[0] / 255.0)
    bar = figure.colorbar(ScalarMappable(cmap=ramp), cax=ax, orientation="horizontal")
    bar.outline.set_visible(False)
    bar.set_ticks([0.0, 0.5, 1.0], labels=["0", "threshold", "≥ 2 × threshold"] if any(calibrated) else ["0", "", "full colour*"])
    ax.tick_params(length=1.5, pad=1.5)
    if not all(calibrated):
        ax.set_xlabel("* not calibrated: full colour at the 99.9th percentile", fontsize=5, labelpad=1)


@style()
def pixel_histogram(runs: Sequence[Results]) -> "Figure":
    """Draw the scores of normal and of abnormal pixels, each as shares of its class, since lesions have few pixels."""
    counts = [pixel_counts(run) for run in runs]
    usable = [pixels is not None and bool(pixels.normal.any() and pixels.abnormal.any()) for pixels in counts]
    if not any(usable):
        raise UserError("no evaluation has lesion masks, so there are no abnormal pixels to show")
    figure, axes = panels(len(runs), "pixel score", "share of the class's pixels")
    for ax, run, name, pixels, fit in zip(axes, runs, run_names(runs), counts, usable, strict=True):
        ax.set_title(name)
        if pixels is not None and fit:
            _histogram(ax, pixels, (run.metrics.get("pixel") or {}).get("threshold"))
        else:
            nothing(ax, "no lesion masks" if pixels is None else "pixels of one class only")
    drawn = axes[usable.index(True)]
    drawn.set_yscale("log")  # shared by all panels
    drawn.set_ylim(bottom=0.5 * min(1.0 / int(pixels.normal.sum() + pixels.abnormal.sum()) for pixels in counts if pixels))
    legend_below(figure, drawn, 3)
    return figure


def _histogram(ax: "Axes", pixels: PixelCounts, threshold: float | None) -> None:
    finite = np.isfinite(pixels.values)
    values = pixels.values[finite].astype(np.float64)
    edges = np.linspace(min(0.0, values[0]), max(values[-1], 1e-12), BINS + 1)
    for name, colour, counts in (("normal", NORMAL, pixels.normal), ("abnormal", ABNORMAL, pixels.abnormal)):
        share = np.histogram(values, edges, weights=counts[finite])[0] / counts.sum()
        ax.stairs(share, edges, fill=True, color=colour, alpha=0.35, linewidth=0, baseline=1e-9)
        ax.stairs(
            np.where(share > 0, share, np.nan),
            edges,
            color=colour,
            linewidth=0.8,
            zorder=3,
            label=f"{name} pixels",
            baseline=None,
        )
    if threshold is not None:
        ax.axvline(threshold, color="black", linestyle="--", linewidth=0.6, label="threshold")
