"""``reshift score``: files and folders in, one record per image out. A bad case is recorded; a re-run continues."""

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
from reshift.inference.claim import claim, earlier_runtime, note_runtime
from reshift.inference.findings.files import write_findings
from reshift.inference.images import ImagePool, IsVolumeError, Task, Written
from reshift.inference.inputs import ScoreCase, file_content, find_cases, free_name, read_content, result_stem
from reshift.inference.model import Model
from reshift.inference.outputs import DEFAULTS, Outputs
from reshift.inference.overlay import OVERLAYS
from reshift.inference.records import (
    Entry,
    Record,
    RecordFile,
    failed_record,
    new_record,
    read_index,
    read_sha256,
    sort_records,
)
from reshift.inference.stream import predict_batches
from reshift.inference.volumes import score_volume
from reshift.system.files import remove_temporary_files, writing
from reshift.system.lock import output_folder
from reshift.system.progress import progress
from reshift.system.workers import WorkerPool, as_ready

MAX_SLOW_VOLUMES = 1  # that may take long to read while others are scored; each is in memory


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
    outputs: Outputs = DEFAULTS


Scored = Iterator[tuple[ScoreCase, list[Record]]]  # in any order
Engine = Callable[[Run, Sequence[ScoreCase]], Scored]
Choose = Callable[[Model, str | None, Sequence[ScoreCase]], Model]  # model, runtime of earlier records, what is left to score


def score(
    model: Model, inputs: Sequence[Path], out: Path, *, dicom: bool = False, overlays: str = "all",
    outputs: Outputs = DEFAULTS, engine: Engine | None = None, choose: Choose | None = None,
) -> Summary:  # fmt: skip
    """Score everything not yet in ``out/scores.jsonl``; with ``dicom``, DICOM files get DICOM results in ``out/dicom``.

    ``overlays`` of "all" cases, of those "flagged", or of "none"; with ``labels`` they tell score and p-value. An ``engine``
    other than this process may write heat-maps anywhere; records are written here alone. ``choose`` may replace the model by the
    same one on another runtime, once it is known how much there is to score.
    """
    if overlays not in OVERLAYS:
        raise UserError(f"overlays '{overlays}' is not known; use {', '.join(OVERLAYS[:-1])} or {OVERLAYS[-1]}")
    if dicom:
        _check_dicom(model.bundle, outputs)
    notes: list[str] = []
    cases = find_cases(inputs, notes, out)
    with output_folder(out):
        with writing(out):
            remove_temporary_files(out)
        outputs = outputs._replace(model=claim(out, model.bundle, outputs))
        return _score_missing(Run(model, out, dicom, notes, overlays, outputs), cases, engine or score_cases, choose)


def _score_missing(run: Run, cases: Sequence[ScoreCase], engine: Engine, choose: Choose | None) -> Summary:
    """Score the cases that have no record, and bring the records into order."""
    records = run.out / "scores.jsonl"
    known = _known(run, records, cases)
    missing = _missing(cases, known)
    if missing:
        run = _with_runtime(run, missing, choose, again=bool(known))
    with progress("scoring", len(cases), len(cases) - len(missing)) as advance, RecordFile(records) as file:
        for case, found in engine(run, missing):
            known[case.source] = file.append(found)  # a case that failed before was tried again
            advance()
    mine = dict.fromkeys(case.source for case in cases)
    others = [name for name in known if name not in mine]  # of earlier runs into this folder; they come first
    tally = sort_records(records, known, [*others, *mine])
    if run.model.bundle.calibration is not None:
        write_findings(run.out, run.model.bundle.calibration.reference.pixel_threshold, run.outputs.min_diameter)
    return Summary(len(known), tally.failures, run_warning(tally.differs), run.notes)


def _with_runtime(run: Run, missing: Sequence[ScoreCase], choose: Choose | None, *, again: bool) -> Run:
    """Choose what runs the model, and say so where a folder gets records of two runtimes."""
    earlier = earlier_runtime(run.out, run.model.runtime) if again else None
    run = run if choose is None else run._replace(model=choose(run.model, earlier, missing))
    if earlier is None:
        note_runtime(run.out, run.model.runtime)
    elif earlier != run.model.runtime:
        differ = "equal images may differ in their last digits"
        run.notes.append(f"{run.out}: earlier scores are by {earlier}, new ones by {run.model.runtime}; {differ}")
    return run


def _known(run: Run, records: Path, cases: Sequence[ScoreCase]) -> dict[str, Entry]:
    """The records of earlier runs. Those of files that have changed since are removed, with their results."""
    known = _read_index(run.out, records)
    changed = [case.source for case in cases if _has_changed(case, known.get(case.source), records)]
    if not changed:
        return known
    run.notes.append(f"{changed[0]}: has changed since it was scored, or an earlier version scored it; scored again")
    if len(changed) > 1:
        run.notes[-1] += f" (and {len(changed) - 1} more)"
    for name in changed:
        _remove_results(run.out, known.pop(name).map or "")
    sort_records(records, known, known)
    return _read_index(run.out, records)


def _read_index(out: Path, records: Path) -> dict[str, Entry]:
    index = read_index(records)
    return {name: entry._replace(map=None) if _is_empty(out, entry) else entry for name, entry in index.items()}


