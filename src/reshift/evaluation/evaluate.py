"""``reshift evaluate``: the test split through a bundle → ``metrics.json``, ``cases.jsonl`` and arrays for figures."""

import dataclasses
import io
import json
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from reshift.data.archive import archive_names
from reshift.data.cases import Case, expand_volumes
from reshift.data.prepare import Prepared, prepare, prepare_mask
from reshift.data.read import read_image, read_mask
from reshift.errors import UserError
from reshift.evaluation.metrics.confidence import image_intervals, pixel_intervals
from reshift.evaluation.metrics.pixels import PixelMetrics
from reshift.evaluation.metrics.table import image_metrics, pixel_metrics, select_metrics
from reshift.inference.acquisition import run_warning
from reshift.inference.bundle import Bundle
from reshift.inference.consensus import place, together
from reshift.inference.model import Model
from reshift.inference.result import assess
from reshift.inference.stream import Sample, average_stacks, predict_samples, prepare_sample
from reshift.inference.tissue import withhold
from reshift.methods import caveat
from reshift.system.files import atomic_bytes, atomic_json, atomic_text, writing
from reshift.system.lock import output_folder
from reshift.system.progress import progress

if TYPE_CHECKING:
    from reshift.evaluation.normative import NormativeIndices

RESULTS = ("metrics.json", "report.html", "cases.jsonl", "features.npy", "pixels.npz", "subjects.npz", "arrays")
TRAINING_SAMPLE = 512  # training normals whose features AHI compares with


