"""A data set's health as one screen of text, as JSON, and as a contact sheet: one HTML file that needs no network."""

import html
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

import numpy as np

from reshift.data.manifest import SPLITS, Case
from reshift.data.read import is_volume, open_volume, read_picture
from reshift.reports.check import NOTES, PROBLEMS, Finding, Health, times
from reshift.reports.page import thumbnail
from reshift.system.progress import progress

EXAMPLES = 3  # per kind of finding, on the screen; the JSON has them all
SHOWN = 2000  # images on the sheet, flagged ones first
BUDGET = 21_000_000  # bytes of thumbnails: mail servers refuse attachments above 25 MB
SIDE = 96
STYLE = """
main, header, footer { max-width: none; }
.sheet { display: grid; grid-template-columns: repeat(auto-fill, minmax(104px, 1fr)); gap: 14px 10px; }
.sheet figure { margin: 0; content-visibility: auto; contain-intrinsic-size: 104px 160px; }
.sheet img, .sheet .none { display: block; width: 96px; height: 96px; object-fit: contain; background: #000; border-radius: 4px; }
.sheet .none { background: var(--faint); color: var(--muted); font-size: 0.75rem; display: grid; place-items: center; }
.sheet .bad { border: 3px solid var(--abnormal); }
.sheet figcaption { font-size: 0.72rem; font-weight: 400; line-height: 1.3; margin-top: 6px; overflow-wrap: anywhere; }
.sheet small { color: var(--muted); display: block; }
pre { max-height: none; white-space: pre; overflow-x: auto; font-size: 0.8rem; }
"""


def summary(health: Health) -> dict[str, Any]:
    """Everything that was found, as plain values."""
    seen = [look for look in health.looks if look is not None]
    return {
        "data": health.source,
        "healthy": health.healthy,
        "images": len(health.cases),
        "read": len(seen),
        "subjects": len({case.subject for case in health.cases}),
        "labelled": health.labelled,
        "splits": {split: counts for split in SPLITS if (counts := _counts(health.cases, split))["images"]},
        "sizes": dict(Counter(times(look.size) for look in seen).most_common()),
        "depths": dict(Counter(_depth(look.bits, look.channels) for look in seen).most_common()),
        "greys": [min(look.low for look in seen), max(look.high for look in seen)] if seen else None,
        "problems": [finding._asdict() for finding in health.problems],
        "notes": [finding._asdict() for finding in health.notes],
        "suspected_text": _text_shares(health),
    }


def _counts(cases: Sequence[Case], split: str) -> dict[str, int]:
    own = [case for case in cases if case.split == split]
    abnormal = sum(case.label for case in own)
    return {
        "images": len(own),
        "normal": len(own) - abnormal,
        "abnormal": abnormal,
        "subjects": len({case.subject for case in own}),
        "masks": sum(case.mask is not None for case in own),
    }


def _depth(bits: int, channels: int) -> str:
    return f"{'float or wide' if bits == 32 else f'{bits} bit'} {'grey' if channels == 1 else 'colour'}"


def _group(case: Case) -> str:
    return f"{case.split} {'abnormal' if case.label else 'normal'}"


def _text_shares(health: Health) -> dict[str, float]:
    """Share of images with suspected marks by split and label; empty where there is no suspicion."""
    marked = {name for finding in health.notes if finding.kind == "text" for name in finding.images}
    some, every = Counter(_group(c) for c in health.cases if c.name in marked), Counter(_group(c) for c in health.cases)
    return {group: round(some[group] / n, 4) for group, n in sorted(every.items())} if marked else {}


def text(health: Health) -> str:
    """One screen: what there is, what is wrong, what is worth a look."""
    found = summary(health)
    lines = [f"{found['data']}: {found['images']} images of {found['subjects']} subjects", ""]
    columns = ("images", "normal", "abnormal", "subjects", "masks")
    lines.append("  " + f"{'split':8}" + "".join(f"{name:>10}" for name in columns))
    lines += ["  " + f"{split:8}" + "".join(f"{row[name]:>10}" for name in columns) for split, row in found["splits"].items()]
    lines += ["", f"  size   {_few(found['sizes'])}", f"  depth  {_few(found['depths'])}"]
    lines += [f"  greys  {found['greys'][0]:g} to {found['greys'][1]:g}"] if found["greys"] else []
    lines += [f"  labels {_labels(health)}", ""]
    for kind, title in PROBLEMS.items():
        lines += _listed("problem", title, [finding for finding in health.problems if finding.kind == kind])
    for kind, title in NOTES.items():
        lines += _listed("note", title, [finding for finding in health.notes if finding.kind == kind])
    if found["suspected_text"]:
        lines.append("    " + ", ".join(f"{share:.0%} of {group}" for group, share in found["suspected_text"].items()))
    verdict = "no problems found" if health.healthy else f"{len(health.problems)} problems; notes may be fine, problems are not"
    return "\n".join("".join(c if c.isprintable() else "?" for c in line) for line in [*lines, verdict])


def _few(counts: dict[str, int], most: int = 4) -> str:
    shown = ", ".join(f"{name} ({n})" for name, n in list(counts.items())[:most])
    return (shown + (f" and {len(counts) - most} more" if len(counts) > most else "")) or "nothing could be read"


