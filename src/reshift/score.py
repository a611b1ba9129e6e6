"""``reshift score``: files and folders in, one record per image out. A bad case is recorded; a re-run continues."""

import hashlib
import io
import json
import math
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from reshift.acquisition import run_warning
from reshift.bundle import Bundle
from reshift.data.dicom import is_dicom
from reshift.data.image import Image
from reshift.data.manifest import load_cases
from reshift.data.nifti import SUFFIXES as NIFTI
from reshift.data.prepare import Prepared
from reshift.data.read import Scan, is_volume, list_scans, open_scan
from reshift.data.source import ahead
from reshift.data.volume import Volume
from reshift.errors import UserError, reason
from reshift.picture import overlay
from reshift.predict import Model, Result, grouped
from reshift.progress import progress
from reshift.score_volume import export, score_volume
from reshift.write import append_json, atomic_bytes, atomic_json, atomic_text, naming, writable_folder

FIELDS = (
    "input",
    "slice",
    "score",
    "p_value",
    "flag",
    "map",
    "seconds",
    "error",
    "shift",
    "unlike",
    "shift_features",
    "differs",
)  # of every line of scores.jsonl
READ_AHEAD = 8  # images beyond the batch at hand; a scan may take hundreds of megabytes


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


class Loaded(NamedTuple):
    """A picture and its network input."""

    image: Image
    prepared: Prepared


def find_jobs(inputs: Sequence[Path]) -> list[Job]:
    """Expand files, folders and manifests. Two files of one name in different folders get different stems."""
    jobs: dict[Path, Job] = {}
    taken: set[str] = set()
    for given in inputs:
        full = given.resolve()  # "." and ".." have no name of their own
        for scan, stem in _expand(given, full.stem if full.is_file() else full.name):
            if scan.path.resolve() not in jobs:  # a file named twice is scored once
                job = Job(scan, stem)
                jobs[scan.path.resolve()] = Job(scan, _free(_packed(stem) if job.volume else stem, taken))
    return list(jobs.values())


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


class _Run(NamedTuple):
    """What stays the same over all jobs."""

    model: Model
    out: Path
    dicom: bool  # also write DICOM results of DICOM scans
    notes: list[str]


def score(model: Model, inputs: Sequence[Path], out: Path, *, dicom: bool = False) -> Summary:
    """Score everything not yet in ``out/scores.jsonl``; with ``dicom``, DICOM scans get DICOM results in ``out/dicom``."""
    if dicom:
        _check_dicom(model.bundle)
    jobs = find_jobs(inputs)
    records = writable_folder(out) / "scores.jsonl"
    _claim(out, model.bundle)
    known = _known(records)
    whole = {name: records[None] for name, records in known.items() if None in records}  # a volume's own record comes last
    done = {name: record["map"] for name, record in whole.items() if record["error"] is None and record["map"]}
    places = [place.removeprefix("maps/") for place in done.values()]
    taken = {place.removesuffix(suffix) for place in places for suffix in ("", ".npy", ".nii.gz")}
    todo = [Job(job.scan, _free(job.stem, taken)) for job in jobs if str(job.path) not in done]
    with progress("scoring", len(jobs), len(jobs) - len(todo)) as advance:
        run = _Run(model, out, dicom, [])
        for job, found in _records(run, todo):
            known[str(job.path)] = {record["slice"]: record for record in found}  # what failed was tried again
            for record in found:
                append_json(records, record)
            advance()
    mine = [str(job.path) for job in jobs]
    others = known.keys() - set(mine)  # of earlier runs into this folder; they come first, in their old order
    ordered = [name for name in known if name in others] + mine
    _rewrite(records, [record for name in ordered for record in known[name].values()])
    every = [record for name in ordered for record in known[name].values()]
    warning = run_warning([record["differs"] for record in every if record["differs"] is not None])
    return Summary(len(known), sum(record["error"] is not None for record in every), warning, run.notes)


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


