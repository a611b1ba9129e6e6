"""The evaluation report: one self-contained HTML file with figures, curves and a gallery of cases.

The page needs no network: style, script, data and thumbnails are all inside the file. Everything that must be
readable without JavaScript (verdict, metrics, configuration) is written here; curves and gallery are drawn by the page.
"""

import base64
import dataclasses
import hashlib
import html
import io
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from reshift.reports.text import facts_list, metric_texts, plain, tables, verdict
from reshift.system.files import atomic_bytes

SCRIPTS = ("report.js", "report_charts.js", "report_gallery.js")
# Mail servers commonly refuse attachments above 25 MB; the rest is left for names, notes and the page itself.
THUMBNAIL_BUDGET = 21_000_000
SMALLEST_SIDE = 16


@dataclass(frozen=True)
class ReportCase:
    """One image of the evaluation; pictures come from the thumbnail functions below."""

    name: str
    label: int | None
    score: float
    p_value: float | None
    flag: bool | None
    note: str
    image: str
    heatmap: str
    mask: str | None


@dataclass(frozen=True)
class ReportTable:
    """A further table: subgroups, lesions by size, …"""

    title: str
    note: str  # one sentence under the title
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


@dataclass(frozen=True)
class Report:
    """Everything the page shows; `heat_scale` is the map value painted in full colour, the same for every image."""

    title: str
    facts: dict[str, str]
    metrics: dict[str, Any]
    cases: list[ReportCase]
    image_threshold: float | None
    pixel_threshold: float | None
    heat_scale: float
    warnings: list[str]
    config: dict[str, Any]
    tables: list[ReportTable] = dataclasses.field(default_factory=list)


def thumbnail(pixels: NDArray[np.float32], side: int = 96) -> str:
    """Encode an image (H, W) or (C, H, W) in [-1, 1] as base64 JPEG or PNG, whichever is smaller."""
    planes = np.asarray(pixels, dtype=np.float32)
    if planes.ndim == 3:
        # Two or four channels are modalities, not colours: the first one stands for the image.
        planes = planes.transpose(1, 2, 0) if planes.shape[0] == 3 else planes[0]
    grey = np.rint((np.clip(np.nan_to_num(planes), -1, 1) + 1) * 127.5).astype(np.uint8)
    return _encode_photo(_shrink(Image.fromarray(grey), side, Image.Resampling.LANCZOS))


def heat_thumbnail(heatmap: NDArray[np.float32], heat_scale: float, side: int = 96) -> str:
    """Encode a map as a base64 grey PNG on the report's fixed scale: 0 is black, `heat_scale` and above is white."""
    values = np.nan_to_num(np.asarray(heatmap, dtype=np.float32), nan=0.0)
    small = np.asarray(_shrink(Image.fromarray(values), side, Image.Resampling.BOX), dtype=np.float64)
    # A constant calibration map gives a scale of zero; anything above it is then full colour.
    share = np.clip(small / (heat_scale if heat_scale > 0 else 1e-12), 0, 1)
    return _encode(Image.fromarray(np.rint(share * 255).astype(np.uint8)))


def mask_thumbnail(mask: NDArray[np.bool_], side: int = 96) -> str:
    """Encode a ground-truth mask as a base64 1-bit PNG."""
    grey = Image.fromarray(np.asarray(mask, dtype=bool).astype(np.uint8) * 255)
    return _encode(_to_bits(_shrink(grey, side, Image.Resampling.BOX)))


def render(report: Report) -> str:
    """Return the whole page as text."""
    cases = _fit_cases(report.cases)
    shrunk = cases is not report.cases
    report = dataclasses.replace(report, cases=cases)
    script = "\n".join(_asset(name) for name in SCRIPTS)
    payload = json.dumps(plain(dataclasses.asdict(report)), allow_nan=False, separators=(",", ":"))
    parts = {
        "title": html.escape(report.title),
        "css": _asset("report.css"),
        "script": script,
        # Only our own script may run, even if an escaping mistake let markup from a file name through.
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "data": _script_safe(payload),
        "verdict": html.escape(verdict(report)),
        "facts": facts_list(report),
        "warnings": "".join(f"<li>{html.escape(text)}</li>" for text in report.warnings),
        "tables": tables(report.tables),
        "shrunk_hidden": "" if shrunk else "hidden",
        "config": html.escape(json.dumps(plain(report.config), indent=2, ensure_ascii=False)),
    }
    return _fill(_asset("report.html"), parts | metric_texts(report))


