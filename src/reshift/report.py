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
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

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
    payload = json.dumps(_plain(dataclasses.asdict(report)), allow_nan=False, separators=(",", ":"))
    parts = {
        "title": html.escape(report.title),
        "css": _asset("report.css"),
        "script": script,
        # Only our own script may run, even if an escaping mistake let markup from a file name through.
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "data": _script_safe(payload),
        "verdict": html.escape(_verdict(report)),
        "facts": _facts(report),
        "warnings": "".join(f"<li>{html.escape(text)}</li>" for text in report.warnings),
        "shrunk_hidden": "" if shrunk else "hidden",
        "config": html.escape(json.dumps(_plain(report.config), indent=2, ensure_ascii=False)),
    }
    return _fill(_asset("report.html"), parts | _metric_texts(report))


def write_report(path: Path, report: Report) -> None:
    """Write the page in one step: a reader sees the old file or the new one, never half of it."""
    text = render(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A plain open keeps the usual permissions; temporary files from `tempfile` are unreadable to colleagues.
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # File names that are not valid UTF-8 reach us as lone surrogates, which only an escape can carry.
        partial.write_text(text, encoding="utf-8", errors="xmlcharrefreplace", newline="\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


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
    return (resources.files("reshift") / "assets" / name).read_text(encoding="utf-8")


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


def _plain(value: Any) -> Any:
    """Turn paths, numpy values and non-finite numbers into what JSON and a browser understand."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _number(metrics: Mapping[str, Any], group: str, key: str) -> float | None:
    value = _plain((metrics.get(group) or {}).get(key))
    return float(value) if isinstance(value, int | float) else None


def _percent(share: float) -> str:
    return f"{100 * share:.1f}\u202f%"


def _count(report: Report, kind: str) -> int:
    stated = _number(report.metrics, "n", kind)
    label = {"normal": 0, "abnormal": 1}[kind]
    return sum(case.label == label for case in report.cases) if stated is None else int(stated)


def _metric_texts(report: Report) -> dict[str, str | None]:
    """Every metric as text for the template, None where there is no value to show."""

    def text(group: str, key: str, show: Callable[[float], str]) -> str | None:
        value = _number(report.metrics, group, key)
        return None if value is None else show(value)

    texts = {f"image.{key}": text("image", key, "{:.3f}".format) for key in ("auc", "ap", "f1", "f1_max")}
    texts |= {f"pixel.{key}": text("pixel", key, "{:.3f}".format) for key in ("ap", "dice", "dice_max", "dice_per_image")}
    texts |= {f"{group}.threshold": text(group, "threshold", "{:.4g}".format) for group in ("image", "pixel")}
    for group, calibrated in {"image": report.image_threshold, "pixel": report.pixel_threshold}.items():
        if _plain(calibrated) is not None:
            texts[f"{group}.threshold"] = f"{calibrated:.4g}"
    texts["image.sensitivity"] = text("image", "tpr", _percent)
    texts["image.specificity"] = text("image", "fpr", lambda fpr: _percent(1 - fpr))
    texts["n.pixels"] = text("n", "pixels", lambda n: f"{int(n):,}".replace(",", "\u202f"))
    return texts | {f"n.{kind}": str(_count(report, kind)) for kind in ("normal", "abnormal")}


def _facts(report: Report) -> str:
    facts = dict(report.facts)
    seconds = _plain(report.metrics.get("seconds"))
    if isinstance(seconds, int | float):
        facts.setdefault("Computing time", f"{seconds:.1f} s" if seconds < 90 else f"{seconds / 60:.1f} min")
    return "".join(f"<div><dt>{html.escape(k)}</dt><dd>{html.escape(str(v))}</dd></div>" for k, v in facts.items())


def _separation(auc: float, normal: int, abnormal: int) -> str:
    """Put the AUC in words, with the spread that pure chance would give for this many images in mind."""
    chance_spread = math.sqrt((normal + abnormal + 1) / (12 * max(normal * abnormal, 1)))
    number = f"(AUC {auc:.2f})"
    if abs(auc - 0.5) < 1.96 * chance_spread:
        if auc >= 0.6:
            return f"there are too few images to rule out that the separation is due to chance {number}"
        return f"the score tells abnormal from normal images no better than chance {number}"
    if auc < 0.5:
        return f"the score ranks abnormal images below normal ones, which is worse than chance {number}"
    words = [(0.6, "only barely better than chance"), (0.7, "weakly"), (0.8, "moderately well"), (0.9, "well")]
    word = next((text for limit, text in words if auc < limit), "very well")
    return f"the score separates abnormal from normal images {word} {number}"


def _verdict(report: Report) -> str:
    """Sum the evaluation up in one plain sentence, from the numbers alone."""
    if not report.cases:
        return "No images were evaluated."
    normal, abnormal = _count(report, "normal"), _count(report, "abnormal")
    if normal + abnormal == 0:
        flagged = sum(bool(case.flag) for case in report.cases)
        above = "" if report.image_threshold is None else f", {flagged} of them above the calibrated threshold"
        return f"{len(report.cases)} images were scored{above}; without labels, accuracy cannot be judged."
    auc, tpr, fpr = (_number(report.metrics, "image", key) for key in ("auc", "tpr", "fpr"))
    ranking = "how well the score ranks abnormal above normal images could not be measured"
    clauses = [ranking if auc is None else _separation(auc, normal, abnormal)]
    found = []
    if tpr is not None and abnormal:
        found.append(f"{round(tpr * abnormal)} of {abnormal} abnormal images are flagged (sensitivity {_percent(tpr)})")
    if fpr is not None and normal:
        clear = round((1 - fpr) * normal)
        found.append(f"{clear} of {normal} normal images are not (specificity {_percent(1 - fpr)})")
    if found:
        clauses.append(f"at the calibrated threshold, {' and '.join(found)}")
    elif report.image_threshold is None:
        clauses.append("no threshold was calibrated")
    counts = f"{normal + abnormal} labelled images ({normal} normal, {abnormal} abnormal)"
    return f"On {counts}, {'; '.join(clauses)}."
