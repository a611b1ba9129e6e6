"""The evaluation report: one self-contained HTML file with metrics, curves and a gallery of cases.

Everything that must be readable without JavaScript (verdict, metrics, configuration) is in the page; curves and gallery are
drawn by its script.
"""

import base64
import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from reshift import __version__
from reshift.data.cases import Case
from reshift.evaluation.evaluate import evaluate
from reshift.evaluation.metrics.table import METRICS, Metric, select_metrics
from reshift.evaluation.results import load_results
from reshift.inference.bundle import Bundle
from reshift.inference.model import Model
from reshift.inference.stream import Sample
from reshift.methods import label
from reshift.reports import page
from reshift.reports.findings import FindingTable
from reshift.reports.tables import ReportTable, lesion_table, subgroup_table
from reshift.system.files import atomic_bytes

if TYPE_CHECKING:
    from reshift.evaluation.normative import NormativeIndices

SCRIPTS = ("report.js", "report_charts.js", "report_gallery.js")
SMALLEST_SIDE = 16  # of a thumbnail, in pixels
LEVELS = {"image": "Whole images", "pixel": "Localisation"}


@dataclass(frozen=True)
class ReportCase:
    """One image of the evaluation, with its thumbnails."""

    name: str
    label: int | None
    score: float | None
    p_value: float | None
    flag: bool | None
    note: str
    image: str
    heatmap: str
    mask: str | None


@dataclass(frozen=True)
class Report:
    """Everything the page shows. ``heat_scale`` is the map value painted in full colour, the same for every image."""

    title: str
    facts: dict[str, str]
    metrics: dict[str, Any]  # the content of metrics.json
    cases: list[ReportCase]
    heat_scale: float
    warnings: list[str]
    config: dict[str, Any]
    tables: list[ReportTable] = dataclasses.field(default_factory=list)


