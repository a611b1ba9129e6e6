"""The tables and figures of a benchmark from its cells: ``tables.md``, ``tables.tex``, ``tables.csv`` and ``figures/``.

May import evaluation and reports, and of ``bench`` what cells and suites are.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from reshift.bench.suite import Figures
from reshift.bench.tables.build import make_tables
from reshift.bench.tables.figures import write_figures
from reshift.bench.tables.formats import csv_text, latex, markdown_line, markdown_section
from reshift.bench.tables.paper import SENTENCE, printed_table
from reshift.bench.tables.significance import has_test
from reshift.bench.tables.summary import Cell, Table, current_cells
from reshift.errors import UserError
from reshift.evaluation.metrics.table import select_metrics
from reshift.system.files import atomic_text, create_output_folder

LEGEND = """\
Image and pixel metrics are in per cent. **Bold** is the best of a column and <u>underlined</u> the second; equal printed values
are marked alike, and a row with another number of seeds than usual says so. ± is the standard deviation over seeds; [low, high]
is a 95 % interval by bootstrap over test subjects, with several seeds the mean of the seeds' bounds: ± says how much a metric
depends on the seed, the interval how much on the patients. n: number of seeds. –: cannot be measured there. Empty: no
such cell. **failed**: every cell failed; the errors are listed at the end. † marks a stand-in, explained below its table.
"""
TESTS = """\
<sup>+</sup> better and <sup>−</sup> worse than the best baseline of that column at 5 %, by a paired test over subjects with
Holm's correction over the columns of the row. Image metrics: a bootstrap with the same draws for both rows; the metric is
computed per seed on every draw and averaged over seeds. {tested}: random signs of the subjects' differences in the
mean, over images with a lesion, of the image's own value averaged over seeds, since pooled pixels are not kept. The best
baseline is the best on these same images, which makes a + harder to reach. Not tested: {untested}.
"""


def write_tables(cells: Sequence[Cell], out: Path, figures: Figures | None = None) -> None:
    """Write tables and figures; without matplotlib there are no figures, and one line on stderr says so."""
    create_output_folder(out)
    made = make_tables(cells)
    printed = [other for table in made if (other := printed_table(table)) is not None]
    atomic_text(out / "tables.md", markdown_page(cells, made))
    atomic_text(out / "tables.tex", latex([*made, *printed]))
    atomic_text(out / "tables.csv", csv_text(made))
    try:
        write_figures(current_cells(cells), out / "figures", out / "evaluations", figures)
    except UserError as err:
        print(f"no figures: {err}", file=sys.stderr)


def markdown_page(cells: Sequence[Cell], made: Sequence[Table]) -> str:
    """All tables as one page of Markdown."""
    cells = current_cells(cells)
    suites = ", ".join(dict.fromkeys(str(cell["suite"]) for cell in cells)) or "no cells"
    failed = [cell for cell in cells if cell["status"] == "failed"]
    rows, datasets = len({cell["row"] for cell in cells}), len({cell["dataset"] for cell in cells})
    seeds = ", ".join(map(str, sorted({int(cell["seed"]) for cell in cells})))
    counts = [f"{len(cells)} cells: {rows} rows, {datasets} datasets, seeds {seeds}; {len(failed)} failed."] if cells else []
    lines = [f"# Benchmark: {suites}", "", *counts, *_mixed_versions(cells), "", LEGEND]
    lines += [_tests()] if any(entry.verdict for table in made for row in table.rows for entry in row.entries.values()) else []
    lines += [f"{SENTENCE}\n"] if any(printed_table(table) for table in made) else []
    for table in made:
        lines += markdown_section(table)
    if failed:
        lines += ["## Failed cells", "", markdown_line(["dataset", "row", "seed", "error"]), "|---|---|---|---|"]
        lines += [markdown_line([str(cell[k]) for k in ("dataset", "row", "seed", "error")]) for cell in failed]
    return "\n".join(lines).rstrip() + "\n"


def _tests() -> str:
    """How the marks were found."""
    pixel = select_metrics("pixel", place="tables")
    tested, untested = (", ".join(m.caption for m in pixel if has_test(m) is wanted) or "none" for wanted in (True, False))
    return TESTS.format(tested=tested, untested=untested)


def _mixed_versions(cells: Sequence[Cell]) -> list[str]:
    """Warn where the cells of one method were made by different code; each method has a version of its own."""
    known = {(str(cell["method"]), str(cell["code"])) for cell in cells if cell.get("code")}
    count = Counter(method for method, _ in known)
    mixed = ", ".join(method for method, n in count.items() if n > 1)
    return [f"\n**Note:** cells of different versions of the code are mixed in: {mixed}; run the suite again."] if mixed else []
