"""``reshift score``: files and folders in, one record per image out. A bad case is recorded; a re-run continues."""

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from reshift.data.manifest import load_cases
from reshift.data.nifti import SUFFIXES as NIFTI
from reshift.data.read import Scan, is_volume, list_scans, open_scan
from reshift.data.volume import Volume
from reshift.errors import UserError, reason
from reshift.inference.acquisition import run_warning
from reshift.inference.bundle import Bundle
from reshift.inference.model import Model
from reshift.inference.overlay import OVERLAYS
from reshift.inference.records import Entry, Ledger, Record, read_index, settle
from reshift.inference.score_hands import Written, hands
from reshift.inference.score_helper import Outcome, Picture
from reshift.inference.score_look import looked
from reshift.inference.score_picture import Task, failed, record
from reshift.inference.volumes import score_volume
from reshift.system.files import atomic_json, writable_folder
from reshift.system.progress import progress


class Job(NamedTuple):
    """One file or DICOM series to score; ``stem`` is where its map and overlay go, unique within the run."""

    scan: Scan
    stem: str

    @property
    def path(self) -> Path:
        """What it is reported under."""
        return self.scan.path

    @property
    def volume(self) -> bool:
        """Whether it is surely looked at slice by slice; a DICOM file may turn out to be."""
        return self.scan.series is not None or is_volume(self.path)


def find_jobs(inputs: Sequence[Path]) -> list[Job]:
    """Expand files, folders and manifests. Two files of one name in different folders get different stems."""
    jobs: list[Job] = []
    seen, taken, homes = set[str](), set[str](), dict[str, str]()
    for given in inputs:
        full = given.resolve()  # "." and ".." have no name of their own
        for scan, stem in _expand(given, full.stem if full.is_file() else full.name):
            real = _real(scan.path, homes)
            if real not in seen:  # a file named twice is scored once
                seen.add(real)
                jobs.append(Job(scan, _free(_packed(stem) if Job(scan, stem).volume else stem, taken)))
    return jobs


def _real(path: Path, homes: dict[str, str]) -> str:
    """``realpath`` at the price of one look at the file: those of a million files share a few thousand folders."""
    home, name = os.path.split(path)
    if name in ("", ".", "..") or path.is_symlink():
        return os.path.realpath(path)
    if home not in homes:
        homes[home] = os.path.realpath(home)
    return f"{homes[home]}/{name}"


def _packed(stem: str) -> str:
    """The map of a volume is a .nii.gz, whatever the volume was."""
    known = next((suffix for suffix in NIFTI if stem.lower().endswith(suffix)), "")
    return f"{stem[: len(stem) - len(known)]}.nii.gz"


def _expand(given: Path, root: str) -> list[tuple[Scan, str]]:
    listed = any((given / name).is_file() for name in ("manifest.csv", "data.json"))
    if listed or given.suffix.lower() in (".csv", ".json"):
        cases = load_cases(given)
        chosen = [case for case in cases if case.split == "test"] or cases
        return [(Scan(case.image), _inside(f"{root}/{case.name}")) for case in chosen]
    if given.is_dir():
        found = list_scans(given)
        if not found:
            raise UserError(f"{given}: no PNG, JPEG, TIFF, NIfTI or DICOM images in this folder")
        return [(scan, _inside(f"{root}/{scan.path.relative_to(given).as_posix()}")) for scan in found]
    if not given.exists():
        raise UserError(f"{given}: no such file or folder")
    return [(Scan(given), f"{root}{given.suffix}")]


def _inside(stem: str) -> str:
    """A manifest may point above itself; its maps must not land above the output folder."""
    return "/".join("up" if part == ".." else part for part in stem.split("/") if part not in ("", "."))


def _free(stem: str, taken: set[str]) -> str:
    """Return ``stem``, or the first of ``a~2.png``, ``a~3.png``, … that is not taken, and take it."""
    path, count, free = PurePosixPath(stem), 1, stem
    suffix = ".nii.gz" if stem.endswith(".nii.gz") else path.suffix
    while free in taken:
        count += 1
        free = path.with_name(f"{path.name.removesuffix(suffix)}~{count}{suffix}").as_posix()
    taken.add(free)
    return free


class Summary(NamedTuple):
    """What the whole of ``scores.jsonl`` says."""

    cases: int
    failures: int
    warning: str | None  # when the images are of another kind than the training images
    notes: list[str]  # what is odd about a volume that was scored nevertheless


class Run(NamedTuple):
    """What stays the same over all jobs."""

    model: Model
    out: Path
    dicom: bool  # also write DICOM results of DICOM scans
    notes: list[str]
    overlays: str = "all"  # one of picture.OVERLAYS


Found = Iterator[tuple[Job, list[Record]]]  # in any order


