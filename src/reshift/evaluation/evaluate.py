"""``reshift evaluate``: the test split through a bundle → ``metrics.json``, ``cases.jsonl`` and ``report.html``."""

import dataclasses
import io
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from reshift.data.consensus import place, together
from reshift.data.manifest import Case, expand
from reshift.data.prepare import Prepared, prepare_mask
from reshift.data.read import read_picture, read_region
from reshift.data.source import ahead
from reshift.errors import UserError, reason
from reshift.evaluation.metrics.confidence import image_intervals, mean_interval, pixel_intervals
from reshift.evaluation.metrics.image import image_metrics
from reshift.evaluation.metrics.pixels import PixelMetrics
from reshift.inference.acquisition import Judged
from reshift.inference.model import Model, agreed, grouped
from reshift.reports.build import make_report, warnings
from reshift.reports.page import ReportCase, heat_thumbnail, mask_thumbnail, thumbnail, write_report
from reshift.system.files import atomic_bytes, atomic_json, atomic_text, writable_folder
from reshift.system.progress import progress

if TYPE_CHECKING:
    from reshift.evaluation.normative import NormativeIndices

TRAINING_SAMPLE = 512  # training normals whose features AHI compares with


class _Input(NamedTuple):
    prepared: Prepared
    mask: NDArray[np.bool_] | None
    ignore: NDArray[np.bool_] | None


class Evaluated(NamedTuple):
    """One test image's outcome at network resolution."""

    case: Case
    pixels: NDArray[np.float32]
    mask: NDArray[np.bool_] | None
    score: float
    heatmap: NDArray[np.float32]
    features: NDArray[np.float32] | None  # the detector's embedding of the image, if it has one
    judged: Judged | None  # how like the training images it was taken
    ignore: NDArray[np.bool_] | None  # pixels that take part in no figure; none of them is in the mask