def _known(records: Path) -> dict[str, dict[int | None, dict[str, Any]]]:
    """The records of earlier runs, by input and slice. A line cut short by a kill is dropped: from here, and from the file."""
    known: dict[str, dict[int | None, dict[str, Any]]] = {}
    for line in records.read_bytes().splitlines() if records.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and tuple(record) == FIELDS:
            known.setdefault(record["input"], {})[record["slice"]] = record
    if records.exists():
        _rewrite(records, [record for found in known.values() for record in found.values()])
    return known


def _rewrite(records: Path, content: Sequence[dict[str, Any]]) -> None:
    atomic_text(records, "".join(json.dumps(record) + "\n" for record in content))


def _records(run: _Run, jobs: Sequence[Job]) -> Iterator[tuple[Job, list[dict[str, Any]]]]:
    """Pictures in batches, read ahead; volumes one at a time."""
    for volumes, alike in groupby(jobs, key=lambda job: job.volume):
        if volumes:
            yield from ((job, _volume(run, job)) for job in alike)
        else:
            yield from _pictures(run, list(alike))


def _volume(run: _Run, job: Job) -> list[dict[str, Any]]:
    try:
        scan = open_scan(*job.scan)
        assert isinstance(scan, Volume)
        run.notes.extend(getattr(scan, "notes", ()))
        return [_record(job, **values) for values in score_volume(run.model, scan, job.stem, run.out, dicom=run.dicom)]
    except UserError as err:
        return [_record(job, error=str(err))]


def _pictures(run: _Run, jobs: Sequence[Job]) -> Iterator[tuple[Job, list[dict[str, Any]]]]:
    model = run.model

    def load(job: Job) -> Loaded | None:
        image = open_scan(job.path)
        return None if isinstance(image, Volume) else Loaded(image, model.prepare(image))

    for group in grouped(ahead(load, jobs, model.batch + READ_AHEAD), model.batch):
        found = [(job, future.result()) for job, future in group if future.exception() is None]
        good = [(job, loaded) for job, loaded in found if loaded is not None]
        for job, future in group:
            if (err := future.exception()) is not None:
                yield job, [_record(job, error=reason(err))]
        for job in (job for job, loaded in found if loaded is None):
            yield job, _volume(run, job)  # opened again: a batch of volumes would not fit into memory
        if not good:
            continue
        begun = time.monotonic()
        results = model.results([loaded.prepared for _, loaded in good])
        seconds = (time.monotonic() - begun) / len(good)
        for (job, loaded), result in zip(good, results, strict=True):
            if math.isfinite(result.score):
                yield job, [_written(run, job, loaded, result, seconds)]
            else:
                yield (
                    job,
                    [_record(job, error=f"{job.path}: the model's score is {result.score}; its training may have diverged")],
                )


def _record(job: Job, **values: Any) -> dict[str, Any]:
    return {**dict.fromkeys(FIELDS), "input": str(job.path), **values}


def _written(run: _Run, job: Job, loaded: Loaded, result: Result, seconds: float) -> dict[str, Any]:
    """Write the map and the overlay, and only then say so in a record."""
    out, calibration = run.out, run.model.bundle.calibration
    buffer = io.BytesIO()
    np.save(buffer, result.heatmap)
    place = f"maps/{job.stem}.npy"
    _write(out / place, buffer)
    if calibration is not None:
        _write(out / "overlays" / f"{job.stem}.png", _overlay(loaded, result, calibration.heat_scale))
    error = None
    if calibration is not None and run.dicom and is_dicom(job.path):
        error = export(out / "dicom" / job.stem, loaded.image, result.heatmap, calibration)
    numbers = {"score": result.score, "p_value": result.p_value, "flag": result.flag}
    judged = {name: getattr(result, name) for name in ("shift", "unlike", "shift_features", "differs")}
    return _record(job, **numbers, map=place, seconds=round(seconds, 4), error=error, **judged)


def _overlay(loaded: Loaded, result: Result, scale: float) -> io.BytesIO:
    import PIL.Image

    buffer = io.BytesIO()
    PIL.Image.fromarray(overlay(loaded.image.pixels, result.heatmap, scale, loaded.image.window)).save(buffer, "png")
    return buffer


def _write(target: Path, content: io.BytesIO) -> None:
    with naming(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    atomic_bytes(target, content.getvalue())
