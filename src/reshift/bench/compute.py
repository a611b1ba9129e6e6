"""Compute the cells of a task: train their common model once, predict with the settings of each cell, write the records."""

import gc
import math
import platform
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from errno import EDQUOT, EFBIG, ENOSPC
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from reshift import __version__
from reshift.bench.cells import Event, Spec, Task, today, write_cell, write_failed_cell
from reshift.bench.observe import MapScores, PairedValues, Rules, diagnose, even_cases
from reshift.config import Config, merge, parse
from reshift.data.cases import Case, expand_volumes
from reshift.data.manifest import data_caveat, load_cases
from reshift.errors import Stopped, UserError, reason
from reshift.evaluation.evaluate import normative_indices
from reshift.evaluation.metrics.cost import Cost
from reshift.evaluation.metrics.table import METRICS, cost_metrics
from reshift.inference.bundle import Bundle, build, load_bundle
from reshift.inference.calibrate import calibrate
from reshift.inference.model import Model
from reshift.inference.stream import Sample
from reshift.reports.report import evaluate_with_report
from reshift.system.cores import cores
from reshift.training.run import split_normals, train_run


class DiskFullError(UserError):
    """There is no room to write. Every other cell would fail for the same reason, so the run stops; finished cells stay."""


def run_task(task: Task, device: str = "auto", report: Callable[[Event], object] = lambda _: None) -> None:
    """Train the model if it is missing, then evaluate every cell and write it. If one fails, the others still run."""
    begun = time.monotonic()
    report(Event("started", task.cells[0].name))
    error = _attempt(task, lambda: train_model(task, device))
    for i, spec in enumerate(task.cells):
        if i > 0:
            report(Event("started", spec.name))
        cell = error or _attempt(task, partial(evaluate_cell, task, spec, device))
        if isinstance(cell, str):
            write_failed_cell(Path(task.out), spec, cell)
            report(Event("failed", spec.name, time.monotonic() - begun, cell))
        else:
            write_cell(Path(task.out), spec.file, cell)
            report(Event("done", spec.name, time.monotonic() - begun, *main_metrics(cell)))
        begun = time.monotonic()
    _free_memory()


def _attempt(task: Task, work: Callable[[], Any]) -> Any:
    """Return what ``work`` returns, or why it failed. A full disk or a stopped run is not a failure of the cell."""
    try:
        return work()
    except Stopped:
        raise
    except Exception as err:
        if disk_full(err):
            plain = f"{task.out}: could not be written ({reason(err)}); make room, and run it again"
            raise DiskFullError(str(err) if isinstance(err, UserError) else plain) from err
        with suppress(OSError):
            traceback.print_exc(file=sys.stderr)
        return " ".join(reason(err).split()) or type(err).__name__


def disk_full(err: BaseException | None) -> bool:
    """Whether a full disk is the cause of ``err``."""
    while err is not None:
        if isinstance(err, OSError) and err.errno in (ENOSPC, EDQUOT, EFBIG):
            return True
        err = err.__cause__ or err.__context__
    return False


def main_metrics(cell: Mapping[str, Any]) -> tuple[str, float | None]:
    """The metrics to show when a cell is done, and its rank among others by the first of them."""
    found = [(metric, metric.read_cell(cell)) for metric in METRICS.values() if "progress" in metric.places]
    text = ", ".join(f"{metric.caption} {metric.page_text(value)}" for metric, value in found if value is not None)
    first, value = found[0]
    return text, -value if value is not None and first.better == "lower" else value


def train_model(task: Task, device: str) -> None:
    """Train the model that the task's cells share, unless it exists; an interrupted training continues."""
    spec = task.cells[0]
    train_run(training_config(spec, device), Path(spec.train_path), task.folder, resume=True)


def training_config(spec: Spec, device: str) -> Config:
    """The training config, on this device."""
    return parse(Config, merge(spec.config, {"train": {"device": device}}))


def training_split(data: Path, config: Config) -> tuple[list[Case], list[Case]]:
    """The normal images to train on, and those held out for calibration."""
    learned = [case for case in load_cases(data, config.data.subject) if case.split != "test"]
    return split_normals(expand_volumes(learned, config.data), config, data)


