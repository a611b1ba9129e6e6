"""From an evaluation to its report: facts, warnings, subgroups."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from reshift import __version__
from reshift.evaluation.metrics.image import roc_auc
from reshift.evaluation.metrics.lesions import SIZES
from reshift.inference.acquisition import run_warning
from reshift.inference.bundle import Bundle
from reshift.methods import caveat, label
from reshift.reports.page import Report, ReportCase, ReportTable

CLASSES = [*pairwise(SIZES), (SIZES[-1], None)]  # [from, to) of lesion pixels, at network resolution


def make_report(bundle: Bundle, metrics: dict[str, Any], rows: Sequence[dict[str, Any]], shown: list[ReportCase]) -> Report:
    """Collect what the page shows."""
    calibration = bundle.calibration
    return Report(
        title=f"{label(bundle.config.method)} on {metrics['dataset']}",
        facts=_facts(bundle, metrics),
        metrics=metrics,
        cases=shown,
        image_threshold=calibration.reference.image_threshold if calibration else None,
        pixel_threshold=calibration.reference.pixel_threshold if calibration else None,
        heat_scale=calibration.heat_scale if calibration else 1.0,
        warnings=metrics["warnings"],
        config=bundle.config.model_dump(mode="json"),
        tables=[table for table in (_subgroups(rows), _lesions(metrics.get("lesions"))) if table.rows],
    )


def warnings(bundle: Bundle, rows: Sequence[dict[str, Any]], errors: Sequence[str]) -> list[str]:
    """Everything that lowers the trust in an evaluation, one line each."""
    calibration = bundle.calibration
    out = calibration.warnings() if calibration else ["the bundle is not calibrated: no thresholds, no p-values"]
    # Of normals only: a lesion may look odd, a normal should not.
    unlike = run_warning([row["differs"] for row in rows if row["label"] == 0 and row["differs"] is not None])
    out += [unlike] if unlike else []
    out += [text] if (text := caveat(bundle.config.method)) else []
    if errors:
        out.append(f"{len(errors)} test image(s) could not be scored and are left out; the first: {errors[0]}")
    return out


def _facts(bundle: Bundle, metrics: dict[str, Any]) -> dict[str, str]:
    facts, calibration, n = bundle.facts, bundle.calibration, metrics["n"]
    learned = f"{facts.get('images', '?')} normal images of {facts.get('subjects', '?')} subjects ({facts.get('dataset', '?')})"
    return {
        "Method": label(bundle.config.method),
        "Test data": f"{metrics['dataset']}: {n['normal']} normal, {n['abnormal']} abnormal images of {n['subjects']} subjects",
        "Trained on": learned,
        "Calibrated on": f"{calibration.reference.images} normals ({calibration.default})" if calibration else "–",
        "Seed": str(bundle.config.seed),
        "Data fingerprint": str(facts.get("data", "?")),
        "Trained": f"{facts.get('date', '?')}, {facts.get('seconds', '?')} s",
        "Reshift": __version__,
    }


def _subgroups(rows: Sequence[dict[str, Any]]) -> ReportTable:
    """Abnormal images by the manifest's note and by lesion size, each against all normals."""
    abnormal = [row for row in rows if row["label"] == 1]
    notes = sorted({row["note"] for row in abnormal if row["note"]})
    groups = [(note, [row for row in abnormal if row["note"] == note]) for note in notes if len(notes) <= 12]
    for low, end in CLASSES:
        high = end - 1 if end else None
        inside = [
            r
            for r in abnormal
            if r["lesion_pixels"] and low <= r["lesion_pixels"] and (high is None or r["lesion_pixels"] <= high)
        ]
        groups.append((f"lesion {low}–{high} px" if high else f"lesion ≥ {low} px", inside))
    normal = [row["score"] for row in rows if row["label"] == 0]
    return ReportTable(
        "Subgroups",
        "Abnormal images by note and by lesion size (pixels at network resolution); AUC is against all normal test images.",
        ("Subgroup", "Images", "Sensitivity", "AUC"),
        [_subgroup(name, group, normal) for name, group in groups if group],
    )


def _subgroup(name: str, group: Sequence[dict[str, Any]], normal: Sequence[float]) -> tuple[str, ...]:
    flags = [row["flag"] for row in group if row["flag"] is not None]
    sensitivity = f"{np.mean(flags):.1%}" if flags else "–"
    scores = np.array([*normal, *(row["score"] for row in group)])
    auc = roc_auc(np.arange(len(scores)) >= len(normal), scores)
    return (name, str(len(group)), sensitivity, f"{auc:.3f}" if auc is not None else "–")


def _lesions(found: dict[str, Any] | None) -> ReportTable:
    rows = list[tuple[str, ...]]()
    for part in (found or {}).get("by_size", ()):
        size = f"{part['from']}–{part['to']} px" if part["to"] else f"≥ {part['from']} px"
        if part["n"]:
            rows.append((size, str(part["n"]), str(part["detected"]), f"{part['rate']:.1%}"))
    return ReportTable(
        "Lesions found",
        "Connected lesions; one counts as found when at least a tenth of its pixels exceeds the calibrated pixel threshold.",
        ("Size", "Lesions", "Found", "Rate"),
        rows,
    )