def evaluate(
    model: Model,
    cases: Sequence[Case],
    out: Path,
    dataset: str,
    indices: "NormativeIndices | None" = None,
    watch: Callable[[Evaluated], object] | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Score the test cases and write everything under ``out``; return the metrics and the cases that could not be read.

    With ``indices`` (see ``normative_indices``) the quality of the restorations is measured too. With ``watch`` every image's
    outcome is handed over instead of being kept under ``out/arrays``.
    """
    writable_folder(out)
    begun = time.monotonic()
    reference = model.bundle.calibration.reference if model.bundle.calibration else None
    pixels = PixelMetrics(reference.pixel_threshold if reference else None)
    rows, shown, errors, features = list[dict[str, Any]](), list[ReportCase](), list[str](), list[NDArray[np.float32]]()
    given, cases = len(cases), expand(cases, model.bundle.config.data, errors)
    cases = together(cases) if model.bundle.config.data.consensus else cases
    with progress("evaluating", len(cases)) as advance:
        for item in _run(model, cases, errors):
            if item.mask is not None or item.case.label == 0:  # an abnormal image without a mask says nothing about pixels
                pixels.add(item.heatmap, item.mask, ignore=item.ignore, subject=item.case.subject)
            rows.append(_row(model, item) | _hand_over(out, len(rows), item, watch))
            if indices is not None:
                _restore(model, indices, item)
            features += [item.features] if item.features is not None else []
            shown.append(_shown(model, item, rows[-1]))
            advance()
    if not rows:
        raise UserError(f"none of the {given} test images could be scored; the first: {errors[0]}")
    metrics = _metrics(model, rows, pixels, dataset, time.monotonic() - begun)
    metrics["normative"] = indices.result() if indices is not None else None
    metrics["warnings"] = warnings(model.bundle, rows, errors) + model.warnings()
    _save_counts(out, pixels, features)
    atomic_text(out / "cases.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    atomic_json(out / "metrics.json", metrics)
    write_report(out / "report.html", make_report(model.bundle, metrics, rows, shown))
    return metrics, errors


def normative_indices(model: Model, training: Sequence[Case]) -> "NormativeIndices":
    """Prepare RQI, AHI and CACI: the feature network, and the training normals that restorations should come close to."""
    from reshift.evaluation.normative import NormativeIndices
    from reshift.nets.features import efficientnet_lite0
    from reshift.nets.lpips import lpips_alexnet

    if not hasattr(model.detector, "pseudo_healthy"):
        raise UserError(f"method '{model.bundle.config.method}' restores no images, so it has no normative indices")
    distance = lpips_alexnet(model.device) if os.environ.get("RESHIFT_LPIPS") else None
    indices = NormativeIndices(efficientnet_lite0(model.device), distance)
    training = expand(training, model.bundle.config.data)
    chosen = np.random.default_rng(0).permutation(len(training))[:TRAINING_SAMPLE]
    for i in sorted(chosen):  # slices of one volume together
        image = model.prepare(read_picture(training[i].image, training[i].slice)).pixels[None]
        indices.add_training(torch.from_numpy(image).to(model.device))
    return indices


def _restore(model: Model, indices: "NormativeIndices", item: Evaluated) -> None:
    x = torch.from_numpy(item.pixels[None]).to(model.device)
    restored = model.restored(x)
    if item.case.label == 0:
        indices.add_normal(x, restored)
    else:
        indices.add_abnormal(x, restored, None if item.mask is None else torch.from_numpy(item.mask[None]))


def _save(path: Path, writer: Callable[..., None], *arrays: Any, **named: Any) -> None:
    buffer = io.BytesIO()
    writer(buffer, *arrays, **named)
    path.parent.mkdir(exist_ok=True)
    atomic_bytes(path, buffer.getvalue())


def _hand_over(out: Path, index: int, item: Evaluated, watch: Callable[[Evaluated], object] | None) -> dict[str, str]:
    """Image, map and mask at network resolution: figures and comparisons are drawn from these, without the model."""
    if watch is not None:
        watch(item)
        return {}
    name = f"arrays/{index:05d}.npz"
    grey = np.rint((item.pixels.mean(0) + 1.0) * 127.5).astype(np.uint8)
    known = {name: region for name in ("mask", "ignore") if (region := getattr(item, name)) is not None}
    _save(out / name, np.savez_compressed, image=grey, heatmap=item.heatmap.astype(np.float16), **known)
    return {"arrays": name}


def _save_counts(out: Path, pixels: PixelMetrics, features: Sequence[NDArray[np.float32]]) -> None:
    """The embeddings, the histogram of all test pixels, and the counts by subject that intervals and paired tests need."""
    if features:
        _save(out / "features.npy", np.save, np.stack(features))
    by_subject = pixels.by_subject()
    if not pixels.lesion or by_subject is None:
        return
    values, normal, abnormal = pixels.histogram.counts()
    _save(out / "pixels.npz", np.savez_compressed, values=values, normal=normal, abnormal=abnormal)
    _save(out / "subjects.npz", np.savez_compressed, **dataclasses.asdict(by_subject))


def _run(model: Model, cases: Sequence[Case], errors: list[str]) -> Iterator[Evaluated]:
    """Score the cases, and let the slices of a stack agree if that is wished."""
    found = ((item, item.score, item.heatmap) for item in _looked(model, cases, errors))
    for item, score, heatmap in agreed(model, found, lambda item: place(item.case)):
        yield item._replace(score=score, heatmap=heatmap)


def _looked(model: Model, cases: Sequence[Case], errors: list[str]) -> Iterator[Evaluated]:
    def load(case: Case) -> _Input:
        prepared = model.prepare(read_picture(case.image, case.slice))
        mask, ignore = (_region(model, path, case, prepared) for path in (case.mask, case.ignore))
        return _Input(prepared, mask & ~ignore if mask is not None and ignore is not None else mask, ignore)

    for group in grouped(ahead(load, cases), model.batch):
        errors += [reason(err) for _, future in group if (err := future.exception()) is not None]
        good = [(case, future.result()) for case, future in group if future.exception() is None]
        if not good:
            continue
        stack = np.stack([item.prepared.pixels for _, item in good])
        embedded, judged = model.features(stack), model.judge(stack)
        for i, ((case, item), score, heatmap) in enumerate(zip(good, *model.run(stack), strict=True)):
            if math.isfinite(score):
                features = embedded[i] if embedded is not None else None
                yield Evaluated(case, item.prepared.pixels, item.mask, score, heatmap, features, judged[i], item.ignore)
            else:
                errors.append(f"{case.image}: the model's score is {score}; its training may have diverged")


def _region(model: Model, path: Path | None, case: Case, prepared: Prepared) -> NDArray[np.bool_] | None:
    if path is None:
        return None
    try:
        return prepare_mask(read_region(path, case.image, case.slice), prepared.geometry, model.bundle.config.data.size)
    except ValueError as err:
        raise UserError(f"{path}: {err}") from None


def _row(model: Model, item: Evaluated) -> dict[str, Any]:
    calibration, case = model.bundle.calibration, item.case
    p_value = calibration.p_value(item.score) if calibration else None
    flag = item.score > calibration.reference.image_threshold if calibration else None
    judged = item.judged._asdict() if item.judged else dict.fromkeys(Judged._fields)
    return {
        "input": case.name,
        "label": case.label,
        "subject": case.subject,
        "note": case.note,
        "score": item.score,
        "p_value": p_value,
        "flag": flag,
        **judged,
        "lesion_pixels": int(item.mask.sum()) if item.mask is not None else None,
    }


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


def _lesion_intervals(pixels: PixelMetrics) -> dict[str, tuple[float, float] | None]:
    """Intervals of the figures that are means: Dice over abnormal images, and the share of lesions found."""
    subjects, lesions, found = zip(*pixels.lesion_images, strict=True)
    if not pixels.dice_per_image:  # no threshold
        return {"dice_per_image": None, "lesion_rate": None}
    dice = mean_interval(pixels.dice_per_image, np.ones(len(subjects)).tolist(), subjects)
    return {"dice_per_image": dice, "lesion_rate": mean_interval(found, lesions, subjects)}


def _metrics(model: Model, rows: list[dict[str, Any]], pixels: PixelMetrics, dataset: str, seconds: float) -> dict[str, Any]:
    labels = np.array([row["label"] == 1 for row in rows])
    scores = np.array([row["score"] for row in rows], dtype=np.float64)
    subjects = [row["subject"] for row in rows]
    calibration, by_subject = model.bundle.calibration, pixels.by_subject()
    threshold = calibration.reference.image_threshold if calibration else None
    counts = {"normal": int((~labels).sum()), "abnormal": int(labels.sum()), "subjects": len(set(subjects))}
    return {
        "image": image_metrics(labels, scores, threshold),
        "pixel": pixels.result(),
        "n": {**counts, "pixels": pixels.pixels if pixels.lesion else 0},
        "intervals": {
            "level": 0.95,
            "image": image_intervals(labels, scores, subjects, threshold),
            "pixel": pixel_intervals(by_subject) | _lesion_intervals(pixels)
            if by_subject is not None and pixels.lesion
            else None,
        },
        "lesions": pixels.lesions(),
        "method": model.bundle.config.method,
        "settings": model.bundle.config.model,
        "dataset": dataset,
        "seed": model.bundle.config.seed,
        "seconds": round(seconds, 3),
    }