def _has_changed(case: ScoreCase, entry: Entry | None, records: Path) -> bool:
    """Whether a finished input is not the one that was scored: by size, time of change and, if only the time differs, hash."""
    if entry is None or not entry.map:
        return False
    if entry.content is None:
        return True
    try:
        now = file_content(case.files)
        if (now.size, now.modified) == entry.content:
            return False
        return now.size != entry.content[0] or read_content(case.files).sha256 != read_sha256(records, entry)
    except (OSError, UserError):  # it cannot be read now; its score is kept
        return False


def _remove_results(out: Path, heatmap: str) -> None:
    """Remove what an input has in the folders of results: the new run may not write all of it again."""
    name = heatmap.removeprefix("maps/").removesuffix(".npy")
    shown = [out / "overlays" / f"{stem}.png" for stem in (result_stem(name), name)]  # the latter as earlier versions named it
    with writing(out / heatmap):
        exported = (out / "dicom" / name.removesuffix(".nii.gz")).glob("*.dcm")
        pictures = [*shown, *(out / "previews" / path.name for path in shown)]
        for path in (out / heatmap, *pictures, *(path for path in exported if path.is_file())):
            path.unlink(missing_ok=True)


def _missing(cases: Sequence[ScoreCase], known: dict[str, Entry]) -> list[ScoreCase]:
    """The cases without a finished record, with names that no earlier result has."""
    taken = {result_stem(entry.map.removeprefix("maps/")) for entry in known.values() if entry.map}
    left = [case for case in cases if (entry := known.get(case.source)) is None or not entry.map]
    return [case._replace(name=free_name(case.name, taken)) for case in left]


def _is_empty(out: Path, entry: Entry) -> bool:
    """What a power cut may leave of a heat-map. One that is missing was removed by somebody who did not need it."""
    path = out / (entry.map or "")
    return path.is_file() and path.stat().st_size == 0


def _check_dicom(bundle: Bundle, outputs: Outputs) -> None:
    """What DICOM results need, before anything is scored."""
    if find_spec("highdicom") is None:
        raise UserError("DICOM results need: pip install 'reshift[dicom]'")
    if bundle.calibration is None:
        raise UserError("DICOM results need a threshold, and the bundle has none; run 'reshift calibrate'")
    outputs.dicom_setup(bundle.calibration)  # opens the key file of an anonymised export


def score_cases(run: Run, cases: Sequence[ScoreCase]) -> Scored:
    """Score in this process: images in batches, volumes one at a time."""
    for volumes, group in groupby(cases, key=lambda case: case.volume):
        yield from (_score_volumes if volumes else _score_images)(run, list(group))


def _score_volumes(run: Run, cases: Sequence[ScoreCase]) -> Scored:
    """One at a time; while one takes long to read, the next are scored."""
    with WorkerPool(threads=1 + MAX_SLOW_VOLUMES) as pool:
        opened = as_ready((pool.submit(0, _open_volume, case) for case in cases), lambda: 0, MAX_SLOW_VOLUMES)
        yield from ((case, _score_volume(run, case, volume)) for case, volume in opened)


def _open_volume(case: ScoreCase) -> tuple[ScoreCase, Volume | UserError]:
    case = case.with_content()
    try:
        volume = open_input(*case.input)
        assert isinstance(volume, Volume)
        return case, volume
    except UserError as err:
        return case, err


def _score_volume(run: Run, case: ScoreCase, volume: Volume | UserError) -> list[Record]:
    try:
        if isinstance(volume, UserError):
            raise volume
        run.notes.extend(getattr(volume, "notes", ()))
        found = score_volume(run.model, volume, case.name, run.out, dicom=run.dicom, overlays=run.overlays, outputs=run.outputs)
        return [new_record(case, **values) for values in found]
    except UserError as err:
        return [failed_record(case, str(err))]


def _score_images(run: Run, cases: Sequence[ScoreCase]) -> Scored:
    """Read ahead and write behind. On a CPU an image is recorded before the next is predicted, so that a kill loses less."""
    model = run.model
    writing: deque[Written] = deque()
    volumes: list[ScoreCase] = []  # DICOM files that turned out to be some; opened again, since a batch of them may not fit

    def finish(left: int) -> Scored:
        """Wait for the oldest until only ``left`` images are being written."""
        while sum(len(some) for some, _ in writing) > left:
            some, future = writing.popleft()
            records: list[Record] = future.result()
            yield from ((case, [record]) for case, record in zip(some, records, strict=True))

    task = Task(model.bundle.config.data, run.out, model.bundle.calibration, run.dicom, run.overlays, run.outputs)
    with ImagePool(task, model.batch, len(cases)) as pool:
        try:
            for batch in predict_batches(model, pool.read(cases)):
                writing.extend(pool.write([sample for sample in batch if sample.error is None]))
                failed = [sample for sample in batch if sample.error is not None]
                yield from finish(0 if model.batch == 1 or failed else pool.max_pending)
                volumes += [sample.case for sample in failed if isinstance(sample.error, IsVolumeError)]
                others = [sample for sample in failed if not isinstance(sample.error, IsVolumeError)]
                yield from ((sample.case, [failed_record(sample.case, str(sample.error))]) for sample in others)
        except (Exception, KeyboardInterrupt):  # what is written is recorded, whatever comes after it
            yield from finish(0)
            raise
        yield from finish(0)
    yield from _score_volumes(run, volumes)