def write_report(path: Path, report: Report) -> None:
    """Write the page in one step: a reader sees the old file or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # File names that are not valid UTF-8 reach us as lone surrogates, which only an escape can carry.
    atomic_bytes(path, render(report).encode("utf-8", "xmlcharrefreplace"))


def _shrink(picture: Image.Image, side: int, filter_: Image.Resampling) -> Image.Image:
    ratio = side / max(picture.size)
    if ratio >= 1:
        return picture
    width, height = (max(1, round(length * ratio)) for length in picture.size)
    return picture.resize((width, height), filter_)


def _encode(picture: Image.Image, kind: str = "PNG", **options: int) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, kind, optimize=True, **options)
    return base64.b64encode(buffer.getvalue()).decode()


def _encode_photo(picture: Image.Image) -> str:
    return min(_encode(picture, "JPEG", quality=80), _encode(picture), key=len)


def _decode(text: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(text)))


def _to_bits(grey: Image.Image) -> Image.Image:
    coverage = np.asarray(grey)
    inside = coverage >= 128
    # A lesion smaller than a thumbnail pixel must not vanish from the page.
    if not inside.any():
        inside = coverage > 0
    return Image.fromarray(inside.astype(np.uint8) * 255).convert("1", dither=Image.Dither.NONE)


def _picture_bytes(cases: list[ReportCase]) -> int:
    return sum(len(case.image) + len(case.heatmap) + len(case.mask or "") for case in cases)


def _fit_cases(cases: list[ReportCase]) -> list[ReportCase]:
    """Reduce all thumbnails alike until the page can be mailed; the list comes back untouched when it already can."""
    size = _picture_bytes(cases)
    if size <= THUMBNAIL_BUDGET:
        return cases
    side = max(max(_decode(text).size) for case in cases for text in (case.image, case.heatmap) if text)
    while size > THUMBNAIL_BUDGET and side > SMALLEST_SIDE:
        # Bytes follow the area, hence the root; headers do not shrink, hence a little less.
        side = max(SMALLEST_SIDE, min(side - 1, int(side * 0.95 * math.sqrt(THUMBNAIL_BUDGET / size))))
        cases = [_smaller(case, side) for case in cases]
        size = _picture_bytes(cases)
    return cases


def _smaller(case: ReportCase, side: int) -> ReportCase:
    image = case.image and _encode_photo(_shrink(_decode(case.image), side, Image.Resampling.LANCZOS))
    heatmap = case.heatmap and _encode(_shrink(_decode(case.heatmap), side, Image.Resampling.BOX))
    mask = case.mask and _encode(_to_bits(_shrink(_decode(case.mask).convert("L"), side, Image.Resampling.BOX)))
    return dataclasses.replace(case, image=image, heatmap=heatmap, mask=mask)


def _asset(name: str) -> str:
    return (resources.files("reshift.reports") / "templates" / name).read_text(encoding="utf-8")


def _fill(template: str, parts: Mapping[str, str | None]) -> str:
    """Replace `{{key}}` and `{{key|why it may be missing}}` in one pass, so filled-in text is never expanded again."""

    def value(match: re.Match[str]) -> str:
        text = parts[match[1]]
        if text is not None:
            return text
        reason = html.escape(f"Not available: {match[2]}")
        spoken = f'<span class="unseen"> {reason}</span>'
        return f'<abbr class="missing" tabindex="0" title="{reason}">–{spoken}</abbr>'

    return re.sub(r"\{\{([\w.]+)(?:\|([^}]*))?\}\}", value, template)


def _script_safe(text: str) -> str:
    """Escape the characters that could end or reopen a script element; JSON reads them back unchanged."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
