"""Tables as Markdown and as one long CSV."""

import csv
import io
from collections.abc import Sequence

from reshift.bench.printed import figures_of, lookup, relations
from reshift.bench.summary import Entry, Figure, Row, Table, blocks

NOTHING = "–"
CSV_HEAD = (
    "table", "dataset", "row", "group", "figure", "mean", "std", "seeds", "done", "failed", "low", "high", "rank", "against",
    "difference", "p_value", "p_holm", "mark", "printed_mean", "printed_std", "printed_dataset", "caveat",
)  # fmt: skip
LEGEND = """\
Image and pixel figures are in per cent. **Bold** is the best of a column and <u>underlined</u> the second; what prints the same
is marked the same, and a row of other than the usual number of seeds says so. ± is the standard deviation over seeds; [low, high]
a 95 % interval by bootstrap over test subjects, with several seeds the mean of the seeds' bounds: ± says how much a figure
depends on the seed, the interval how much on the patients. n: seeds behind a figure. –: cannot be measured there. Empty: no
such cell. **failed**: every cell failed; the errors are listed at the end. † marks a stand-in, explained below its table.
"""
TESTS = """\
<sup>+</sup> better and <sup>−</sup> worse than the best baseline of that column at 5 %, by a paired test over subjects with
Holm's correction over the columns of the row. AUC, AP and F1: a bootstrap with the same draws for both rows, the figures
computed per seed on every draw and averaged over seeds. AP_pix and Dice: random signs of the subjects' differences in the
mean, over images with a lesion, of the image's own figure averaged over seeds, since pooled pixels are not kept. AUPRO has
no test. The best baseline is the best on these very images: a + is the harder to earn.
"""


def number(entry: Entry, figure: Figure) -> str:
    """The mean with its deviation, or what stands in its place."""
    if entry.mean is None:
        return "**failed**" if entry.failed and not entry.done else NOTHING if entry.done else ""
    text = figure.shown(entry.mean)
    text = f"**{text}**" if entry.rank == 1 else f"<u>{text}</u>" if entry.rank == 2 else text
    return text + (f" ± {figure.spread(entry.std)}" if entry.std is not None else "")


def extras(entry: Entry, usual: int) -> str:
    """What a reader must know about this one figure: other seeds than usual, failed cells."""
    said = [f"n={entry.seeds}"] if entry.mean is not None and entry.seeds != usual else []
    said += [f"{entry.failed} failed"] if entry.mean is not None and entry.failed else []
    return f" ({', '.join(said)})" if said else ""


def mark(entry: Entry) -> str:
    """The significance mark."""
    found = entry.verdict.mark if entry.verdict else ""
    return f"<sup>{found.replace('-', '−')}</sup>" if found else ""


def _whole(entry: Entry, figure: Figure, usual: int) -> str:
    interval = f" [{figure.shown(entry.interval[0])}, {figure.shown(entry.interval[1])}]" if entry.interval else ""
    return number(entry, figure) + mark(entry) + interval + extras(entry, usual)


def line(cells: Sequence[str]) -> str:
    """One line of a Markdown table; a | inside a cell would end it."""
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def overview(table: Table) -> list[str]:
    """The paper's layout: datasets across, a row per method; means, deviations and marks."""
    lines, usual = [], table.usual_seeds
    for block in blocks(table):
        columns = [(name, figure) for name in block.datasets for figure in block.figures]
        heads = [f"{name} {figure.label}" for name, figure in columns]
        lines += ["", line([table.head, *heads]), "|---" * (len(heads) + 1) + "|"]
        for row in block.rows:
            found = [(row.entries[column], column[1]) for column in columns]
            shown = [number(entry, figure) + mark(entry) + extras(entry, usual) for entry, figure in found]
            lines.append(line([row.title, *shown]))
    return lines


def details(table: Table) -> list[str]:
    """A table per dataset: every figure with its interval, and the paper's in columns of their own."""
    lines, usual = [], table.usual_seeds
    for dataset in table.datasets:
        printed = figures_of(table, dataset)
        heads = ["seeds", *(figure.label for figure in table.figures), *(f"*printed: {figure.label}*" for figure in printed)]
        lines += ["", f"### {table.title}: {dataset}", "", line([table.head, *heads]), "|---" * (len(heads) + 1) + "|"]
        for row in table.rows:
            entries = [row.entries[dataset, figure] for figure in table.figures]
            shown = [_whole(entry, figure, usual) for entry, figure in zip(entries, table.figures, strict=True)]
            seeds = str(max((entry.seeds for entry in entries), default=0) or "")
            lines.append(line([row.title, seeds, *shown, *(_printed(table, row, dataset, figure) for figure in printed)]))
        lines += ["", f"*Printed* is the paper's own figure. {relations((dataset,))[0]}"] if printed else []
    return lines


def _printed(table: Table, row: Row, dataset: str, figure: Figure) -> str:
    found = lookup(table.key, row, (dataset, figure))
    if found is None:
        return ""
    return f"*{figure.shown(found.mean)}" + (f" ± {figure.spread(found.std)}" if found.std is not None else "") + "*"


def section(table: Table) -> list[str]:
    """One table in full."""
    many = len(table.datasets) > 1
    notes = [f"- {note}" for note in table.notes]
    body = (overview(table) if many else []) + (details(table) if table.figures[0].level != "cost" else [])
    return [f"## {table.title}", *(body or overview(table)), *(["", *notes] if notes else []), ""]


def csv_text(tables: Sequence[Table]) -> str:
    """Every figure of every table in a line of its own, as fractions; the paper's in columns of their own."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_HEAD)
    for table in tables:
        for row in table.rows:
            for (dataset, figure), entry in row.entries.items():
                writer.writerow(_record(table, row, dataset, figure, entry))
    return out.getvalue()


def _record(table: Table, row: Row, dataset: str, figure: Figure, entry: Entry) -> list[object]:
    low, high = entry.interval or (None, None)
    test, paper = entry.verdict, lookup(table.key, row, (dataset, figure))
    verdict = [test.against, *map(_short, test[1:4]), test.mark] if test else [None] * 5
    beside = [_short(paper.mean), _short(paper.std), paper.dataset] if paper else [None] * 3
    about = [table.key, dataset, row.title, row.group, f"{figure.level}.{figure.name}"]
    figures = [_short(entry.mean), _short(entry.std), entry.seeds, entry.done, entry.failed, _short(low), _short(high)]
    return [*about, *figures, entry.rank or None, *verdict, *beside, row.caveat]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