def evaluate_with_report(
    model: Model,
    cases: Sequence[Case],
    out: Path,
    dataset: str,
    indices: "NormativeIndices | None" = None,
    on_case: Callable[[Sample[Case]], object] = lambda _: None,
    *,
    keep_arrays: bool | Collection[str] = True,
    data_caveat: str | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Evaluate (see ``evaluate``), and write ``report.html`` beside ``metrics.json``."""
    calibration = model.bundle.calibration
    scale = calibration.heat_scale if calibration else 1.0
    thumbnails, findings = list[tuple[str, str, str | None]](), FindingTable(calibration)

    def add(item: Sample[Case]) -> None:
        mask = page.mask_thumbnail(item.mask) if item.mask is not None else None
        thumbnails.append((page.thumbnail(item.prepared.pixels), page.heat_thumbnail(item.heatmap, scale), mask))
        findings.add(item)
        on_case(item)

    metrics, errors = evaluate(model, cases, out, dataset, indices, add, keep_arrays=keep_arrays, data_caveat=data_caveat)
    rows = load_results(out).cases
    shown = [
        ReportCase(row["input"], row["label"], row["score"], row["p_value"], row["flag"], row["note"], *images)
        for row, images in zip(rows, thumbnails, strict=True)
    ]
    write_report(out / "report.html", make_report(model.bundle, metrics, rows, shown, [findings.table()]))
    return metrics, errors


def make_report(
    bundle: Bundle,
    metrics: dict[str, Any],
    rows: Sequence[dict[str, Any]],
    shown: list[ReportCase],
    tables: Sequence[ReportTable] = (),
) -> Report:
    """Collect what the page shows; ``rows`` are those of cases.jsonl, ``tables`` come after its own."""
    return Report(
        title=f"{label(bundle.config.method)} on {metrics['dataset']}",
        facts=_facts(bundle, metrics),
        metrics=metrics,
        cases=shown,
        heat_scale=bundle.calibration.heat_scale if bundle.calibration else 1.0,
        warnings=metrics["warnings"],
        config=bundle.config.model_dump(mode="json"),
        tables=[table for table in (subgroup_table(rows), lesion_table(metrics.get("lesions")), *tables) if table.rows],
    )


def write_report(path: Path, report: Report) -> None:
    """Write the page in one step: a reader sees the old file or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # File names that are not valid UTF-8 contain lone surrogates, which only an escape can carry.
    atomic_bytes(path, render(report).encode("utf-8", "xmlcharrefreplace"))


def render(report: Report) -> str:
    """Return the whole page as text."""
    cases = _fit_cases(report.cases)
    script = "\n".join((Path(__file__).parent / "templates" / name).read_text(encoding="utf-8") for name in SCRIPTS)
    thresholds = {f"{level}_threshold": METRICS[f"{level}.threshold"].read(report.metrics) for level in LEVELS}
    levels = {level: [_metric(metric, report.metrics) for metric in select_metrics(level)] for level in LEVELS}
    return page.fill(
        "report.html",
        report=report,
        verdict=verdict(report),
        summary=[_metric(metric, report.metrics) for metric in select_metrics(*LEVELS, place="summary")],
        levels=levels,
        captions=LEVELS,
        n=report.metrics["n"],
        pixels=_pixel_count(report.metrics),
        shrunk=cases is not report.cases,
        config=json.dumps(report.config, indent=2, ensure_ascii=False, default=str),
        data={**dataclasses.asdict(dataclasses.replace(report, cases=cases)), **thresholds},
        script=script,
        # Only our own script may run, even if an escaping mistake let markup from a file name through.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def verdict(report: Report) -> str:
    """Sum the evaluation up in one plain sentence, from the numbers alone."""
    normal, abnormal = report.metrics["n"]["normal"], report.metrics["n"]["abnormal"]
    if not report.cases:
        return "No images were evaluated."
    auc, tpr, fpr, threshold = (METRICS[f"image.{name}"].read(report.metrics) for name in ("auc", "tpr", "fpr", "threshold"))
    if normal + abnormal == 0:
        flagged = sum(bool(case.flag) for case in report.cases)
        above = "" if threshold is None else f", {flagged} of them above the calibrated threshold"
        return f"{len(report.cases)} images were scored{above}; without labels, accuracy cannot be judged."
    ranking = "how well the score ranks abnormal above normal images could not be measured"
    clauses = [ranking if auc is None else _separation(auc, report.metrics, normal, abnormal)]
    found = []
    if tpr is not None and abnormal:
        found.append(f"{round(tpr * abnormal)} of {abnormal} abnormal images are flagged (sensitivity {_percent(tpr)})")
    if fpr is not None and normal:
        found.append(f"{round((1 - fpr) * normal)} of {normal} normal images are not (specificity {_percent(1 - fpr)})")
    if found:
        clauses.append(f"at the calibrated threshold, {' and '.join(found)}")
    elif threshold is None:
        clauses.append("no threshold was calibrated")
    counts = f"{normal + abnormal} labelled images ({normal} normal, {abnormal} abnormal)"
    return f"On {counts}, {'; '.join(clauses)}."


def _separation(auc: float, metrics: Mapping[str, Any], normal: int, abnormal: int) -> str:
    """Put the AUC in words. Chance is ruled out by the interval over subjects, or by the spread for this many images."""
    interval = METRICS["image.auc"].read_interval(metrics)
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


def _metric(metric: Metric, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """One metric as the template shows it; ``text`` is None where there is no value."""
    value, interval = metric.read(metrics), metric.read_interval(metrics)
    return {
        "metric": metric,
        "text": None if value is None else metric.page_text(value),
        "interval": metric.page_interval(interval) if interval else "",
    }


def _facts(bundle: Bundle, metrics: dict[str, Any]) -> dict[str, str]:
    facts, calibration, n, seconds = bundle.facts, bundle.calibration, metrics["n"], metrics["seconds"]
    return {
        "Method": label(bundle.config.method),
        "Test data": f"{metrics['dataset']}: {n['normal']} normal, {n['abnormal']} abnormal images of {n['subjects']} subjects",
        "Trained on": f"{facts.get('images', '?')} normal images of {facts.get('subjects', '?')} subjects "
        f"({facts.get('dataset', '?')})",
        "Calibrated on": f"{calibration.reference.normals} ({calibration.default})" if calibration else "–",
        "Seed": str(bundle.config.seed),
        "Data fingerprint": str(facts.get("data", "?")),
        "Trained": f"{facts.get('date', '?')}, {facts.get('seconds', '?')} s",
        "Reshift": __version__,
        "Computing time": f"{seconds:.1f} s" if seconds < 90 else f"{seconds / 60:.1f} min",
    }


def _pixel_count(metrics: Mapping[str, Any]) -> str:
    """How many pixels were compared with masks; empty where there is no mask."""
    count = metrics["n"].get("pixels")
    return f"{count:,}".replace(",", "\u202f") if count else ""


def _percent(share: float) -> str:
    return f"{100 * share:.1f}\u202f%"


def thumbnail_bytes(cases: list[ReportCase]) -> int:
    """How many bytes the thumbnails add to the page."""
    return sum(len(case.image) + len(case.heatmap) + len(case.mask or "") for case in cases)


def _fit_cases(cases: list[ReportCase]) -> list[ReportCase]:
    """Reduce all thumbnails alike until the page can be mailed; the list comes back untouched when it already can."""
    size, limit = thumbnail_bytes(cases), page.THUMBNAIL_BYTES
    if size <= limit:
        return cases
    side = max(max(page.decode(text).size) for case in cases for text in (case.image, case.heatmap) if text)
    while size > limit and side > SMALLEST_SIDE:
        # Bytes follow the area, hence the root; headers do not shrink, hence a little less.
        side = max(SMALLEST_SIDE, min(side - 1, int(side * 0.95 * math.sqrt(limit / size))))
        cases = [_smaller(case, side) for case in cases]
        size = thumbnail_bytes(cases)
    return cases


def _smaller(case: ReportCase, side: int) -> ReportCase:
    image = case.image and page.encode_photo(page.shrink(page.decode(case.image), side, Image.Resampling.LANCZOS))
    heatmap = case.heatmap and page.encode(page.shrink(page.decode(case.heatmap), side, Image.Resampling.BOX))
    mask = case.mask and page.encode(page.to_bits(page.shrink(page.decode(case.mask).convert("L"), side, Image.Resampling.BOX)))
    return dataclasses.replace(case, image=image, heatmap=heatmap, mask=mask)
