"""One style for all figures, and how they are saved."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reshift.errors import UserError
from reshift.evaluation.results import Results
from reshift.system.files import atomic_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NORMAL, ABNORMAL, QUIET = "#0072B2", "#D55E00", "#808080"
# Okabe and Ito's palette for colour-blind readers, without its yellow, which is too pale for a thin line on white.
METHODS = (NORMAL, ABNORMAL, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")  # the next one after all colours have been used
COLUMN, PAGE = 3.4, 6.9  # inches: one column of a two-column paper, and both

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # part of matplotlib, so that a figure is the same on every machine
    "font.size": 7.0,
    "axes.titlesize": 7.0,
    "axes.labelsize": 7.0,
    "xtick.labelsize": 6.0,
    "ytick.labelsize": 6.0,
    "legend.fontsize": 6.0,
    "legend.title_fontsize": 6.0,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "axes.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.minor.width": 0.3,
    "ytick.minor.width": 0.3,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "lines.linewidth": 1.0,
    "lines.markersize": 3.5,
    "pdf.fonttype": 42,  # TrueType: journals refuse Type 3
}


@contextmanager
def style() -> Iterator[None]:
    """Draw in our style inside the block, without changing a caller's settings; also a decorator, ``@style()``."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise UserError("figures need matplotlib: pip install 'reshift[report]'") from None
    with mpl.rc_context():
        mpl.rcdefaults()  # so that a caller's matplotlibrc has no effect
        settings: Any = mpl.rcParams  # typed by a literal of every key, in some versions
        settings.update(STYLE)
        yield


def save(figure: "Figure", path: Path) -> Path:
    """Write ``path``.pdf and ``path``.png, the same bytes every time; return the PNG's path."""
    png = path.with_name(f"{path.name}.png")
    options: dict[str, dict[str, Any]] = {"pdf": {"dpi": 300, "metadata": {"CreationDate": None}}, "png": {"dpi": 150}}
    for kind, extra in options.items():  # in a PDF, dpi is that of images and maps only
        data = BytesIO()
        with style():  # ticks are made only when drawn
            figure.savefig(data, format=kind, **extra)
        atomic_bytes(png.with_suffix(f".{kind}"), data.getvalue())
    return png


def blank(width: float, height: float, layout: Any = "constrained") -> "Figure":
    """Make a figure without pyplot: no window, no global list that keeps it in memory."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def panels(count: int, xlabel: str, ylabel: str) -> tuple["Figure", list["Axes"]]:
    """Lay out ``count`` small panels, two in a row, or four across the page when there are many."""
    across = 1 if count == 1 else 2 if count <= 6 else 4
    down = -(-count // across)
    figure = blank(PAGE if across == 4 else COLUMN, 2.0 if across == 1 else 0.2 + 1.2 * down)
    grid = list(figure.subplots(down, across, squeeze=False, sharey=True).flat)
    for ax in grid[count:]:
        ax.set_visible(False)
    for ax in grid[:count][-across:]:  # the lowest of each column
        ax.set_xlabel(xlabel)
    figure.supylabel(ylabel, fontsize=STYLE["axes.labelsize"])
    return figure, grid[:count]


def nothing(ax: "Axes", why: str) -> None:
    """Leave a panel empty, with the reason as text."""
    ax.text(0.5, 0.5, why, transform=ax.transAxes, ha="center", va="center", color=QUIET)
    ax.tick_params(bottom=False, left=False, labelbottom=False, which="both")


def line_style(index: int) -> dict[str, Any]:
    """Colour and dashes of the ``index``-th method."""
    return {"color": METHODS[index % len(METHODS)], "linestyle": DASHES[index // len(METHODS) % len(DASHES)]}


def legend_below(figure: "Figure", ax: "Axes", across: int = 2, title: str | None = None) -> None:
    """Put the legend of ``ax`` below the figure, where it covers no curve, and add the height it needs."""
    handles, labels = ax.get_legend_handles_labels()
    lines = -(-len(handles) // across) + (title is not None)
    figure.set_figheight(figure.get_figheight() + 0.12 + 0.125 * lines)
    options: dict[str, Any] = {"ncols": across, "columnspacing": 1.2, "handletextpad": 0.5, "title": title}
    figure.legend(handles, labels, loc="outside lower center", **options)


def run_names(runs: Sequence[Results]) -> list[str]:
    """Name the runs by method, and by data set, seed or folder where methods are equal."""
    known = [[run.name, str(run.metrics.get("dataset")), f"seed {run.metrics.get('seed')}", run.folder.name] for run in runs]
    for parts in ([0], [0, 1], [0, 2], [0, 1, 2]):
        names = [", ".join(row[i] for i in parts) for row in known]
        if len(set(names)) == len(names):
            return names
    return [f"{row[0]}, {i + 1}: {row[3]}" for i, row in enumerate(known)]
