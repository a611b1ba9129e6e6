"""The words of the report: metrics as text, extra tables, and a verdict in one plain sentence."""

import html
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from reshift.reports.page import Report, ReportTable


def plain(value: Any) -> Any:
    """Turn paths, numpy values and non-finite numbers into what JSON and a browser understand."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _number(metrics: Mapping[str, Any], group: str, key: str) -> float | None:
    value = plain((metrics.get(group) or {}).get(key))
    return float(value) if isinstance(value, int | float) else None


def _percent(share: float) -> str:
    return f"{100 * share:.1f}\u202f%"


def _count(report: "Report", kind: str) -> int:
    stated = _number(report.metrics, "n", kind)
    label = {"normal": 0, "abnormal": 1}[kind]
    return sum(case.label == label for case in report.cases) if stated is None else int(stated)


def metric_texts(report: "Report") -> dict[str, str | None]:
    """Every metric as text for the template, None where there is no value to show."""

    def text(group: str, key: str, show: Callable[[float], str]) -> str | None:
        value = _number(report.metrics, group, key)
        return None if value is None else show(value)

    texts = {f"image.{key}": text("image", key, "{:.3f}".format) for key in ("auc", "ap", "f1", "f1_max")}
    texts |= {
        f"pixel.{key}": text("pixel", key, "{:.3f}".format) for key in ("ap", "dice", "dice_max", "dice_per_image", "aupro")
    }
    texts |= {f"{group}.threshold": text(group, "threshold", "{:.4g}".format) for group in ("image", "pixel")}
    for group, calibrated in {"image": report.image_threshold, "pixel": report.pixel_threshold}.items():
        if plain(calibrated) is not None:
            texts[f"{group}.threshold"] = f"{calibrated:.4g}"
    texts["image.sensitivity"] = text("image", "tpr", _percent)
    texts["image.specificity"] = text("image", "fpr", lambda fpr: _percent(1 - fpr))
    texts["n.pixels"] = text("n", "pixels", lambda n: f"{int(n):,}".replace(",", "\u202f"))
    texts |= _interval_texts(report.metrics)
    return texts | {f"n.{kind}": str(_count(report, kind)) for kind in ("normal", "abnormal")}


def facts_list(report: "Report") -> str:
    """The facts as a definition list."""
    facts = dict(report.facts)
    seconds = plain(report.metrics.get("seconds"))
    if isinstance(seconds, int | float):
        facts.setdefault("Computing time", f"{seconds:.1f} s" if seconds < 90 else f"{seconds / 60:.1f} min")
    return "".join(f"<div><dt>{html.escape(k)}</dt><dd>{html.escape(str(v))}</dd></div>" for k, v in facts.items())


def _separation(auc: float, interval: Sequence[float] | None, normal: int, abnormal: int) -> str:
    """Put the AUC in words. Chance is ruled out by the interval over subjects, or by the spread for this many images."""
    chance_spread = math.sqrt((normal + abnormal + 1) / (12 * max(normal * abnormal, 1)))
    number = f"(AUC {auc:.2f})" if not interval else f"(AUC {auc:.2f}, 95 % interval {interval[0]:.2f}–{interval[1]:.2f})"
    if abs(auc - 0.5) < 1.96 * chance_spread or (interval and interval[0] <= 0.5 <= interval[1]):
        if auc >= 0.6:
            return f"there are too few images to rule out that the separation is due to chance {number}"
        return f"the score tells abnormal from normal images no better than chance {number}"
    if auc < 0.5:
        return f"the score ranks abnormal images below normal ones, which is worse than chance {number}"
    words = [(0.6, "only barely better than chance"), (0.7, "weakly"), (0.8, "moderately well"), (0.9, "well")]
    word = next((text for limit, text in words if auc < limit), "very well")
    return f"the score separates abnormal from normal images {word} {number}"


def verdict(report: "Report") -> str:
    """Sum the evaluation up in one plain sentence, from the numbers alone."""
    if not report.cases:
        return "No images were evaluated."
    normal, abnormal = _count(report, "normal"), _count(report, "abnormal")
    if normal + abnormal == 0:
        flagged = sum(bool(case.flag) for case in report.cases)
        above = "" if report.image_threshold is None else f", {flagged} of them above the calibrated threshold"
        return f"{len(report.cases)} images were scored{above}; without labels, accuracy cannot be judged."
    auc, tpr, fpr = (_number(report.metrics, "image", key) for key in ("auc", "tpr", "fpr"))
    interval = plain(((report.metrics.get("intervals") or {}).get("image") or {}).get("auc"))
    ranking = "how well the score ranks abnormal above normal images could not be measured"
    clauses = [ranking if auc is None else _separation(auc, interval, normal, abnormal)]
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


def _interval_texts(metrics: Mapping[str, Any]) -> dict[str, str | None]:
    """``ci.image.auc`` and the like: the 95 % interval beside a value, or nothing."""
    image, pixel = ("auc", "ap", "f1", "f1_max", "tpr", "fpr"), ("ap", "dice", "dice_max", "dice_per_image", "aupro")
    keys = {"image": image, "pixel": pixel}
    known = metrics.get("intervals") or {}
    texts: dict[str, str | None] = {}
    for group, names in keys.items():
        for name in names:
            pair = plain((known.get(group) or {}).get(name))
            texts[f"ci.{group}.{name}"] = f"<small>{pair[0]:.3f} – {pair[1]:.3f}</small>" if pair else ""
    fpr = plain((known.get("image") or {}).get("fpr"))
    texts["ci.image.specificity"] = f"<small>{_percent(1 - fpr[1])} – {_percent(1 - fpr[0])}</small>" if fpr else ""
    tpr = plain((known.get("image") or {}).get("tpr"))
    texts["ci.image.sensitivity"] = f"<small>{_percent(tpr[0])} – {_percent(tpr[1])}</small>" if tpr else ""
    return texts


def tables(found: "Sequence[ReportTable]") -> str:
    """The further tables as HTML; nothing at all when there are none."""
    return "".join(_table(table) for table in found)


def _table(table: "ReportTable") -> str:
    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(f"<{tag}>{html.escape(value)}</{tag}>" for value in values)

    rows = "".join(f'<tr><th scope="row">{html.escape(row[0])}</th>{cells("td", row[1:])}</tr>' for row in table.rows)
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in table.header)
    title, note = html.escape(table.title), html.escape(table.note)
    body = f'<table class="plain"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<section><h2>{title}</h2><p class="lead">{note}</p>{body}</section>'
