"""Draw how time and memory grow, from the rows that ``gpu.py --out`` wrote.

python benchmarks/draw.py rows.json [more.json …] docs/figures/growth      (.png and .pdf)
"""

import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from reshift.reports.figures.style import ABNORMAL, NORMAL, PAGE, blank, save, style

MANY = 1000  # from here on powers of ten
ROW = re.compile(r"(?P<what>.+) = (?P<value>[\d.]+)(?P<peak>: peak)?")


class Growth(NamedTuple):
    """Seconds and MiB against one quantity, and the slope of the former's log-log line."""

    seconds: dict[float, float]
    memory: dict[float, float]
    slope: float


def read(rows: list[dict[str, Any]]) -> dict[str, Growth]:
    """The rows of section ``growth``, by what grows."""
    found = dict[str, Growth]()
    for row in rows:
        if row["section"] == "growth" and (match := ROW.fullmatch(row["item"])):
            growth = found.setdefault(match["what"], Growth({}, {}, 0.0))
            (growth.memory if match["peak"] else growth.seconds)[float(match["value"])] = row["value"]
    for row in rows:
        if row["unit"] == "exponent" and (what := row["item"].removeprefix("seconds against ")) in found:
            found[what] = found[what]._replace(slope=row["value"])
    return found


def draw(growths: dict[str, Growth], path: Path) -> Path:
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
    """Plain numbers at the axes, not powers."""
    ax.loglog(list(points), list(points.values()), look, color=colour, ms=2)
    ax.set_xticks(list(points), [f"$10^{{{x:.0e}}}$".replace("1e+0", "") if x >= MANY else f"{x:g}" for x in points])
    low, high = min(points.values()), max(points.values())
    every = [digit * 10.0**power for power in range(-4, 6) for digit in (1, 2, 5)]
    ticks = [tick for tick in every if 0.8 * low <= tick <= 1.25 * high]
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.tick_params(axis="y", labelcolor=colour)


if __name__ == "__main__":
    *files, out = map(Path, sys.argv[1:])
    print(draw(read([row for file in files for row in json.loads(file.read_text())["rows"]]), out))