def evaluate(
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
    """Score the test cases and write the results to ``out``; return the metrics and the cases that could not be read.

    Results of an earlier evaluation in ``out`` are replaced.

    With ``indices`` (see ``normative_indices``) the quality of the restorations is measured, too. ``on_case`` is called with
    every predicted image. Image, map and mask are written to ``out/arrays`` if ``keep_arrays``, or of the cases it names.
    ``data_caveat`` is what the data set says against itself; it goes to the warnings.
    """
    with output_folder(out), _written_aside(out) as folder:
        return _evaluate(model, cases, folder, dataset, indices, on_case, keep_arrays=keep_arrays, data_caveat=data_caveat)


@contextmanager
def _written_aside(out: Path) -> Iterator[Path]:
    """A folder in ``out`` whose content replaces the results in ``out`` once it is complete.

    Until then an earlier evaluation stays as it is. ``metrics.json`` goes first and comes last: results without it are not used.
    """
    aside = out / ".new"
    shutil.rmtree(aside, ignore_errors=True)  # of a killed process
    try:
        with writing(aside):
            aside.mkdir()
        yield aside
        with writing(out):
            for name in RESULTS:
                if (out / name).is_dir():
                    (out / name).rename(aside / f"old {name}")
                else:
                    (out / name).unlink(missing_ok=True)
            for name in reversed(RESULTS):
                if (aside / name).exists():
                    (aside / name).rename(out / name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _evaluate(
    model: Model,
    cases: Sequence[Case],
    out: Path,
    dataset: str,
    indices: "NormativeIndices | None",
    on_case: Callable[[Sample[Case]], object],
    *,
    keep_arrays: bool | Collection[str],
    data_caveat: str | None,
) -> tuple[dict[str, Any], list[str]]:
    begun = time.monotonic()
    calibration = model.bundle.calibration
    thresholds = (calibration.reference.pixel_threshold, calibration.quantile_threshold) if calibration else (None, None)
    pixels = PixelMetrics(*thresholds)
    rows, errors, features = list[dict[str, Any]](), list[str](), list[NDArray[np.float32]]()
    given, cases = len(cases), expand_volumes(cases, model.bundle.config.data, errors)
    cases = together(cases) if model.bundle.config.data.sigma else cases
    with progress("evaluating", len(cases)) as advance:
        for item in _predict(model, cases, errors):
            if item.mask is not None or item.case.label == 0:  # an abnormal image without a mask says nothing about pixels
                pixels.add(item.heatmap, item.mask, ignore=item.ignore, subject=item.case.subject)
            kept = keep_arrays if isinstance(keep_arrays, bool) else item.case.name in keep_arrays
            rows.append(_row(model, item) | (_save_arrays(out, len(rows), item) if kept else {}))
            features += [item.embedding] if item.embedding is not None else []
            if indices is not None:
                _restore(model, indices, item)
            on_case(item)
            advance()
    if not rows:
        raise UserError(f"none of the {given} test images could be scored; the first: {errors[0]}")
    metrics = _metrics(model, rows, pixels, dataset, time.monotonic() - begun)
    warnings = [*_warnings(model.bundle, rows, errors), *model.warnings(), *(indices.warnings() if indices else [])]
    metrics |= {"normative": indices and indices.result(), "warnings": [*([data_caveat] if data_caveat else []), *warnings]}
    _save_counts(out, pixels, features)
    atomic_text(out / "cases.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    atomic_json(out / "metrics.json", metrics)
    return metrics, errors


def normative_indices(model: Model, training: Sequence[Case]) -> "NormativeIndices":
    """Prepare RQI, AHI and CACI: the feature network, and the training normals that restorations should come close to."""
    from reshift.evaluation.normative import NormativeIndices
    from reshift.nets.efficientnet_lite import efficientnet_lite0
    from reshift.nets.lpips import NAME, lpips_alexnet
    from reshift.weights.find import available

    if not model.detector.restores:
        raise UserError(f"method '{model.bundle.config.method}' restores no images, so it has no normative indices")
    distance = lpips_alexnet(str(model.device)) if available(NAME) else None
    indices = NormativeIndices(efficientnet_lite0(model.device), distance)
    data = model.bundle.config.data
    training = expand_volumes(training, data)
    chosen = np.random.default_rng(0).permutation(len(training))[:TRAINING_SAMPLE]
    for i in sorted(chosen):  # slices of one volume together
        image = prepare(read_image(training[i].image, training[i].slice, data.max_pixels), data).pixels[None]
        indices.add_training(torch.from_numpy(image).to(model.device))
    return indices


def _restore(model: Model, indices: "NormativeIndices", item: Sample[Case]) -> None:
    x = torch.from_numpy(item.prepared.pixels[None]).to(model.device)
    restored = model.restored(x)
    if item.case.label == 0:
        indices.add_normal(x, restored)
        return
    mask, ignore = (None if region is None else torch.from_numpy(region[None]) for region in (item.mask, item.ignore))
    indices.add_abnormal(x, restored, mask, ignore)


def _save(path: Path, writer: Callable[..., None], *arrays: Any, **named: Any) -> None:
    buffer = io.BytesIO()
    writer(buffer, *arrays, **named)
    path.parent.mkdir(exist_ok=True)
    atomic_bytes(path, buffer.getvalue())


def _save_arrays(out: Path, index: int, item: Sample[Case]) -> dict[str, str]:
    """Image, map and mask at network resolution: figures and comparisons are drawn from these, without the model."""
    name = f"arrays/{index:05d}.npz"
    grey = np.rint((item.prepared.pixels.mean(0) + 1.0) * 127.5).astype(np.uint8)
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


def _predict(model: Model, cases: Sequence[Case], errors: list[str]) -> Iterator[Sample[Case]]:
    """Predict the cases that can be read; what is wrong with the others is appended to ``errors``."""

    def read(case: Case) -> Sample[Case]:
        data = model.bundle.config.data
        sample = prepare_sample(case, read_image(case.image, case.slice, data.max_pixels), data)
        mask, ignore = (_region(model, path, case, sample.prepared) for path in (case.mask, case.ignore))
        sample.image, sample.ignore = None, ignore
        sample.mask = mask & ~ignore if mask is not None and ignore is not None else mask
        return sample

    where = partial(place, slice_mm=model.bundle.config.data.slice_mm)
    for sample in average_stacks(model, predict_samples(model, cases, read, embed=True), where):
        if sample.error is None:
            withhold(sample, model.bundle.calibration)
            yield sample
        else:
            errors.append(archive_names(str(sample.error)))


def _region(model: Model, path: Path | None, case: Case, prepared: Prepared) -> NDArray[np.bool_] | None:
    if path is None:
        return None
    try:
        return prepare_mask(read_mask(path, case.image, case.slice), prepared.geometry, model.bundle.config.data.size)
    except ValueError as err:
        raise UserError(f"{path}: {err}") from None


def _row(model: Model, item: Sample[Case]) -> dict[str, Any]:
    case = item.case
    return {
        "input": case.name,
        "label": case.label,
        "subject": case.subject,
        "note": case.note,
        "score": item.score,
        **assess(item, model.bundle.calibration)._asdict(),
        "lesion_pixels": int(item.mask.sum()) if item.mask is not None else None,
    }


def _warnings(bundle: Bundle, rows: Sequence[dict[str, Any]], errors: Sequence[str]) -> list[str]:
    """Everything that lowers the trust in the metrics, one line each."""
    calibration = bundle.calibration
    out = calibration.warnings() if calibration else ["the bundle is not calibrated: no thresholds, no p-values"]
    # Of normals only: an abnormal image may differ because of its lesion, a normal one should not.
    unlike = run_warning([row["differs"] for row in rows if row["label"] == 0 and row["differs"] is not None])
    out += [unlike] if unlike else []
    if unjudged := sum(row["not_judged"] is not None for row in rows):
        out.append(f"{unjudged} test image(s) have too little tissue to be judged; they count as not flagged")
    out += [text] if (text := caveat(bundle.config.method)) else []
    if errors:
        out.append(f"{len(errors)} test image(s) could not be scored and are left out; the first: {errors[0]}")
    return out


def _metrics(model: Model, rows: list[dict[str, Any]], pixels: PixelMetrics, dataset: str, seconds: float) -> dict[str, Any]:
    labels = np.array([row["label"] == 1 for row in rows])
    scores = np.array([row["score"] for row in rows], dtype=np.float64)
    subjects = [row["subject"] for row in rows]
    calibration = model.bundle.calibration
    threshold = calibration.reference.image_threshold if calibration else None
    counts = {"normal": int((~labels).sum()), "abnormal": int(labels.sum()), "subjects": len(set(subjects))}
    return {
        "image": image_metrics(labels, scores, threshold),
        "pixel": pixel_metrics(pixels),
        "n": {**counts, "pixels": pixels.pixels if pixels.lesion else 0},
        "intervals": {
            "level": 0.95,
            "image": image_intervals(labels, scores, subjects, threshold),
            "pixel": _pixel_intervals(pixels),
        },
        "lesions": pixels.lesions(),
        "method": model.bundle.config.method,
        "settings": model.bundle.config.model,
        "model_sha256": model.bundle.fingerprint,
        "dataset": dataset,
        "seed": model.bundle.config.seed,
        "seconds": round(seconds, 3),
    }


def _pixel_intervals(pixels: PixelMetrics) -> dict[str, tuple[float, float] | None] | None:
    """Intervals of the pixel metrics and of the share of lesions found; None without lesions."""
    by_subject = pixels.by_subject()
    if by_subject is None or not pixels.lesion:
        return None
    own = {m.name: m.interval(pixels) for m in select_metrics("pixel") if m.interval is not None}
    return {**pixel_intervals(by_subject), **own, "lesion_rate": pixels.lesion_rate_interval()}
