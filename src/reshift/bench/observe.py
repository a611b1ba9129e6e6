"""What a cell keeps beside its metrics: values per image, both rules for thresholds, other image scores, training."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from reshift.data.cases import Case
from reshift.data.source import Source
from reshift.evaluation.metrics.image import ImageScores
from reshift.evaluation.metrics.one_image import LesionImage
from reshift.evaluation.metrics.table import METRICS
from reshift.inference.calibration import Calibration
from reshift.inference.model import Model
from reshift.inference.stream import Sample
from reshift.system.device import device_scope

TOP = 0.02  # share of the pixels, of the image score "highest 2 %"
MAX_DIAGNOSED = 256  # normals; more do not change which codes are in use


class PairedValues:
    """One value per test image and metric, for paired tests between cells."""

    def __init__(self, threshold: float | None) -> None:
        self.threshold = threshold
        self.columns = dict[str, list[Any]]()

    def add(self, item: Sample[Case]) -> None:
        """Add one image."""
        case = item.case
        row = {"inputs": case.name, "subjects": case.subject, "labels": case.label, "scores": rounded(item.score)}
        for name, value in {**row, **self._pixels(item)}.items():
            self.columns.setdefault(name, []).append(value)

    def _pixels(self, item: Sample[Case]) -> dict[str, float | None]:
        """The metrics that are kept per image, over its own pixels; None without a lesion."""
        image = None
        if item.mask is not None and item.mask.any():
            counted = _counted(item)
            image = LesionImage(item.mask[counted], item.heatmap[counted], self.threshold)
        kept = [(metric.image_column, metric.per_image) for metric in METRICS.values() if metric.per_image is not None]
        return {column: rounded(value(image)) if image is not None else None for column, value in kept}


class Rules:
    """F1, FPR, TPR and Dice by the thresholds of training normals (the paper's rule) and of unseen normals (ours)."""

    def __init__(self, calibration: Calibration | None) -> None:
        known = {"training": calibration.training, "held-out": calibration.held_out} if calibration else {}
        self.references = {name: reference for name, reference in known.items() if reference is not None}
        self.labels, self.scores = list[bool](), list[float]()
        self.pixels = {name: np.zeros(3, np.int64) for name in self.references}  # called and lesion, called, lesion

    def add(self, item: Sample[Case]) -> None:
        """Count one image."""
        self.labels.append(item.case.label == 1)
        self.scores.append(item.score)
        if item.mask is None and item.case.label != 0:
            return  # where its lesion lies is not known
        lesion = item.mask if item.mask is not None else np.zeros(item.heatmap.shape, dtype=bool)
        counted = _counted(item)
        for name, reference in self.references.items():
            called = (item.heatmap > reference.pixel_threshold) & counted
            self.pixels[name] += (int((called & lesion).sum()), int(called.sum()), int((lesion & counted).sum()))

    def result(self) -> dict[str, dict[str, float | None]]:
        """The metrics by rule; a rule for which there were no normals is missing."""
        found = dict[str, dict[str, float | None]]()
        for name, reference in self.references.items():
            images = ImageScores(np.array(self.labels), np.array(self.scores, dtype=np.float64), reference.image_threshold)
            both, called, lesion = (int(count) for count in self.pixels[name])
            dice = 2.0 * both / (called + lesion) if lesion else None
            values = {"f1": images.f1(), "fpr": images.fpr(), "tpr": images.tpr(), "dice": dice}
            found[name] = {key: rounded(value) for key, value in values.items()}
        return found


class MapScores:
    """AUC and AP where the image score is the mean of the heat-map, or of its highest 2 %, whatever the method's own is."""

    def __init__(self) -> None:
        self.labels = list[bool]()
        self.scores: dict[str, list[float]] = {"mean": [], "top": []}

    def add(self, item: Sample[Case]) -> None:
        """Add one image."""
        flat = item.heatmap.reshape(-1).astype(np.float64)
        count = max(1, round(TOP * len(flat)))
        self.labels.append(item.case.label == 1)
        self.scores["mean"].append(float(flat.mean()))
        self.scores["top"].append(float(np.partition(flat, -count)[-count:].mean()))

    def result(self) -> dict[str, dict[str, float | None]]:
        """The metrics by score."""
        labels = np.array(self.labels)
        images = {name: ImageScores(labels, np.array(scores), None) for name, scores in self.scores.items()}
        return {name: {"auc": rounded(found.auc()), "ap": rounded(found.ap())} for name, found in images.items()}


def diagnose(model: Model, learned: Sequence[Case], tests: Sequence[Case]) -> dict[str, dict[str, float]]:
    """The method's own diagnostics on training normals and on normals of the test set; empty for a method without any."""
    if not model.detector.overrides("diagnostics"):
        return {}
    groups = {"training": learned, "test": [case for case in tests if case.label == 0]}
    found = dict[str, dict[str, float]]()
    with device_scope(model.device), torch.inference_mode():
        for name, cases in groups.items():
            chosen = sorted(np.random.default_rng(0).permutation(len(cases))[:MAX_DIAGNOSED].tolist())
            if chosen:
                source = Source([cases[i] for i in chosen], model.bundle.config.data, model.device)
                values = model.detector.diagnostics(source.batches())
                found[name] = {key: float(f"{value:.6g}") for key, value in values.items()}
    return found


def even_cases(cases: Sequence[Case], count: int) -> set[str]:
    """Names of ``count`` abnormal test images with a mask, at even places of the list: no method has a say in it."""
    known = [case.name for case in cases if case.label == 1 and case.mask is not None] or [c.name for c in cases if c.label == 1]
    at = np.linspace(0, len(known) - 1, min(count, len(known))).round().astype(int)
    return {known[i] for i in at}


def _counted(item: Sample[Case]) -> NDArray[np.bool_]:
    """The pixels that metrics count."""
    return np.ones(item.heatmap.shape, dtype=bool) if item.ignore is None else ~item.ignore


def rounded(value: float | None) -> float | None:
    """Six significant digits."""
    return None if value is None else float(f"{value:.6g}")
