"""Draw the figures of docs/performance.md from results/: ``python tools/draw.py`` writes docs/figures/growth and loss-curves."""

import csv
import re
from pathlib import Path
from typing import Any, NamedTuple

from reshift.reports.figures.style import ABNORMAL, NORMAL, PAGE, blank, save, style

ROOT = Path(__file__).parents[1]
GROWTH = re.compile(r"(?P<what>.+) = (?P<value>[\d.]+)(?P<peak>: peak)?")
STAGES = {
    "autoencoder": "Stage I: reconstruction, codebook, commitment",
    "restoration": "Stage II: noise prediction behind the mask",
}
POWERS_FROM = 1000  # larger numbers at an axis are written as powers of ten


class Growth(NamedTuple):
    """Seconds and MiB against one quantity, and the slope of the log-log line of the seconds."""

    seconds: dict[float, float]
    memory: dict[float, float]
    slope: float


def read(name: str) -> list[dict[str, str]]:
    """The rows of ``results/NAME.csv``."""
    with (ROOT / "results" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def read_growth(*runs: str) -> dict[str, Growth]:
    """The growth of some runs, by what grows."""
    rows = [row for row in read("speed") if row["run"] in runs and row["section"] == "growth"]
    found = dict[str, Growth]()
    for row in rows:
        if match := GROWTH.fullmatch(row["item"]):
            growth = found.setdefault(match["what"], Growth({}, {}, 0.0))
            (growth.memory if match["peak"] else growth.seconds)[float(match["value"])] = float(row["value"])
    for row in rows:
        if row["unit"] == "exponent":
            what = row["item"].removeprefix("seconds against ")
            found[what] = found[what]._replace(slope=float(row["value"]))
    return found


def draw_growth(growths: dict[str, Growth], path: Path) -> Path:
    """One panel for each quantity: seconds to the left, memory to the right."""
    with style():
        figure = blank(PAGE, 1.7)
        for ax, (what, growth) in zip(figure.subplots(1, len(growths)), growths.items(), strict=True):
            ax.set(xlabel=what, title=f"exponent {growth.slope:.2f}")
            _line(ax, growth.seconds, NORMAL, "o-")
            _line(ax.twinx(), growth.memory, ABNORMAL, "s--")
        figure.supylabel("seconds; dashed, right: peak MiB", fontsize=6)
        return save(figure, path)


def _line(ax: Any, points: dict[float, float], colour: str, look: str) -> None:
    """Draw points with plain numbers at the axes."""
    ax.loglog(list(points), list(points.values()), look, color=colour, ms=2)
    ax.set_xticks(list(points), [f"$10^{{{x:.0e}}}$".replace("1e+0", "") if x >= POWERS_FROM else f"{x:g}" for x in points])
    low, high = min(points.values()), max(points.values())
    every = [digit * 10.0**power for power in range(-4, 6) for digit in (1, 2, 5)]
    ticks = [tick for tick in every if 0.8 * low <= tick <= 1.25 * high]
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.tick_params(axis="y", labelcolor=colour)


def draw_losses(path: Path) -> Path:
    """One panel for each stage of DMD."""
    rows = read("loss-curves")
    with style():
        figure = blank(PAGE, 2.2)
        for ax, (stage, title) in zip(figure.subplots(1, len(STAGES)), STAGES.items(), strict=True):
            points = [row for row in rows if row["stage"] == stage]
            for column, colour, label in (
                ("default", NORMAL, "default: bf16, recorded, fused"),
                ("float32", ABNORMAL, "float32, kernel by kernel"),
            ):
                values = [float(row[column]) for row in points]
                ax.semilogy([int(row["step"]) for row in points], values, color=colour, lw=0.8, label=label)
            ax.set(xlabel="step", ylabel="loss", title=title)
        figure.axes[0].legend(frameon=False)
        return save(figure, path)


if __name__ == "__main__":
    print(draw_growth(read_growth("gpu-h200", "gpu-h200-streams"), ROOT / "docs" / "figures" / "growth"))
    print(draw_losses(ROOT / "docs" / "figures" / "loss-curves"))
