"""One picture of ``reshift score``: read it and, once the network has looked at it, write its map and overlay.

Nothing here needs torch, so that other processes can do it and begin at once (score_helper.py).
"""

import io
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.config import DataConfig
from reshift.data.dicom.header import is_dicom
from reshift.data.image import Image
from reshift.data.prepare import Prepared, prepare
from reshift.data.read import open_scan
from reshift.data.volume import Volume
from reshift.inference.acquisition import describe, judge
from reshift.inference.answer import Looked, answer
from reshift.inference.calibration import Calibration
from reshift.inference.overlay import overlay, png, shows
from reshift.inference.records import FIELDS, Record
from reshift.system.files import atomic_bytes, naming


class Task(NamedTuple):
    """What stays the same over all pictures of a run."""

    data: DataConfig
    out: Path
    calibration: Calibration | None
    dicom: bool  # also write DICOM results of DICOM pictures
    overlays: str = "all"  # one of picture.OVERLAYS


class Loaded(NamedTuple):
    """A picture, its network input, and what that looks like."""

    image: Image
    prepared: Prepared
    described: NDArray[np.float64]


class Seen(NamedTuple):
    """What the network says of a picture."""

    score: float
    heatmap: NDArray[np.float32]  # in its own grid
    features: NDArray[np.float64] | None  # for the check of the acquisition
    seconds: float


def load(path: Path, data: DataConfig) -> Loaded | None:
    """Read and prepare; None where it turns out to be a volume."""
    image = open_scan(path)
    return None if isinstance(image, Volume) else Loaded(image, p := prepare(image, data), describe(p.pixels))


def record(path: Path, **values: Any) -> Record:
    """A line of ``scores.jsonl``."""
    return {**dict.fromkeys(FIELDS), "input": str(path), **values}


def failed(path: Path, error: str) -> Record:
    """Record a case that could not be scored."""
    return record(path, error=error)


def write(task: Task, path: Path, stem: str, loaded: Loaded, seen: Seen) -> Record:
    """Write the map and the overlay, and only then say so in a record."""
    calibration = task.calibration
    known = calibration.acquisition if calibration else None
    judged = judge(known, loaded.described, seen.features) if known else None
    result = answer(Looked(seen.score, seen.heatmap, loaded.prepared.geometry, judged), calibration)
    if not math.isfinite(result.score):
        return failed(path, f"{path}: the model's score is {result.score}; its training may have diverged")
    place, buffer = f"maps/{stem}.npy", io.BytesIO()
    np.save(buffer, result.heatmap)
    _write(task.out / place, buffer.getvalue())
    if calibration is not None and shows(task.overlays, flagged=bool(result.flag)):
        shown = overlay(loaded.image.pixels, result.heatmap, calibration.heat_scale, loaded.image.window)
        _write(task.out / "overlays" / f"{stem}.png", png(shown))
    error = None
    if calibration is not None and task.dicom and is_dicom(path):
        from reshift.inference.volumes import export

        error = export(task.out / "dicom" / stem, loaded.image, result.heatmap, calibration)
    numbers = {"score": result.score, "p_value": result.p_value, "flag": result.flag}
    said = {name: getattr(result, name) for name in ("shift", "unlike", "shift_features", "differs")}
    return record(path, **numbers, map=place, seconds=round(seen.seconds, 4), error=error, **said)


def _write(target: Path, content: bytes) -> None:
    if not target.parent.exists():
        with naming(target):
            target.parent.mkdir(parents=True, exist_ok=True)
    atomic_bytes(target, content, lasting=False)  # score.py looks for empty ones