def _labels(health: Health) -> str:
    tested = [case.label for case in health.cases if case.split == "test"]
    if not health.labelled:
        return "none given: every image is taken for normal"
    if not tested:
        return "no test split: nothing to evaluate on"
    if len(set(tested)) == 1:
        return f"every test image is {'abnormal' if tested[0] else 'normal'}: image-level figures need both"
    return f"test split has both ({tested.count(0)} normal, {tested.count(1)} abnormal)"


def _listed(word: str, title: str, findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return []
    lines = [f"  {word}: {title} ({len(findings)})"]
    lines += [f"    {_line(finding)}" for finding in findings[:EXAMPLES]]
    return lines + ([f"    … and {len(findings) - EXAMPLES} more"] if len(findings) > EXAMPLES else [])


def _line(finding: Finding) -> str:
    names = ", ".join(finding.images[:4]) + (", …" if len(finding.images) > 4 else "")
    return f"{names}: {finding.text}" if names and finding.text else names or finding.text


def page(health: Health, *, quiet: bool = False) -> str:
    """The contact sheet: flagged images first, each under what was found, then the others by split and label."""
    css = (resources.files("reshift.reports") / "templates" / "report.css").read_text(encoding="utf-8")
    title = html.escape(health.source)
    body = "".join(_sections(health, quiet=quiet))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title><style>{css}{STYLE}</style></head><body>
<header><p class="kicker">Data set · contact sheet</p><h1>{title}</h1>
<p class="verdict">{_verdict(health)}</p></header>
<main><section><h2>Summary</h2><pre>{html.escape(text(health))}</pre></section>{body}</main>
<footer><p>For research use only. This page holds pictures of the images checked: share it as you may share them.</p></footer>
</body></html>
"""


def _verdict(health: Health) -> str:
    flagged = {name for finding in health.problems for name in finding.images}
    if health.healthy:
        return f"No problems found in {len(health.cases)} images{'; the notes are worth a look' if health.notes else ''}."
    return f"{len(health.problems)} problems, {len(flagged)} of {len(health.cases)} images concerned."


def _chosen(health: Health) -> list[tuple[str, str, list[tuple[Case, str]]]]:
    """Sections (title, kind, cases with a remark), ``SHOWN`` images in all; an image stands under its first finding only."""
    by_name = {case.name: case for case in health.cases}
    left, sections = SHOWN, []
    for kind, title in {**PROBLEMS, **NOTES}.items():
        findings = [finding for finding in health.problems + health.notes if finding.kind == kind]
        rows: list[tuple[Case, str]] = []
        above = len({name for finding in findings for name in finding.images if name not in by_name})
        for number, finding in enumerate(findings, start=1):
            remark = f"group {number}" if len(finding.images) > 1 else finding.text
            rows += [(by_name.pop(name), remark) for name in finding.images if name in by_name and len(rows) < left]
        left -= len(rows)
        heading = f"{title[0].upper()}{title[1:]} ({len(findings)}{f'; {above} of the images are shown above' if above else ''})"
        sections.append((heading, "problem" if kind in PROBLEMS else "note", rows))
    rest = [by_name[case.name] for case in health.cases if case.name in by_name]
    if rest and left > 0:
        rest = [rest[i] for i in np.linspace(0, len(rest) - 1, min(left, len(rest))).astype(int)]
        groups = sorted({_group(case) for case in rest}, reverse=True)
        sections += [(f"Others, {group}", "", [(case, "") for case in rest if _group(case) == group]) for group in groups]
    return [section for section in sections if section[2]]


def _sections(health: Health, *, quiet: bool) -> Iterator[str]:
    sections, spent = _chosen(health), 0
    total = sum(len(rows) for _, _, rows in sections)
    if total < (every := len({case.name for case in health.cases})):
        yield f"<p>{total} of {every} images are shown: flagged ones first, then an even choice of the others.</p>"
    with progress("contact sheet", total, quiet=quiet) as advance:
        for title, kind, rows in sections:
            yield f'<section><h2>{html.escape(title)}</h2><div class="sheet">'
            for case, remark in rows:
                picture = _picture(case) if spent < BUDGET else ""
                spent += len(picture)
                yield _figure(case, remark, picture, "bad" if kind == "problem" else "")
                advance()
            yield "</div></section>"


def _figure(case: Case, remark: str, picture: str, mark: str) -> str:
    kind = "png" if picture.startswith("iVBOR") else "jpeg"
    image = f'<img class="{mark}" alt="" src="data:image/{kind};base64,{picture}">'
    shown = image if picture else f'<div class="none {mark}">no picture</div>'
    facts = f"{_group(case)} · {case.subject}" + (f" · {remark}" if remark else "")
    return f"<figure>{shown}<figcaption>{html.escape(case.name)}<small>{html.escape(facts)}</small></figcaption></figure>"


def _picture(case: Case) -> str:
    """A thumbnail, of a volume's middle slice; nothing where the file cannot be read."""
    try:
        if is_volume(case.image):
            volume = open_volume(case.image)
            pixels, window = volume.plane(len(volume) // 2)[:, :, None], volume.window
        else:
            pixels = read_picture(case.image).pixels
            window = (float(np.percentile(pixels, 0.5)), float(np.percentile(pixels, 99.5)))
    except Exception:  # the same that was found when it was checked, and told there
        return ""
    low, high = window if window[1] > window[0] else (float(pixels.min()), float(pixels.max()) + 1e-6)
    unit = np.clip((pixels.astype(np.float64) - low) / (high - low), 0.0, 1.0) * 2.0 - 1.0
    return thumbnail(unit.transpose(2, 0, 1).astype(np.float32), SIDE)
