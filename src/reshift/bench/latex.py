"""Tables as LaTeX with booktabs, in the paper's layout: datasets across, best bold, second underlined."""

from collections.abc import Sequence

from reshift.bench.summary import Entry, Figure, Table, blocks

PREAMBLE = "% Needs \\usepackage{booktabs} in the preamble; every table is complete in itself.\n"
ESCAPES = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "†": r"\textdagger{}", "–": "--", "−": "$-$", "±": r"$\pm$",
    "λ": r"$\lambda$", "ℓ": r"$\ell$", "≥": r"$\geq$", "≤": r"$\leq$", "×": r"$\times$", "·": r"$\cdot$", "*": r"$^*$",
    "β": r"$\beta$", "ρ": r"$\rho$", "<": r"$<$", ">": r"$>$", "|": r"$|$",
}  # fmt: skip
HEADS = {"AP_pix": r"AP$_{\mathrm{pix}}$"}
MEAN = r": mean$\pm$standard deviation over $n$ seeds"
INTERVAL = r", below it a 95\,\% interval by bootstrap over test subjects (with several seeds, the mean of their bounds)"
BEST = " Best in bold, second underlined, among rows with the usual number of seeds."
MARKS = (
    r" $^{{+}}$/$^{{-}}$: better/worse than {against} at 5\,\% (paired test over subjects: bootstrap at image level, random "
    r"signs at pixel level; Holm's correction over the columns of a row)."
)


def escape(text: str) -> str:
    """Make text safe for LaTeX."""
    return "".join(ESCAPES.get(letter, letter) for letter in text)


def latex(tables: Sequence[Table]) -> str:
    """Every table, each a float of its own."""
    return PREAMBLE + "\n".join(_float(block, table) for table in tables for block in blocks(table))


def _float(block: Table, whole: Table) -> str:
    """One float; columns beyond the page's width have been cut off into the next."""
    many = block.head == "method"
    spec = "@{}l" + ("r" if many else "") + "c" * (len(block.datasets) * len(block.figures)) + "@{}"
    part = "" if block.datasets == whole.datasets else "-" + "-".join(block.datasets)
    lines = [
        r"\begin{table*}[t]", r"\centering", r"\footnotesize", r"\setlength{\tabcolsep}{1.2mm}",
        rf"\begin{{tabular}}{{{spec}}}", r"\toprule", *_heads(block, many=many), r"\midrule", *_body(block, many=many),
        r"\bottomrule", r"\end{tabular}", rf"\caption{{{_caption(block)}}}", rf"\label{{tab:{block.key}{part}}}", r"\end{table*}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _heads(table: Table, *, many: bool) -> list[str]:
    across, first = len(table.figures), 3 if many else 2
    names = [rf"\multicolumn{{{across}}}{{c}}{{\textbf{{{escape(name)}}}}}" for name in table.datasets]
    rules = [rf"\cmidrule(lr){{{first + i * across}-{first + (i + 1) * across - 1}}}" for i in range(len(table.datasets))]
    figures = [_head(figure) for _ in table.datasets for figure in table.figures]
    lead = [rf"\textbf{{{escape(table.head.capitalize())}}}", *(["$n$"] if many else [])]
    return [" & ".join([*[""] * len(lead), *names]) + r" \\", *rules, " & ".join([*lead, *figures]) + r" \\"]


def _head(figure: Figure) -> str:
    return HEADS.get(figure.label, escape(figure.label)) + (r"$\uparrow$" if figure.ranked else "")


def _body(table: Table, *, many: bool) -> list[str]:
    lines, usual, before = [], table.usual_seeds, ""
    for row in table.rows:
        lines += [r"\midrule"] if before and row.group != before else []
        before = row.group
        columns = [(name, figure) for name in table.datasets for figure in table.figures]
        entries = [(row.entries[column], column[1]) for column in columns]
        seeds = [str(max((entry.seeds for entry, _ in entries), default=0) or "")] if many else []
        lines.append(" & ".join([escape(row.title), *seeds, *(_number(entry, f, usual) for entry, f in entries)]) + r" \\")
        if any(entry.interval for entry, _ in entries):
            lines.append(" & ".join(["", *[""] * len(seeds), *(_interval(entry, f) for entry, f in entries)]) + r" \\")
    return lines


def _number(entry: Entry, figure: Figure, usual: int) -> str:
    if entry.mean is None:
        return r"\emph{failed}" if entry.failed and not entry.done else "--" if entry.done else ""
    text = figure.shown(entry.mean) + (rf"{{\scriptsize $\pm${figure.spread(entry.std)}}}" if entry.std is not None else "")
    text = rf"\textbf{{{text}}}" if entry.rank == 1 else rf"\underline{{{text}}}" if entry.rank == 2 else text
    text += f"$^{{{entry.verdict.mark}}}$" if entry.verdict and entry.verdict.mark else ""
    said = [f"$n{{=}}{entry.seeds}$"] if entry.seeds != usual else []
    said += [f"{entry.failed} failed"] if entry.failed else []
    return text + (rf" {{\tiny({', '.join(said)})}}" if said else "")


def _interval(entry: Entry, figure: Figure) -> str:
    if not entry.interval:
        return ""
    return rf"{{\tiny[{figure.shown(entry.interval[0])}, {figure.shown(entry.interval[1])}]}}"


def _caption(table: Table) -> str:
    entries = [entry for row in table.rows for entry in row.entries.values()]
    text = escape(table.title) + (" (per cent)" if any(figure.unit == 100.0 for figure in table.figures) else "")
    text += "" if table.key.endswith("-printed") else MEAN
    text += (INTERVAL if any(entry.interval for entry in entries) else "") + "."
    text += BEST if any(entry.rank for entry in entries) else ""
    text += MARKS.format(against=table.against) if any(entry.verdict for entry in entries) else ""
    return text + "".join(f" {escape(note)}" for note in table.notes)
