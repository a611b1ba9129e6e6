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

from reshift.config import DataConfig
from reshift.data.dicom.header import is_dicom
from reshift.data.read import open_input
from reshift.data.volume import Volume
from reshift.errors import UserError
from reshift.inference.calibration import Calibration
from reshift.inference.inputs import ScoreCase
from reshift.inference.overlay import overlay, png, wants_overlay
from reshift.inference.records import Record, new_record
from reshift.inference.result import finish
from reshift.inference.stream import READ_AHEAD, Sample, grouped, prepare_sample, read_sample
from reshift.system.files import atomic_bytes, writing
from reshift.system.workers import WorkerPool, in_order, worker_processes

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


class IsVolumeError(UserError):
    """A file that has to be scored slice by slice."""


def read_case(task: Task, case: ScoreCase) -> Sample[ScoreCase]:
    """Read and prepare one image."""
    case = case.with_content()
    image = open_input(case.path)
    if isinstance(image, Volume):
        raise IsVolumeError(f"{case.path}: is a volume")
    return prepare_sample(case, image, task.data)


def write_case(task: Task, sample: Sample[ScoreCase]) -> Record:
    """Write the heat-map and the overlay, and only then return the record."""
    case, calibration = sample.case, task.calibration
    assert sample.image is not None
    result = finish(sample, calibration)
    place, buffer, error = f"maps/{case.name}.npy", io.BytesIO(), None
    np.save(buffer, result.heatmap)
    _write(task.out / place, buffer.getvalue())
    if calibration is not None and wants_overlay(task.overlays, flagged=bool(result.flag)):
        shown = overlay(sample.image.pixels, result.heatmap, calibration.heat_scale, sample.image.window)
        _write(task.out / "overlays" / f"{case.name}.png", png(shown))
    if calibration is not None and task.dicom and is_dicom(case.path):
        from reshift.inference.dicom_export import export_result

        error = export_result(task.out / "dicom" / case.name, sample.image, result.heatmap, calibration)
    return new_record(case, map=place, seconds=round(sample.seconds, 4), error=error, **result.numbers())


def _write(target: Path, content: bytes) -> None:
    if not target.parent.exists():
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
    atomic_bytes(target, content, durable=False)


class ImagePool:
    """Reads images ahead of the model and writes results behind it, in threads or worker processes."""

    def __init__(self, task: Task, batch: int, images: int) -> None:
        self.task, self.batch = task, batch
        # highdicom makes no promise about threads or forks: DICOM results are written by one thread.
        self.pool = WorkerPool(0 if task.dicom else worker_processes(images, gpu=batch > 1), 1 if task.dicom else None)
        self.ahead = 2 * self.pool.size * CHUNK if self.pool.processes else batch + READ_AHEAD  # images
        self.largest = 1  # bytes of an image, as far as seen

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close()

    @property
    def max_pending(self) -> int:
        """How many images may wait to be predicted, and as many to be written."""
        return max(1, min(self.ahead, MAX_BYTES // self.largest))

    def read(self, cases: Sequence[ScoreCase]) -> Iterator[list[Sample[ScoreCase]]]:
        """All cases, in order, in batches."""
        chunk = min(CHUNK, self.batch) if self.pool.processes else 1
        futures = (self._submit_read(group) for group in grouped(cases, chunk))
        read: Iterator[list[Sample[ScoreCase]]] = in_order(futures, lambda: self.max_pending // chunk)
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
            return [([s.case], self.pool.submit(0, _write_all, self.task, [s])) for s in samples]
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
