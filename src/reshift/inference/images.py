"""Image files of ``reshift score``: read one, and write its heat-map, overlay and record.

Nothing here needs torch, so worker processes start quickly.
"""

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from reshift.config import DataConfig
from reshift.data.dicom.header import is_dicom
from reshift.data.read import open_input
from reshift.data.volume import Volume
from reshift.errors import UserError
from reshift.inference.calibration import Calibration
from reshift.inference.findings.case import image_findings
from reshift.inference.inputs import ScoreCase, result_stem
from reshift.inference.labels import draw_overlay
from reshift.inference.outputs import DEFAULTS, Outputs
from reshift.inference.overlay import png, wants_overlay
from reshift.inference.preview import preview_tile, save_preview
from reshift.inference.records import Record, new_record
from reshift.inference.result import finish
from reshift.inference.stream import READ_AHEAD, Sample, grouped, prepare_sample, read_sample
from reshift.system.cores import cores
from reshift.system.files import atomic_bytes, writing
from reshift.system.workers import MAX_WORKERS, WorkerPool, as_ready, worker_processes

SPARE = 4  # threads more than cores: those that wait for a slow file hold up nobody
CHUNK = 8  # images a worker process is asked for at once: every message costs the main process time
MAX_BYTES = 2**30  # of images that wait to be predicted, and as many to be written

Written = tuple[list[ScoreCase], "Future[list[Record]]"]


class Task(NamedTuple):
    """What stays the same over all images of a run."""

    data: DataConfig
    out: Path
    calibration: Calibration | None
    dicom: bool  # also write DICOM results of DICOM images
    overlays: str = "all"  # one of overlay.OVERLAYS
    outputs: Outputs = DEFAULTS


class IsVolumeError(UserError):
    """A file that has to be scored slice by slice."""


def read_case(task: Task, case: ScoreCase) -> Sample[ScoreCase]:
    """Read and prepare one image."""
    case = case.with_content()
    image = open_input(case.path, None, task.data.max_pixels)
    if isinstance(image, Volume):
        raise IsVolumeError(f"{case.path}: is a volume")
    return prepare_sample(case, image, task.data)


def write_case(task: Task, sample: Sample[ScoreCase]) -> Record:
    """Write the heat-map and the overlay, and only then return the record."""
    case, calibration = sample.case, task.calibration
    assert sample.image is not None
    result = finish(sample, calibration)
    place, error, found = f"maps/{case.name}.npy", None, None
    _write(task.out / place, _npy_header(result.heatmap), np.ascontiguousarray(result.heatmap).data)
    if calibration is not None and wants_overlay(task.overlays, flagged=bool(result.flag)):
        image, numbers = sample.image, result.numbers()
        shown = draw_overlay(image.pixels, result.heatmap, numbers, calibration, image.window, labels=task.outputs.labels)
        _write(task.out / "overlays" / f"{result_stem(case.name)}.png", png(shown))
    if calibration is not None:
        threshold = calibration.reference.pixel_threshold
        found = image_findings(case.path, result.heatmap, threshold, task.outputs.min_diameter)
        if task.outputs.preview:
            shown = preview_tile(sample.image, result.heatmap, result.numbers(), calibration)
            save_preview(task.out, result_stem(case.name), [shown])
    if calibration is not None and task.dicom and is_dicom(case.path):
        from reshift.inference.dicom_export.export import Result, export_result

        made = Result(sample.image, result.heatmap, found, {"score": result.score, "p_value": result.p_value})
        error = export_result(task.out / "dicom" / case.name, made, task.outputs.dicom_setup(calibration))
    values = {"error": error, **result.numbers(), "findings": found and found.findings}
    return new_record(case, map=place, seconds=round(sample.seconds, 4), **values)


def _npy_header(array: NDArray[np.float32]) -> bytes:
    """What ``np.save`` writes before the values."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, np.lib.format.header_data_from_array_1_0(np.ascontiguousarray(array)))
    return buffer.getvalue()


def _write(target: Path, *content: bytes | memoryview) -> None:
    if not target.parent.exists():
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
    atomic_bytes(target, *content, durable=False)


class ImagePool:
    """Reads images ahead of the model and writes results behind it, in threads or worker processes."""

    def __init__(self, task: Task, batch: int, images: int) -> None:
        self.task, self.batch = task, batch
        processes = 0 if task.dicom else worker_processes(images, gpu=batch > 1)
        self.pool = WorkerPool(processes, min(MAX_WORKERS, cores()) + SPARE)
        # highdicom makes no promise about threads or forks: DICOM results are written by one thread.
        self.writers = self.pool if self.pool.processes else WorkerPool(0, 1 if task.dicom else None)
        self.ahead = 2 * self.pool.size * CHUNK if self.pool.processes else batch + READ_AHEAD  # images
        self.largest = 1  # bytes of an image, as far as seen

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close()
        self.writers.close()

    @property
    def max_pending(self) -> int:
        """How many images may wait to be predicted, and as many to be written."""
        return max(1, min(self.ahead, MAX_BYTES // self.largest))

    def read(self, cases: Sequence[ScoreCase]) -> Iterator[list[Sample[ScoreCase]]]:
        """All cases in batches; in order, unless one takes long to read."""
        chunk = min(CHUNK, self.batch) if self.pool.processes else 1
        futures = (self._submit_read(group) for group in grouped(cases, chunk))
        read: Iterator[list[Sample[ScoreCase]]] = as_ready(futures, lambda: self.max_pending // chunk)
        return grouped(map(self._note_size, chain.from_iterable(read)), self.batch)

    def _submit_read(self, cases: list[ScoreCase]) -> "Future[list[Sample[ScoreCase]]]":
        worker = self.pool.next_worker()
        function = _read_and_keep if self.pool.processes else _read_all
        return self.pool.submit(worker, function, self.task, cases, worker)

    def _note_size(self, sample: Sample[ScoreCase]) -> Sample[ScoreCase]:
        self.largest = max(self.largest, sample.image_bytes)
        return sample

    def write(self, samples: Sequence[Sample[ScoreCase]]) -> list[Written]:
        """Start to write: a process writes what it has read, in one message; threads take one image each."""
        if not self.pool.processes:
            return [([s.case], self.writers.submit(0, _write_all, self.task, [s])) for s in samples]
        by_worker: dict[int, list[Sample[ScoreCase]]] = {}
        for sample in samples:
            by_worker.setdefault(sample.worker, []).append(sample)
        return [
            ([s.case for s in part], self.pool.submit(worker, _write_kept, self.task, part)) for worker, part in by_worker.items()
        ]


def _read_all(task: Task, cases: list[ScoreCase], worker: int) -> list[Sample[ScoreCase]]:
    samples = [read_sample(case, partial(read_case, task)) for case in cases]
    for sample in samples:
        sample.worker = worker
    return samples


def _write_all(task: Task, samples: list[Sample[ScoreCase]]) -> list[Record]:
    return [write_case(task, sample) for sample in samples]


# ---- In a worker process: an image stays where it was read until its results are written; only the network's input travels. ----

_kept: dict[str, Any] = {}


def _read_and_keep(task: Task, cases: list[ScoreCase], worker: int) -> list[Sample[ScoreCase]]:
    samples = _read_all(task, cases, worker)
    for sample in samples:
        if sample.error is None:
            _kept[sample.case.name] = sample.image
            sample.image = None
    return samples


def _write_kept(task: Task, samples: list[Sample[ScoreCase]]) -> list[Record]:
    for sample in samples:
        with suppress(KeyError):
            sample.image = _kept.pop(sample.case.name)
    return _write_all(task, samples)
