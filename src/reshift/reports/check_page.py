"""The result of ``reshift check`` as one screen of text, as JSON, and as a contact sheet: one HTML file."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from reshift.data.cases import SPLITS, Case
from reshift.data.read import is_volume, open_volume, read_image
from reshift.reports.check import ADVICE, NOTES, PROBLEMS, CheckResult, Finding, size_text
from reshift.reports.page import THUMBNAIL_BYTES, fill, thumbnail
from reshift.system.progress import progress

EXAMPLES = 3  # per kind of finding, on the screen; the JSON has them all
SHOWN = 2000  # images on the sheet, flagged ones first
SIDE = 96


def summary(result: CheckResult) -> dict[str, Any]:
    """Everything that was found, as plain values."""
    read = [facts for facts in result.facts if facts is not None]
    return {
        "data": result.source,
        "healthy": result.healthy,
        "images": len(result.cases),
        "read": len(read),
        "subjects": len({case.subject for case in result.cases}),
        "labelled": result.labelled,
        "splits": {split: counts for split in SPLITS if (counts := _counts(result.cases, split))["images"]},
        "sizes": dict(Counter(size_text(facts.size) for facts in read).most_common()),
        "depths": dict(Counter(_depth(facts.bits, facts.channels) for facts in read).most_common()),
        "greys": [min(facts.low for facts in read), max(facts.high for facts in read)] if read else None,
        "problems": [finding._asdict() for finding in result.problems],
        "notes": [finding._asdict() for finding in result.notes],
        "suspected_text": _text_shares(result),
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


def _text_shares(result: CheckResult) -> dict[str, float]:
    """Share of images with suspected marks by split and label; empty where there is no suspicion."""
    marked = {name for finding in result.notes if finding.kind == "text" for name in finding.images}
    some, every = Counter(_group(c) for c in result.cases if c.name in marked), Counter(_group(c) for c in result.cases)
    return {group: round(some[group] / n, 4) for group, n in sorted(every.items())} if marked else {}


def text(result: CheckResult) -> str:
    """One screen: what the data set has, problems, notes."""
    found = summary(result)
    lines = [f"{found['data']}: {found['images']} images of {found['subjects']} subjects", ""]
    columns = ("images", "normal", "abnormal", "subjects", "masks")
    lines.append("  " + f"{'split':8}" + "".join(f"{name:>10}" for name in columns))
    lines += ["  " + f"{split:8}" + "".join(f"{row[name]:>10}" for name in columns) for split, row in found["splits"].items()]
    lines += ["", f"  size   {_few(found['sizes'])}", f"  depth  {_few(found['depths'])}"]
    lines += [f"  greys  {found['greys'][0]:g} to {found['greys'][1]:g}"] if found["greys"] else []
    lines += [f"  labels {_labels(result)}", ""]
    for kind, title in PROBLEMS.items():
        lines += _listed("problem", title, [finding for finding in result.problems if finding.kind == kind])
    for kind, title in NOTES.items():
        lines += _listed("note", title, [finding for finding in result.notes if finding.kind == kind])
    if found["suspected_text"]:
        lines.append("    " + ", ".join(f"{share:.0%} of {group}" for group, share in found["suspected_text"].items()))
    verdict = "no problems found" if result.healthy else f"{len(result.problems)} problems; notes may be fine, problems are not"
    return "\n".join("".join(c if c.isprintable() else "?" for c in line) for line in [*lines, verdict])


def _few(counts: dict[str, int], most: int = 4) -> str:
    shown = ", ".join(f"{name} ({n})" for name, n in list(counts.items())[:most])
    return (shown + (f" and {len(counts) - most} more" if len(counts) > most else "")) or "nothing could be read"


def _labels(result: CheckResult) -> str:
    tested = [case.label for case in result.cases if case.split == "test"]
    if not result.labelled:
        return "none given: every image is taken as normal"
    if not tested:
        return "no test split: nothing to evaluate on"
    if len(set(tested)) == 1:
        return f"every test image is {'abnormal' if tested[0] else 'normal'}: image metrics need both"
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


def page(result: CheckResult, *, quiet: bool = False) -> str:
    """The contact sheet: flagged images first, each under what was found, then the others by split and label."""
    chosen, sections, used = _chosen(result), list[dict[str, Any]](), 0
    shown = sum(len(section.rows) for section in chosen)
    with progress("contact sheet", shown, quiet=quiet) as advance:
        for section in chosen:
            images = []
            for case, remark in section.rows:
                image = _thumbnail(case) if used < THUMBNAIL_BYTES else ""
                used += len(image)
                facts = f"{_group(case)} · {case.subject}" + (f" · {remark}" if remark else "")
                images.append({"name": case.name, "facts": facts, "thumbnail": image})
                advance()
            sections.append({"title": section.title, "mark": section.mark, "advice": section.advice, "images": images})
    total = len({case.name for case in result.cases})
    content = {"source": result.source, "verdict": _verdict(result), "summary": text(result), "shown": shown, "total": total}
    return fill("check.html", **content, sections=sections)


def _verdict(result: CheckResult) -> str:
    flagged = {name for finding in result.problems for name in finding.images}
    if result.healthy:
        return f"No problems found in {len(result.cases)} images{'; please look at the notes' if result.notes else ''}."
    return f"{len(result.problems)} problems, {len(flagged)} of {len(result.cases)} images concerned."


class Section(NamedTuple):
    """A heading on the sheet and the cases under it, each with a remark."""

    title: str
    mark: str  # CSS class
    advice: str  # what to do about the finding
    rows: list[tuple[Case, str]]


def _chosen(result: CheckResult) -> list[Section]:
    """Sections, at most ``SHOWN`` images; an image is shown under its first finding."""
    by_name = {case.name: case for case in result.cases}
    left, sections = SHOWN, []
    for kind, title in {**PROBLEMS, **NOTES}.items():
        findings = [finding for finding in result.problems + result.notes if finding.kind == kind]
        rows: list[tuple[Case, str]] = []
        above = len({name for finding in findings for name in finding.images if name not in by_name})
        for number, finding in enumerate(findings, start=1):
            remark = f"group {number}" if len(finding.images) > 1 else finding.text
            rows += [(by_name.pop(name), remark) for name in finding.images if name in by_name and len(rows) < left]
        left -= len(rows)
        heading = f"{title[0].upper()}{title[1:]} ({len(findings)}{f'; {above} of the images are shown above' if above else ''})"
        if findings:  # its advice is shown even if all of its images are shown above
            sections.append(Section(heading, "bad" if kind in PROBLEMS else "", ADVICE[kind], rows))
    rest = [by_name[case.name] for case in result.cases if case.name in by_name]
    if rest and left > 0:
        rest = [rest[i] for i in np.linspace(0, len(rest) - 1, min(left, len(rest))).astype(int)]
        groups = sorted({_group(case) for case in rest}, reverse=True)
        others = {group: [(case, "") for case in rest if _group(case) == group] for group in groups}
        sections += [Section(f"Others, {group}", "", "", rows) for group, rows in others.items()]
    return sections


def _thumbnail(case: Case) -> str:
    """A thumbnail, of a volume's middle slice; empty where the file cannot be read."""
    try:
        if is_volume(case.image):
            volume = open_volume(case.image)
            pixels, window = volume.plane(len(volume) // 2)[:, :, None], volume.window
        else:
            pixels = read_image(case.image).pixels.astype(np.float32)
            window = (float(np.percentile(pixels, 0.5)), float(np.percentile(pixels, 99.5)))
    except Exception:  # the check has already reported it
        return ""
    low, high = window if window[1] > window[0] else (float(pixels.min()), float(pixels.max()) + 1e-6)
    unit = np.clip((pixels.astype(np.float64) - low) / (high - low), 0.0, 1.0) * 2.0 - 1.0
    return thumbnail(unit.transpose(2, 0, 1).astype(np.float32), SIDE)
