"""``reshift evaluate``: the test split through a bundle → ``metrics.json``, ``cases.jsonl`` and ``report.html``."""

import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift import __version__
from reshift.data.manifest import Case
from reshift.data.prepare import Prepared, prepare_mask
from reshift.data.read import read_image, read_mask
from reshift.data.source import ahead
from reshift.errors import UserError, reason
from reshift.metrics import PixelMetrics, image_metrics
from reshift.predict import Model, grouped
from reshift.progress import progress
from reshift.report import Report, ReportCase, heat_thumbnail, mask_thumbnail, thumbnail, write_report
from reshift.write import atomic_json, atomic_text, naming, writable_folder


class _Input(NamedTuple):
    prepared: Prepared
    mask: NDArray[np.bool_] | None


class Evaluated(NamedTuple):
    """One test image's outcome at network resolution."""

    case: Case
    pixels: NDArray[np.float32]
    mask: NDArray[np.bool_] | None
    score: float
    heatmap: NDArray[np.float32]


def evaluate(model: Model, cases: Sequence[Case], out: Path, dataset: str) -> tuple[dict[str, Any], list[str]]:
    """Score the test cases and write everything under ``out``; return the metrics and the cases that could not be read."""
    writable_folder(out)
    begun = time.monotonic()
    reference = model.bundle.calibration.reference if model.bundle.calibration else None
    pixels = PixelMetrics(reference.pixel_threshold if reference else None)
    rows, shown, errors = list[dict[str, Any]](), list[ReportCase](), list[str]()
    with progress("evaluating", len(cases)) as advance:
        for item in _run(model, cases, errors):
            if item.mask is not None or item.case.label == 0:  # an abnormal image without a mask says nothing about pixels
                pixels.add(item.heatmap, item.mask)
            rows.append(_row(model, item))
            shown.append(_shown(model, item, rows[-1]))
            advance()
    if not rows:
        raise UserError(f"none of the {len(cases)} test images could be scored; the first: {errors[0]}")
    metrics = _metrics(model, rows, pixels, dataset, time.monotonic() - begun)
    atomic_text(out / "cases.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    atomic_json(out / "metrics.json", metrics)
    with naming(out / "report.html"):
        write_report(out / "report.html", _report(model, metrics, shown, errors))
    return metrics, errors


def _run(model: Model, cases: Sequence[Case], errors: list[str]) -> Iterator[Evaluated]:
    def load(case: Case) -> _Input:
        prepared = model.prepare(read_image(case.image))
        if case.mask is None:
            return _Input(prepared, None)
        try:
            mask = prepare_mask(read_mask(case.mask), prepared.geometry, model.bundle.config.data.size)
        except ValueError as err:
            raise UserError(f"{case.mask}: {err}") from None
        return _Input(prepared, mask)

    for group in grouped(ahead(load, cases), model.batch):
        errors += [reason(err) for _, future in group if (err := future.exception()) is not None]
        good = [(case, future.result()) for case, future in group if future.exception() is None]
        if not good:
            continue
        stack = np.stack([item.prepared.pixels for _, item in good])
        for (case, item), score, heatmap in zip(good, *model.run(stack), strict=True):
            if math.isfinite(score):
                yield Evaluated(case, item.prepared.pixels, item.mask, score, heatmap)
            else:
                errors.append(f"{case.image}: the model's score is {score}; its training may have diverged")


def _row(model: Model, item: Evaluated) -> dict[str, Any]:
    calibration, case = model.bundle.calibration, item.case
    known = {"input": case.name, "label": case.label, "subject": case.subject, "note": case.note}
    p_value = calibration.p_value(item.score) if calibration else None
    flag = item.score > calibration.reference.image_threshold if calibration else None
    return {**known, "score": item.score, "p_value": p_value, "flag": flag}


def _shown(model: Model, item: Evaluated, row: dict[str, Any]) -> ReportCase:
    scale = model.bundle.calibration.heat_scale if model.bundle.calibration else 1.0
    return ReportCase(
        name=row["input"],
        label=row["label"],
        score=row["score"],
        p_value=row["p_value"],
        flag=row["flag"],
        note=row["note"],
        image=thumbnail(item.pixels),
        heatmap=heat_thumbnail(item.heatmap, scale),
        mask=mask_thumbnail(item.mask) if item.mask is not None else None,
    )


def _metrics(model: Model, rows: list[dict[str, Any]], pixels: PixelMetrics, dataset: str, seconds: float) -> dict[str, Any]:
    labels = np.array([row["label"] == 1 for row in rows])
    scores = np.array([row["score"] for row in rows], dtype=np.float64)
    calibration = model.bundle.calibration
    return {
        "image": image_metrics(labels, scores, calibration.reference.image_threshold if calibration else None),
        "pixel": pixels.result(),
        "n": {"normal": int((~labels).sum()), "abnormal": int(labels.sum()), "pixels": pixels.pixels if pixels.lesion else 0},
        "method": model.bundle.config.method,
        "dataset": dataset,
        "seed": model.bundle.config.seed,
        "seconds": round(seconds, 3),
    }


def _report(model: Model, metrics: dict[str, Any], cases: list[ReportCase], errors: list[str]) -> Report:
    bundle, facts = model.bundle, model.bundle.facts
    calibration = bundle.calibration
    warnings = calibration.warnings() if calibration else ["the bundle is not calibrated: no thresholds, no p-values"]
    if errors:
        warnings.append(f"{len(errors)} test image(s) could not be scored and are left out; the first: {errors[0]}")
    learned = f"{facts.get('images', '?')} normal images of {facts.get('subjects', '?')} subjects ({facts.get('dataset', '?')})"
    known = {
        "Method": bundle.config.method,
        "Test data": f"{metrics['dataset']}: {metrics['n']['normal']} normal, {metrics['n']['abnormal']} abnormal images",
        "Trained on": learned,
        "Calibrated on": f"{calibration.reference.images} normals ({calibration.default})" if calibration else "–",
        "Seed": str(bundle.config.seed),
        "Data fingerprint": str(facts.get("data", "?")),
        "Trained": f"{facts.get('date', '?')}, {facts.get('seconds', '?')} s",
        "Reshift": __version__,
    }
    return Report(
        title=f"{bundle.config.method} on {metrics['dataset']}",
        facts=known,
        metrics=metrics,
        cases=cases,
        image_threshold=calibration.reference.image_threshold if calibration else None,
        pixel_threshold=calibration.reference.pixel_threshold if calibration else None,
        heat_scale=calibration.heat_scale if calibration else 1.0,
        warnings=warnings,
        config=bundle.config.model_dump(mode="json"),
    )
