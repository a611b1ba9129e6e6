"""What a cell costs: train a model once, predict with it under any inference settings, and measure."""

import gc
import math
import platform
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from reshift import __version__
from reshift.bench.cells import Spec, Task, today
from reshift.config import Config, merge, parse
from reshift.data.manifest import expand, load_cases
from reshift.errors import UserError
from reshift.evaluation.evaluate import Evaluated, evaluate, normative_indices
from reshift.evaluation.metrics.image import average_precision, curve
from reshift.inference.bundle import Bundle, build, load_bundle
from reshift.inference.model import Model
from reshift.system.cores import cores
from reshift.training.run import calibrated, split_normals, train_run


def trained(task: Task, device: str) -> None:
    """Train the model that the task's cells share, unless it is there; what was interrupted is continued."""
    spec = task.cells[0]
    train_run(running(spec, device), Path(spec.train_path), task.folder, resume=True)


def running(spec: Spec, device: str) -> Config:
    """The training config, on this device."""
    return parse(Config, merge(spec.config, {"train": {"device": device}}))


def evaluated(task: Task, spec: Spec, device: str) -> dict[str, Any]:
    """Predict on the test split; return the whole record."""
    bundle = load_bundle(task.folder / "bundle")
    model = Clocked(predicting(bundle, spec, device) if spec.predict else bundle, device)
    tests = [case for case in load_cases(Path(spec.test_path)) if case.split == "test"]
    indices = None
    if spec.normative and hasattr(model.detector, "pseudo_healthy"):
        indices = normative_indices(model, [case for case in load_cases(Path(spec.train_path)) if case.split == "train"])
    paired = Paired(model)
    folder = Path(task.out) / "evaluations" / spec.key
    metrics, _ = evaluate(model, tests, folder, spec.dataset, indices, paired.add)
    batch, images = bundle.config.train.batch, int(bundle.facts["images"])
    return {
        **spec.about(), "status": "done", "error": None, "metrics": metrics, "paired": paired.columns,
        "train_seconds": bundle.facts["seconds"], "images_per_second": model.images_per_second(),
        "steps": steps(bundle.detector, images, batch), "machine": machine(model.device), "date": today(),
    }  # fmt: skip


def predicting(trained_bundle: Bundle, spec: Spec, device: str) -> Bundle:
    """Put the trained weights under other inference settings, and set the thresholds anew, as they depend on those."""
    config = parse(Config, merge(spec.config, spec.predict))
    detector: Any = build(config)
    if _learned(detector) != _learned(trained_bundle.detector):
        raise UserError(f"row '{spec.row}': its 'predict' settings change what is trained; give them under 'set' instead")
    detector.load_state_dict(trained_bundle.detector.state_dict())
    detector.eval().requires_grad_(False)
    data = Path(spec.train_path)
    learned = [case for case in load_cases(data, config.data.subject) if case.split != "test"]
    kept, held = split_normals(expand(learned, config.data), config, data)
    model = Model(Bundle(detector, config, None, trained_bundle.facts, trained_bundle.fingerprint), device)
    model.embedder = None  # how images were taken does not depend on predictions, and is known already
    before, now = trained_bundle.calibration, calibrated(model, kept, held)
    return model.bundle._replace(calibration=now.model_copy(update={"acquisition": before.acquisition if before else None}))


def _learned(detector: Any) -> list[Any]:
    """All that a detector says about its training; a method that says nothing of a stage is taken at its word."""
    shapes = {name: value.shape for name, value in detector.state_dict().items()}
    return [shapes, *((stage.name, stage.epochs, stage.steps, stage.decided_by) for stage in detector.stages())]


class Clocked(Model):
    """A model that times its own predictions, the first batch left out: it warms up."""

    def __init__(self, bundle: Bundle, device: str) -> None:
        super().__init__(bundle, device)
        self.times = list[tuple[int, float]]()

    def run(self, pixels: NDArray[np.float32], without: int | None = None) -> tuple[list[float], NDArray[np.float32]]:
        """Score a batch; it brings its results back from the device, and so the clock waits for them."""
        begun = time.perf_counter()
        found = super().run(pixels, without)
        self.times.append((len(pixels), time.perf_counter() - begun))
        return found

    def images_per_second(self) -> float:
        """Over all batches but the first, if there are others."""
        counted = self.times[1:] or self.times
        return float(f"{sum(n for n, _ in counted) / max(sum(s for _, s in counted), 1e-9):.4g}")


class Paired:
    """One value per test image, for paired tests between cells."""

    def __init__(self, model: Model) -> None:
        calibration = model.bundle.calibration
        self.threshold = calibration.reference.pixel_threshold if calibration else None
        names = ("inputs", "subjects", "labels", "scores", "dice", "pixel_ap")
        self.columns: dict[str, list[Any]] = {name: [] for name in names}

    def add(self, item: Evaluated) -> None:
        """Take one image's outcome."""
        case = item.case
        row = (case.name, case.subject, case.label, short(item.score), *self._pixels(item))
        for column, value in zip(self.columns.values(), row, strict=True):
            column.append(value)

    def _pixels(self, item: Evaluated) -> tuple[float | None, float | None]:
        """Dice at the threshold and AP over the image's own pixels; None without a lesion."""
        if item.mask is None or not item.mask.any():
            return None, None
        seen = np.ones_like(item.mask) if item.ignore is None else ~item.ignore
        lesion, heat = item.mask[seen], item.heatmap[seen]
        ap = average_precision(*curve(lesion, heat.astype(np.float64))[:2])
        if self.threshold is None:
            return None, short(ap)
        called = heat > self.threshold
        return short(2.0 * float((called & lesion).sum()) / float(called.sum() + lesion.sum())), short(ap)


def short(value: float | None) -> float | None:
    """Six significant digits."""
    return None if value is None else float(f"{value:.6g}")


def steps(detector: Any, images: int, batch: int) -> int:
    """Optimiser steps over all stages."""
    per_epoch = math.ceil(images / min(batch, images))
    return sum(stage.epochs * per_epoch if stage.steps is None else stage.steps for stage in detector.stages())


def free_memory() -> None:
    """Give back what a model held."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def machine(device: torch.device) -> dict[str, Any]:
    """Facts that explain the seconds; nothing that names the computer."""
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
