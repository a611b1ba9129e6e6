"""The comparison as text and as one self-contained page, maps of all methods side by side."""

import base64
import html
import io
from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshift.evaluation.results import Results, case_arrays, choose_cases
from reshift.inference.overlay import colours

IMAGE_FIGURES = ("auc", "ap", "f1")
PIXEL_FIGURES = ("ap", "dice", "aupro")
SHOWN = 48  # cases; more would only make the file heavy
STYLE = """
main, header, footer { max-width: none; }
.side { display: grid; gap: 10px 8px; overflow-x: auto; align-items: end; }
.side img { width: 100%; min-width: 72px; display: block; image-rendering: auto; }
.side .name { grid-column: 1 / -1; margin: 12px 0 0; font-size: 0.9rem; overflow-wrap: anywhere; }
.side small { color: var(--muted); }
"""


def page(table: dict[str, Any], runs: Sequence[tuple[str, Results]], names: Sequence[str]) -> str:
    """Return the page as text."""
    css = (resources.files("reshift.reports") / "templates" / "report.css").read_text(encoding="utf-8")
    title = html.escape(f"{' · '.join(label for label, _ in runs)} on {table['dataset']}")
    warnings = "".join(f"<li>{html.escape(text)}</li>" for text in table["warnings"])
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title><style>{css}{STYLE}</style></head><body>
<header><p class="kicker">Anomaly detection · comparison</p><h1>{title}</h1>
<p class="verdict">{table["images"]} test images, the same for every method.</p><ul class="warnings">{warnings}</ul></header>
<main><section><h2>Figures</h2>
<p class="lead">With 95 % intervals by bootstrap over subjects. p: two-sided test of the difference to
{html.escape(runs[0][0])} on the same images (AUC: DeLong; others: bootstrap over subjects).</p>{_figures(table)}</section>
<section><h2>Cases</h2>
<p class="lead">Chosen evenly over lesion size, then normals; not by how well a method does. Every method's colours
have one fixed scale: full colour at twice its own calibrated pixel threshold.</p>{_gallery(runs, names)}</section></main>
<footer><p>For research use only. Not a medical device: nothing here is a diagnosis or a basis for treating anyone.</p></footer>
</body></html>
"""


def _figures(table: dict[str, Any]) -> str:
    columns = [("image", name) for name in IMAGE_FIGURES] + [("pixel", name) for name in PIXEL_FIGURES]
    head = "".join(f'<th scope="col">{level} {name}</th>' for level, name in columns)
    rows = ""
    for row in table["runs"]:
        cells = "".join(f"<td>{html.escape(cell(row, level, name))}</td>" for level, name in columns)
        rows += f'<tr><th scope="row">{html.escape(row["label"])}</th>{cells}</tr>'
    body = f'<thead><tr><th scope="col">method</th>{head}</tr></thead><tbody>{rows}</tbody>'
    return f'<div style="overflow-x:auto"><table class="plain">{body}</table></div>'


def _shown(runs: Sequence[tuple[str, Results]], names: Sequence[str]) -> list[str]:
    """Abnormal cases, largest lesion first, then some normal ones; the same on every call."""
    found = [results for _, results in runs]
    shared, stored = set(names), [{str(c["input"]) for c in results.cases if c.get("arrays")} for results in found]
    normal = [str(c["input"]) for c in found[0].cases if c["label"] == 0 and c["input"] in shared]
    normal = [name for name in normal if all(name in arrays for arrays in stored)]
    return choose_cases(found, SHOWN * 3 // 4)[::-1] + normal[:: max(1, -(-len(normal) * 4 // SHOWN))]


def _gallery(runs: Sequence[tuple[str, Results]], names: Sequence[str]) -> str:
    columns = f"grid-template-columns: repeat({len(runs) + 2}, minmax(72px, 160px))"
    by_name = [{str(case["input"]): case for case in results.cases} for _, results in runs]
    heads = "".join(f"<small>{html.escape(text)}</small>" for text in ("input", *(label for label, _ in runs), "ground truth"))
    parts = [heads]
    for name in _shown(runs, names):
        kind = "abnormal" if by_name[0][name]["label"] == 1 else "normal"
        scores = ", ".join(f"{label} {cases[name]['score']:.4g}" for (label, _), cases in zip(runs, by_name, strict=True))
        parts.append(f'<p class="name">{html.escape(name)} <small>{kind} · {html.escape(scores)}</small></p>')
        parts += _pictures(runs, by_name, name)
    return f'<div class="side" style="{columns}">{"".join(parts)}</div>'


def _pictures(runs: Sequence[tuple[str, Results]], by_name: Sequence[dict[str, dict[str, Any]]], name: str) -> list[str]:
    arrays = [case_arrays(results, cases[name]) for (_, results), cases in zip(runs, by_name, strict=True)]
    first = arrays[0]
    maps = []
    for (label, results), found in zip(runs, arrays, strict=True):
        limit = results.metrics["pixel"].get("threshold") or 0.0
        scale = 2 * limit if limit > 0 else 1.0
        maps.append(_image(colours(np.clip(found.heatmap / scale, 0, 1)), f"map of {label}"))
    truth = first.mask if first.mask is not None else np.zeros(first.image.shape, dtype=bool)
    return [_image(first.image, "input"), *maps, _image(truth.astype(np.uint8) * 255, "ground truth")]


def _image(pixels: NDArray[np.uint8], alt: str) -> str:
    import PIL.Image

    buffer = io.BytesIO()
    PIL.Image.fromarray(pixels).save(buffer, "png", optimize=True)
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'


def markdown(table: dict[str, Any]) -> str:
    """The table as Markdown; a figure with its 95 % interval, and the p-value of its difference to the first row."""
    heads = [f"{level} {name}" for level, names in (("image", IMAGE_FIGURES), ("pixel", PIXEL_FIGURES)) for name in names]
    lines = [
        f"# {table['dataset']}: {table['images']} test images",
        "",
        "| method | " + " | ".join(heads) + " |",
        "|---" * (len(heads) + 1) + "|",
    ]
    for row in table["runs"]:
        cells = [
            cell(row, level, name) for level, names in (("image", IMAGE_FIGURES), ("pixel", PIXEL_FIGURES)) for name in names
        ]
        lines.append(f"| {row['label']} | " + " | ".join(cells) + " |")
    first = table["runs"][0]["label"]
    note = f"p: two-sided test of the difference to {first} on the same images (AUC: DeLong; others: bootstrap over subjects)."
    return "\n".join([*lines, "", note, *(f"\n**Warning:** {text}" for text in table["warnings"])]) + "\n"


def cell(row: dict[str, Any], level: str, name: str) -> str:
    """One figure as text."""
    value, interval = row[level][name]["value"], row[level][name]["interval"]
    paired = (row.get("paired") or {}).get(level, {}).get(name)
    if value is None:
        return "–"
    text = f"{value:.3f}" + (f" ({interval[0]:.3f}–{interval[1]:.3f})" if interval else "")
    return text + (f", p {_p(paired['p_value'])}" if paired else "")


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"