def evaluate_cell(task: Task, spec: Spec, device: str) -> dict[str, Any]:
    """Predict on the test split; return the cell's record."""
    bundle = load_bundle(task.folder / "bundle")
    model = TimedModel(predict_bundle(bundle, spec, device) if spec.predict else bundle, device)
    tests = [case for case in load_cases(Path(spec.test_path)) if case.split == "test"]
    indices = None
    if spec.normative and model.detector.restores:
        indices = normative_indices(model, [case for case in load_cases(Path(spec.train_path)) if case.split == "train"])
    images = expand_volumes(tests, model.bundle.config.data, [])  # what cannot be read, the evaluation reports
    calibration = model.bundle.calibration
    paired = PairedValues(calibration.reference.pixel_threshold if calibration else None)
    rules, scores = Rules(calibration), MapScores()

    def observe(item: Sample[Case]) -> None:
        for observer in (paired, rules, scores):
            observer.add(item)

    folder, kept = Path(task.out) / "evaluations" / spec.key, even_cases(images, task.keep_maps)
    about = data_caveat(Path(spec.test_path))
    metrics, refused = evaluate_with_report(
        model, tests, folder, spec.dataset, indices, observe, keep_arrays=kept, data_caveat=about
    )
    planned = count_updates(bundle.detector, int(bundle.facts["images"]), bundle.config.train.batch)
    updates = planned | bundle.facts.get("updates", {})  # a stage may have ended early
    cost = Cost(bundle.facts["seconds"], sum(updates.values()), model.images_per_second())
    return {
        **spec.record(), "status": "done", "error": None, "metrics": metrics, "refused": refused, "paired": paired.columns,
        "thresholds": rules.result(), "map_scores": scores.result(),
        "training": diagnose(model, training_split(Path(spec.train_path), model.bundle.config)[0], images),
        **cost_metrics(cost), "steps": cost.steps, "updates": updates, "machine": machine(model.device), "date": today(),
    }  # fmt: skip


def predict_bundle(trained: Bundle, spec: Spec, device: str) -> Bundle:
    """Use the trained weights with the cell's own prediction settings, and calibrate again, since thresholds depend on them."""
    config = parse(Config, merge(trained.config.model_dump(mode="json"), spec.predict))  # what was "auto" is decided there
    detector: Any = build(config)
    if training_facts(detector) != training_facts(trained.detector):
        raise UserError(f"row '{spec.row}': its 'predict' settings change what is trained; give them under 'set' instead")
    detector.load_state_dict(trained.detector.state_dict())
    detector.eval().requires_grad_(False)
    kept, held = training_split(Path(spec.train_path), config)
    model = Model(Bundle(detector, config, None, trained.facts, trained.fingerprint), device)
    model.feature_network = None  # the acquisition check does not depend on predictions, and is copied from the trained bundle
    before, now = trained.calibration, calibrate(model, kept, held)
    return model.bundle._replace(calibration=now.model_copy(update={"acquisition": before.acquisition if before else None}))


def training_facts(detector: Any) -> list[Any]:
    """Everything that a detector states about its training."""
    shapes = {name: value.shape for name, value in detector.state_dict().items()}
    return [shapes, *((stage.name, stage.epochs, stage.steps, stage.decided_by) for stage in detector.stages())]


class TimedModel(Model):
    """A model that times its predictions. The first batch is not counted, because it warms up."""

    def __init__(self, bundle: Bundle, device: str) -> None:
        super().__init__(bundle, device)
        self.times = list[tuple[int, float]]()

    def launch(
        self, pixels: NDArray[np.float32], without: int | None = None
    ) -> Callable[[], tuple[list[float], NDArray[np.float32]]]:
        """Predict a batch and wait for its results, so that the measured time includes all work of the device."""
        begun = time.perf_counter()
        found = super().launch(pixels, without)()
        self.times.append((len(pixels), time.perf_counter() - begun))
        return lambda: found

    def images_per_second(self) -> float:
        """Over all batches but the first, if there are others."""
        counted = self.times[1:] or self.times
        return float(f"{sum(n for n, _ in counted) / max(sum(s for _, s in counted), 1e-9):.4g}")


def count_updates(detector: Any, images: int, batch: int) -> dict[str, int]:
    """Optimiser steps of each stage, if none ends early."""
    per_epoch = math.ceil(images / min(batch, images))
    return {stage.name: stage.epochs * per_epoch if stage.steps is None else stage.steps for stage in detector.stages()}


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def machine(device: torch.device) -> dict[str, Any]:
    """Facts that explain the measured seconds; nothing that identifies the computer."""
    info = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    return {
        "cpu": model[1] if model else platform.processor() or platform.machine(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "reshift": __version__,
    }
