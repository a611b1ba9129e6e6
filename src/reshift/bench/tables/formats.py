"""Tables as Markdown, as LaTeX with booktabs in the paper's layout, and as one long CSV."""

import csv
import io
from collections.abc import Sequence

from reshift.bench.tables.paper import find_printed, printed_metrics, relations
from reshift.bench.tables.summary import Entry, Row, Table, split_wide
from reshift.evaluation.metrics.table import Metric

CSV_HEAD = (
    "table", "dataset", "row", "group", "metric", "mean", "std", "seeds", "done", "failed", "low", "high", "rank", "against",
    "difference", "p_value", "p_holm", "mark", "printed_mean", "printed_std", "printed_dataset", "caveat",
)  # fmt: skip

# ---- Markdown ------------------------------------------------------------------------------------------------------------


def markdown_section(table: Table) -> list[str]:
    """One table in full: an overview if there are several data sets, then each data set with intervals."""
    cost = table.metrics[0].level == "cost"
    body = (_overview(table) if cost or len(table.datasets) > 1 else []) + ([] if cost else _details(table))
    notes = [f"- {note}" for note in table.notes]
    return [f"## {table.title}", *body, *(["", *notes] if notes else []), ""]


def markdown_line(cells: Sequence[str]) -> str:
    """One line of a Markdown table; a | inside a cell would end it."""
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _overview(table: Table) -> list[str]:
    """The paper's layout: data sets across, a row per method; means, deviations and marks."""
    lines, usual = [], table.usual_seeds
    for part in split_wide(table):
        heads = [f"{name} {metric.caption}" for name, metric in part.columns]
        lines += ["", markdown_line([table.head, *heads]), "|---" * (len(heads) + 1) + "|"]
        for row in part.rows:
            shown = [_markdown_entry(row.entries[column], column[1], usual) for column in part.columns]
            lines.append(markdown_line([row.title, *shown]))
    return lines


def _details(table: Table) -> list[str]:
    """A table per data set: every metric with its interval, and the paper's in columns of their own."""
    lines, usual = [], table.usual_seeds
    for dataset in table.datasets:
        printed = printed_metrics(table, dataset)
        heads = ["seeds", *(metric.caption for metric in table.metrics), *(f"*printed: {metric.caption}*" for metric in printed)]
        lines += ["", f"### {table.title}: {dataset}", "", markdown_line([table.head, *heads]), "|---" * (len(heads) + 1) + "|"]
        for row in table.rows:
            entries = [(row.entries[dataset, metric], metric) for metric in table.metrics]
            shown = [_markdown_entry(entry, metric, usual, interval=True) for entry, metric in entries]
            shown += [_printed(table, row, dataset, metric) for metric in printed]
            lines.append(markdown_line([row.title, _seeds(row, dataset), *shown]))
        lines += ["", f"*Printed* is the paper's own number. {relations((dataset,))[0]}"] if printed else []
    return lines


def _markdown_entry(entry: Entry, metric: Metric, usual: int, *, interval: bool = False) -> str:
    """The mean with its deviation, mark and interval, or what is shown in its place."""
    if entry.mean is None:
        return "**failed**" if entry.failed and not entry.done else "–" if entry.done else ""
    text = metric.table_text(entry.mean)
    text = f"**{text}**" if entry.rank == 1 else f"<u>{text}</u>" if entry.rank == 2 else text
    text += f" ± {metric.table_spread(entry.std)}" if entry.std is not None else ""
    text += f"<sup>{entry.verdict.mark.replace('-', '−')}</sup>" if entry.verdict and entry.verdict.mark else ""
    text += f" {_bounds(entry, metric)}" if interval and entry.interval else ""
    remarks = _remarks(entry, usual, "n={}")
    return text + (f" ({', '.join(remarks)})" if remarks else "")


def _remarks(entry: Entry, usual: int, seeds: str) -> list[str]:
    """What a reader must know about this entry: another number of seeds than usual, failed cells."""
    return [seeds.format(entry.seeds)] * (entry.seeds != usual) + [f"{entry.failed} failed"] * (entry.failed > 0)


def _bounds(entry: Entry, metric: Metric) -> str:
    return f"[{', '.join(metric.table_text(bound) for bound in entry.interval)}]" if entry.interval else ""


def _seeds(row: Row, *datasets: str) -> str:
    return str(max((entry.seeds for (name, _), entry in row.entries.items() if name in datasets), default=0) or "")


def _printed(table: Table, row: Row, dataset: str, metric: Metric) -> str:
    found = find_printed(table.key, row, (dataset, metric))
    if found is None:
        return ""
    return f"*{metric.table_text(found.mean)}" + (f" ± {metric.table_spread(found.std)}" if found.std is not None else "") + "*"


# ---- CSV -----------------------------------------------------------------------------------------------------------------


