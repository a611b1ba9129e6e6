"""``reshift score``: files and folders in, one record per image out. A bad case is recorded; a re-run continues."""

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from reshift.data.read import open_input
from reshift.data.volume import Volume
from reshift.errors import UserError
from reshift.inference.acquisition import run_warning
from reshift.inference.bundle import Bundle
from reshift.inference.images import ImagePool, IsVolumeError, Task, Written
from reshift.inference.inputs import ScoreCase, find_cases, free_name
from reshift.inference.model import Model
from reshift.inference.overlay import OVERLAYS
from reshift.inference.records import Entry, Record, RecordFile, failed_record, new_record, read_index, sort_records
from reshift.inference.stream import Sample, predict_batches
from reshift.inference.volumes import score_volume
from reshift.system.files import atomic_json, create_output_folder
from reshift.system.progress import progress


class Summary(NamedTuple):
    """What the whole of ``scores.jsonl`` says."""

    cases: int
    failures: int
    warning: str | None  # when the images are of another kind than the training images
    notes: list[str]  # what is unusual about a volume that was scored nevertheless


class Run(NamedTuple):
    """What stays the same over all cases."""

    model: Model
    out: Path
    dicom: bool  # also write DICOM results of DICOM files
    notes: list[str]
    overlays: str = "all"  # one of overlay.OVERLAYS


Scored = Iterator[tuple[ScoreCase, list[Record]]]  # in any order


def score(
    model: Model, inputs: Sequence[Path], out: Path, *, dicom: bool = False, overlays: str = "all",
    engine: Callable[[Run, Sequence[ScoreCase]], Scored] | None = None,
) -> Summary:  # fmt: skip
    """Score everything not yet in ``out/scores.jsonl``; with ``dicom``, DICOM files get DICOM results in ``out/dicom``.

    ``overlays`` of "all" cases, of those "flagged", or of "none". An ``engine`` other than this process may write heat-maps
    anywhere; records are written here alone.
    """
    if overlays not in OVERLAYS:
        raise UserError(f"overlays '{overlays}' is not known; use {', '.join(OVERLAYS[:-1])} or {OVERLAYS[-1]}")
    if dicom:
        _check_dicom(model.bundle)
    cases = find_cases(inputs)
    records = create_output_folder(out) / "scores.jsonl"
    _claim(out, model.bundle)
    known = {name: entry._replace(map=None) if _is_empty(out, entry) else entry for name, entry in read_index(records).items()}
    missing = _missing(cases, known)
    with progress("scoring", len(cases), len(cases) - len(missing)) as advance, RecordFile(records) as file:
        run = Run(model, out, dicom, [], overlays)
        for case, found in (engine or score_cases)(run, missing):
            known[str(case.path)] = file.append(found)  # a case that failed before was tried again
            advance()
    mine = dict.fromkeys(str(case.path) for case in cases)
    others = [name for name in known if name not in mine]  # of earlier runs into this folder; they come first
    tally = sort_records(records, known, [*others, *mine])
    return Summary(len(known), tally.failures, run_warning(tally.differs), run.notes)


def _missing(cases: Sequence[ScoreCase], known: dict[str, Entry]) -> list[ScoreCase]:
    """The cases without a finished record, with names that no earlier result has."""
    places = [entry.map.removeprefix("maps/") for entry in known.values() if entry.map]
    taken = {place.removesuffix(suffix) for place in places for suffix in ("", ".npy", ".nii.gz")}
    left = [case for case in cases if (entry := known.get(str(case.path))) is None or not entry.map]
    return [case._replace(name=free_name(case.name, taken)) for case in left]


def _is_empty(out: Path, entry: Entry) -> bool:
    """What a power cut may leave of a heat-map. One that is missing was removed by somebody who did not need it."""
    path = out / (entry.map or "")
    return path.is_file() and path.stat().st_size == 0


def _check_dicom(bundle: Bundle) -> None:
    """What DICOM results need, before anything is scored."""
    if find_spec("highdicom") is None:
        raise UserError("DICOM results need: pip install 'reshift[dicom]'")
    if bundle.calibration is None:
        raise UserError("DICOM results need a threshold, and the bundle has none; run 'reshift calibrate'")


def _claim(out: Path, bundle: Bundle) -> None:
    """A folder belongs to one model with one calibration: the numbers of two could not be told apart."""
    settings = "".join(part.model_dump_json() for part in (bundle.config, bundle.calibration) if part is not None)
    mine = {"model_sha256": bundle.fingerprint, "settings_sha256": hashlib.sha256(settings.encode()).hexdigest()}
    stamp = out / "scored-by.json"
    try:
        theirs = json.loads(stamp.read_bytes())
    except (FileNotFoundError, ValueError):
        theirs = None
    if (out / "scores.jsonl").exists() and theirs != mine:
        raise UserError(f"{out}: holds scores of another model or calibration; choose another --out, or delete that folder")
    atomic_json(stamp, mine)


def score_cases(run: Run, cases: Sequence[ScoreCase]) -> Scored:
    """Score in this process: images in batches, volumes one at a time."""
    for volumes, group in groupby(cases, key=lambda case: case.volume):
        if volumes:
            yield from ((case, _score_volume(run, case)) for case in group)
        else:
            yield from _score_images(run, list(group))


def _score_volume(run: Run, case: ScoreCase) -> list[Record]:
    try:
        volume = open_input(*case.input)
        assert isinstance(volume, Volume)
        run.notes.extend(getattr(volume, "notes", ()))
        found = score_volume(run.model, volume, case.name, run.out, dicom=run.dicom, overlays=run.overlays)
        return [new_record(case.path, **values) for values in found]
    except UserError as err:
        return [failed_record(case.path, str(err))]


def _score_images(run: Run, cases: Sequence[ScoreCase]) -> Scored:
    """Read ahead and write behind. On a CPU an image is recorded before the next is predicted, so that a kill loses less."""
    model = run.model
    writing: deque[Written] = deque()

    def finish(left: int) -> Scored:
        """Wait for the oldest until only ``left`` images are being written."""
        while sum(len(some) for some, _ in writing) > left:
            some, future = writing.popleft()
            records: list[Record] = future.result()
            yield from ((case, [record]) for case, record in zip(some, records, strict=True))

    task = Task(model.bundle.config.data, run.out, model.bundle.calibration, run.dicom, run.overlays)
    with ImagePool(task, model.batch, len(cases)) as pool:
        try:
            for batch in predict_batches(model, pool.read(cases)):
                writing.extend(pool.write([sample for sample in batch if sample.error is None]))
                failed = [sample for sample in batch if sample.error is not None]
                yield from finish(0 if model.batch == 1 or failed else pool.max_pending)
                yield from ((sample.case, _score_failed(run, sample)) for sample in failed)
        except (Exception, KeyboardInterrupt):  # what is written is recorded, whatever comes after it
            yield from finish(0)
            raise
        yield from finish(0)


def _score_failed(run: Run, sample: Sample[ScoreCase]) -> list[Record]:
    """A file that cannot be read, or a DICOM file that is a volume: it is opened again, since a batch of them may not fit."""
    if isinstance(sample.error, IsVolumeError):
        return _score_volume(run, sample.case)
    return [failed_record(sample.case.path, str(sample.error))]
