"""What ``reshift evaluate`` leaves on disk, read back: figures and comparisons need no model and no retraining."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.config import read_json
from reshift.errors import UserError
from reshift.evaluation.metrics.subjects import SubjectPixels
from reshift.methods import label


class Results(NamedTuple):
    """One evaluation folder."""

    folder: Path
    metrics: dict[str, Any]  # metrics.json
    cases: list[dict[str, Any]]  # cases.jsonl, one row per test image

    @property
    def name(self) -> str:
        """The method, as tables and legends call it."""
        return label(str(self.metrics["method"]))


class CaseArrays(NamedTuple):
    """One test image at network resolution."""

    image: NDArray[np.uint8]  # (H, W) grey
    heatmap: NDArray[np.float32]  # (H, W)
    mask: NDArray[np.bool_] | None


class PixelCounts(NamedTuple):
    """How many normal and abnormal test pixels have which score."""

    values: NDArray[np.float32]  # ascending lower edges of the filled bins
    normal: NDArray[np.int64]
    abnormal: NDArray[np.int64]


def load_results(folder: Path) -> Results:
    """Read ``metrics.json`` and ``cases.jsonl``."""
    try:
        metrics = read_json((folder / "metrics.json").read_text(encoding="utf-8"))
        cases = [read_json(line) for line in (folder / "cases.jsonl").read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError as err:
        raise UserError(f"{folder}: not an evaluation, {Path(err.filename).name} is missing; run 'reshift evaluate'") from None
    except ValueError:
        raise UserError(f"{folder}: damaged results, not valid JSON; run 'reshift evaluate' again") from None
    return Results(folder, metrics, cases)


def case_arrays(results: Results, case: dict[str, Any]) -> CaseArrays:
    """Read the image, map and mask of one row of ``results.cases``."""
    path = results.folder / str(case["arrays"])
    try:
        with np.load(path, allow_pickle=False) as stored:
            mask = stored["mask"] if "mask" in stored.files else None
            return CaseArrays(stored["image"], stored["heatmap"].astype(np.float32), mask)
    except (OSError, ValueError, KeyError):
        raise UserError(f"{path}: missing or damaged; run 'reshift evaluate' again") from None


def case_features(results: Results) -> NDArray[np.float32] | None:
    """Read the detector's embedding of every case, ``(n, d)`` in the order of ``cases``; None if it has none."""
    path = results.folder / "features.npy"
    return np.load(path, allow_pickle=False) if path.exists() else None


def pixel_counts(results: Results) -> PixelCounts | None:
    """Read the histogram of test pixels; None where no abnormal image had a mask."""
    path = results.folder / "pixels.npz"
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as stored:
        return PixelCounts(stored["values"], stored["normal"], stored["abnormal"])


def subject_pixels(results: Results) -> SubjectPixels | None:
    """Read the pixel counts by subject, which intervals and paired tests are made of."""
    path = results.folder / "subjects.npz"
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as stored:
        counts = {name: stored[name] for name in ("values", "normal", "abnormal", "overlap", "called", "lesion")}
        share = stored["share"] if "share" in stored.files else None  # older results lack it
        return SubjectPixels(tuple(str(s) for s in stored["subjects"]), **counts, share=share)


def choose_cases(runs: Sequence[Results], rows: int = 6) -> list[str]:
    """Choose abnormal cases that every run has a map of, at even ranks of lesion size; never by how well a method does."""
    sizes = {str(case["input"]): case.get("lesion_pixels") for case in (runs[0].cases if runs else []) if case["label"] == 1}
    for run in runs:
        stored = {str(case["input"]) for case in run.cases if case.get("arrays")}
        sizes = {name: size for name, size in sizes.items() if name in stored}
    measured = [name for name, size in sizes.items() if size]
    ranked = sorted(measured or sizes, key=lambda name: (sizes[name] or 0, name))
    at = np.linspace(0, len(ranked) - 1, min(rows, len(ranked))).round().astype(int)
    return [ranked[i] for i in at]