def score(
    model: Model, inputs: Sequence[Path], out: Path, *, dicom: bool = False, overlays: str = "all",
    engine: Callable[[Run, Sequence[Job]], Found] | None = None,
) -> Summary:  # fmt: skip
    """Score everything not yet in ``out/scores.jsonl``; with ``dicom``, DICOM scans get DICOM results in ``out/dicom``.

    ``overlays`` of "all" cases, of those "flagged", or of "none".

    An ``engine`` other than this process may write maps anywhere; records are written here alone.
    """
    if overlays not in OVERLAYS:
        raise UserError(f"overlays '{overlays}' is not known; use {', '.join(OVERLAYS[:-1])} or {OVERLAYS[-1]}")
    if dicom:
        _check_dicom(model.bundle)
    jobs = find_jobs(inputs)
    records = writable_folder(out) / "scores.jsonl"
    _claim(out, model.bundle)
    known = {name: entry._replace(map=None) if _empty(out, entry) else entry for name, entry in read_index(records).items()}
    places = [entry.map.removeprefix("maps/") for entry in known.values() if entry.map]
    taken = {place.removesuffix(suffix) for place in places for suffix in ("", ".npy", ".nii.gz")}
    left = [job for job in jobs if (entry := known.get(str(job.path))) is None or not entry.map]
    todo = [Job(job.scan, _free(job.stem, taken)) for job in left]
    with progress("scoring", len(jobs), len(jobs) - len(todo)) as advance, Ledger(records) as ledger:
        run = Run(model, out, dicom, [], overlays)
        for job, found in (engine or score_jobs)(run, todo):
            known[str(job.path)] = ledger.append(found)  # what failed was tried again
            advance()
    mine = dict.fromkeys(str(job.path) for job in jobs)
    others = [name for name in known if name not in mine]  # of earlier runs into this folder; they come first
    tally = settle(records, known, [*others, *mine])
    return Summary(len(known), tally.failures, run_warning(tally.differs), run.notes)


def _empty(out: Path, entry: Entry) -> bool:
    """What a power cut may leave of a map. One that is missing was removed by somebody who did not need it."""
    path = out / (entry.map or "")
    return path.is_file() and path.stat().st_size == 0


def _check_dicom(bundle: Bundle) -> None:
    """What DICOM results need, before anything is scored."""
    if find_spec("highdicom") is None:
        raise UserError("DICOM results need: pip install 'reshift[dicom]'")
    if bundle.calibration is None:
        raise UserError("DICOM results need a threshold, and the bundle has none; run 'reshift calibrate'")


def _claim(out: Path, bundle: Bundle) -> None:
    """A folder belongs to one model with one calibration: numbers of two would look alike and could not be told apart."""
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


def score_jobs(run: Run, jobs: Sequence[Job]) -> Found:
    """Score in this process: pictures in batches, read ahead; volumes one at a time."""
    for volumes, alike in groupby(jobs, key=lambda job: job.volume):
        if volumes:
            yield from ((job, _volume(run, job)) for job in alike)
        else:
            yield from _pictures(run, list(alike))


def _volume(run: Run, job: Job) -> list[Record]:
    try:
        scan = open_scan(*job.scan)
        assert isinstance(scan, Volume)
        run.notes.extend(getattr(scan, "notes", ()))
        found = score_volume(run.model, scan, job.stem, run.out, dicom=run.dicom, overlays=run.overlays)
        return [record(job.path, **values) for values in found]
    except UserError as err:
        return [failed(job.path, str(err))]


def _pictures(run: Run, jobs: Sequence[Job]) -> Found:
    """Read ahead, and write behind: on a GPU, some batches' maps and overlays are packed while the next is computed.

    On the CPU a picture is recorded before the next is begun: its cores have nothing to spare, and a kill loses less.
    """
    model = run.model
    writing: deque[Written] = deque()
    by_stem = {job.stem: job for job in jobs}

    def written(left: int) -> Found:
        return _written_until(left, writing, by_stem)

    task = Task(model.bundle.config.data, run.out, model.bundle.calibration, run.dicom, run.overlays)
    with hands(task, model.batch, len(jobs)) as team:
        try:
            for odd, seen in looked(model, team.read([Picture(job.path, job.stem) for job in jobs])):
                if odd:
                    yield from written(0)  # what came earlier is recorded earlier
                    yield from _odd(run, [(by_stem[picture.stem], found) for picture, found in odd])
                writing.extend(team.write(seen))
                yield from written(0 if model.batch == 1 else team.deep * model.batch)
        except (Exception, KeyboardInterrupt):  # what is written is recorded, whatever comes after it
            yield from written(0)
            raise
        yield from written(0)


def _written_until(left: int, writing: deque[Written], by_stem: Mapping[str, Job]) -> Found:
    """Wait for the oldest until only ``left`` pictures are under way."""
    while sum(len(pictures) for pictures, _ in writing) > left:
        pictures, records = writing.popleft()
        for picture, line in zip(pictures, records.result(), strict=True):
            yield by_stem[picture.stem], [line]


def _odd(run: Run, batch: Sequence[tuple[Job, Outcome]]) -> Found:
    """Files that cannot be read, and DICOM files that turn out to be volumes."""
    for job, found in batch:
        if isinstance(found, Exception):
            yield job, [failed(job.path, reason(found))]
    for job in (job for job, found in batch if found is None):
        yield job, _volume(run, job)  # opened again: a batch of volumes would not fit into memory