def csv_text(tables: Sequence[Table]) -> str:
    """Every entry of every table in a line of its own, as fractions; the paper's numbers in columns of their own."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_HEAD)
    for table in tables:
        for row in table.rows:
            for (dataset, metric), entry in row.entries.items():
                writer.writerow(_csv_record(table, row, dataset, metric, entry))
    return out.getvalue()


def _csv_record(table: Table, row: Row, dataset: str, metric: Metric, entry: Entry) -> list[object]:
    low, high = entry.interval or (None, None)
    test, paper = entry.verdict, find_printed(table.key, row, (dataset, metric))
    verdict = [test.against, *map(_short, test[1:4]), test.mark] if test else [None] * 5
    printed = [_short(paper.mean), _short(paper.std), paper.dataset] if paper else [None] * 3
    about = [table.key, dataset, row.title, row.group, metric.key]
    values = [_short(entry.mean), _short(entry.std), entry.seeds, entry.done, entry.failed, _short(low), _short(high)]
    return [*about, *values, entry.rank or None, *verdict, *printed, row.caveat]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


# ---- LaTeX ---------------------------------------------------------------------------------------------------------------

PREAMBLE = "% Needs \\usepackage{booktabs} in the preamble; every table is complete in itself.\n"
ESCAPES = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "†": r"\textdagger{}", "–": "--", "−": "$-$", "±": r"$\pm$",
    "λ": r"$\lambda$", "ℓ": r"$\ell$", "≥": r"$\geq$", "≤": r"$\leq$", "×": r"$\times$", "·": r"$\cdot$", "*": r"$^*$",
    "β": r"$\beta$", "ρ": r"$\rho$", "<": r"$<$", ">": r"$>$", "|": r"$|$",
}  # fmt: skip
ARROWS = {"higher": r"$\uparrow$", "lower": r"$\downarrow$", None: ""}
MEAN = r": mean$\pm$standard deviation over $n$ seeds"
INTERVAL = r", below it a 95\,\% interval by bootstrap over test subjects (with several seeds, the mean of their bounds)"
BEST = " Best in bold, second underlined."
MARKS = (
    r" $^{{+}}$/$^{{-}}$: better/worse than {against} at 5\,\% (paired test over subjects: bootstrap at image level, random "
    r"signs at pixel level; Holm's correction over the columns of a row)."
)


def escape(text: str) -> str:
    """Make text safe for LaTeX."""
    return "".join(ESCAPES.get(letter, letter) for letter in text)


def latex(tables: Sequence[Table]) -> str:
    """Every table, each a float of its own."""
    return PREAMBLE + "\n".join(_float(part, table) for table in tables for part in split_wide(table))


def _float(part: Table, whole: Table) -> str:
    """One float; columns beyond the page's width have been cut off into the next."""
    with_seeds = part.head == "method"
    spec = "@{}l" + ("r" if with_seeds else "") + "c" * len(part.columns) + "@{}"
    label = part.key if part.datasets == whole.datasets else "-".join([part.key, *part.datasets])
    lines = [
        r"\begin{table*}[t]", r"\centering", r"\footnotesize", r"\setlength{\tabcolsep}{1.2mm}",
        rf"\begin{{tabular}}{{{spec}}}", r"\toprule", *_latex_heads(part, with_seeds=with_seeds), r"\midrule",
        *_latex_body(part, with_seeds=with_seeds), r"\bottomrule", r"\end{tabular}", rf"\caption{{{_caption(part)}}}",
        rf"\label{{tab:{label}}}", r"\end{table*}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _latex_heads(table: Table, *, with_seeds: bool) -> list[str]:
    across, first = len(table.metrics), 3 if with_seeds else 2
    names = [rf"\multicolumn{{{across}}}{{c}}{{\textbf{{{escape(name)}}}}}" for name in table.datasets]
    rules = [rf"\cmidrule(lr){{{first + i * across}-{first + (i + 1) * across - 1}}}" for i in range(len(table.datasets))]
    metrics = [_latex_head(metric) for _, metric in table.columns]
    lead = [rf"\textbf{{{escape(table.head.capitalize())}}}", *(["$n$"] if with_seeds else [])]
    return [_latex_line([*[""] * len(lead), *names]), *rules, _latex_line([*lead, *metrics])]


def _latex_head(metric: Metric) -> str:
    name, _, index = metric.caption.partition("_")
    return escape(name) + (rf"$_{{\mathrm{{{index}}}}}$" if index else "") + ARROWS[metric.better]


def _latex_body(table: Table, *, with_seeds: bool) -> list[str]:
    lines, usual, before = [], table.usual_seeds, ""
    for row in table.rows:
        lines += [r"\midrule"] if before and row.group != before else []
        before = row.group
        entries = [(row.entries[column], column[1]) for column in table.columns]
        seeds = [_seeds(row, *table.datasets)] if with_seeds else []
        lines.append(_latex_line([escape(row.title), *seeds, *(_latex_entry(entry, m, usual) for entry, m in entries)]))
        if any(entry.interval for entry, _ in entries):
            bounds = [rf"{{\tiny{_bounds(entry, m)}}}" if entry.interval else "" for entry, m in entries]
            lines.append(_latex_line(["", *[""] * len(seeds), *bounds]))
    return lines


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_entry(entry: Entry, metric: Metric, usual: int) -> str:
    if entry.mean is None:
        return r"\emph{failed}" if entry.failed and not entry.done else "--" if entry.done else ""
    std = rf"{{\scriptsize $\pm${metric.table_spread(entry.std)}}}" if entry.std is not None else ""
    text = metric.table_text(entry.mean) + std
    text = rf"\textbf{{{text}}}" if entry.rank == 1 else rf"\underline{{{text}}}" if entry.rank == 2 else text
    text += f"$^{{{entry.verdict.mark}}}$" if entry.verdict and entry.verdict.mark else ""
    remarks = _remarks(entry, usual, "$n{{=}}{}$")
    return text + (rf" {{\tiny({', '.join(remarks)})}}" if remarks else "")


def _caption(table: Table) -> str:
    entries = [entry for row in table.rows for entry in row.entries.values()]
    text = escape(table.title) + (" (per cent)" if any(metric.unit == 100.0 for metric in table.metrics) else "")
    text += "" if table.key.endswith("-printed") else MEAN
    text += (INTERVAL if any(entry.interval for entry in entries) else "") + "."
    text += BEST if any(entry.rank for entry in entries) else ""
    text += MARKS.format(against=table.against) if any(entry.verdict for entry in entries) else ""
    return text + "".join(f" {escape(note)}" for note in table.notes)
