"""``reshift score``: files and folders in, one record per image out. A bad case is recorded; a re-run continues."""

import hashlib
import io
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from reshift.acquisition import run_warning
from reshift.bundle import Bundle
from reshift.data.image import Image
from reshift.data.manifest import load_cases
from reshift.data.prepare import Prepared
from reshift.data.read import list_images, read_image
from reshift.data.source import ahead
from reshift.errors import UserError, reason
from reshift.picture import overlay
from reshift.predict import Model, Result, grouped
from reshift.progress import progress
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
    """One file to score; ``stem`` is where its map and overlay go, unique within the run."""

    path: Path
    stem: str


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
        for path, stem in _expand(given, full.stem if full.is_file() else full.name):
            if path.resolve() not in jobs:  # a file named twice is scored once
                jobs[path.resolve()] = Job(path, _free(stem, taken))
    return list(jobs.values())


def _expand(given: Path, root: str) -> list[tuple[Path, str]]:
    listed = any((given / name).is_file() for name in ("manifest.csv", "data.json"))
    if listed or given.suffix.lower() in (".csv", ".json"):
        cases = load_cases(given)
        chosen = [case for case in cases if case.split == "test"] or cases
        return [(case.image, _inside(f"{root}/{case.name}")) for case in chosen]
    if given.is_dir():
        found = list_images(given)
        if not found:
            raise UserError(f"{given}: no PNG, JPEG or TIFF images in this folder")
        return [(path, f"{root}/{path.relative_to(given).as_posix()}") for path in found]
    if not given.exists():
        raise UserError(f"{given}: no such file or folder")
    return [(given, f"{root}{given.suffix}")]


def _inside(stem: str) -> str:
    """A manifest may point above itself; its maps must not land above the output folder."""
    return "/".join("up" if part == ".." else part for part in stem.split("/") if part not in ("", "."))


def _free(stem: str, taken: set[str]) -> str:
    """Return ``stem``, or the first of ``a~2.png``, ``a~3.png``, … that is not taken, and take it."""
    path, count, free = PurePosixPath(stem), 1, stem
    while free in taken:
        count += 1
        free = path.with_name(f"{path.stem}~{count}{path.suffix}").as_posix()
    taken.add(free)
    return free


class Summary(NamedTuple):
    """What the whole of ``scores.jsonl`` says."""

    cases: int
    failures: int
    warning: str | None  # when the images are of another kind than the training images


def score(model: Model, inputs: Sequence[Path], out: Path) -> Summary:
    """Score everything not yet in ``out/scores.jsonl``."""
    jobs = find_jobs(inputs)
    records = writable_folder(out) / "scores.jsonl"
    _claim(out, model.bundle)
    known = _known(records)
    done = {name for name, record in known.items() if record["error"] is None and record["map"]}  # what failed is tried again
    taken = {known[name]["map"].removeprefix("maps/").removesuffix(".npy") for name in done}
    todo = [Job(job.path, _free(job.stem, taken)) for job in jobs if str(job.path) not in done]
    with progress("scoring", len(jobs), len(jobs) - len(todo)) as advance:
        for record in _records(model, todo, out):
            append_json(records, record)
            known[record["input"]] = record
            advance()
    mine = [str(job.path) for job in jobs]
    others = known.keys() - set(mine)  # of earlier runs into this folder; they come first, in their old order
    _rewrite(records, [record for name, record in known.items() if name in others] + [known[name] for name in mine])
    warning = run_warning([record["differs"] for record in known.values() if record["differs"] is not None])
    return Summary(len(known), sum(record["error"] is not None for record in known.values()), warning)


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


def _known(records: Path) -> dict[str, dict[str, Any]]:
    """The records of earlier runs, by input. A line cut short by a kill is dropped: from here, and from the file."""
    known: dict[str, dict[str, Any]] = {}
    for line in records.read_bytes().splitlines() if records.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and tuple(record) == FIELDS:
            known[record["input"]] = record
    if records.exists():
        _rewrite(records, list(known.values()))
    return known


def _rewrite(records: Path, content: Sequence[dict[str, Any]]) -> None:
    atomic_text(records, "".join(json.dumps(record) + "\n" for record in content))


def _records(model: Model, jobs: Sequence[Job], out: Path) -> Iterator[dict[str, Any]]:
    def load(job: Job) -> Loaded:
        image = read_image(job.path)
        return Loaded(image, model.prepare(image))

    for group in grouped(ahead(load, jobs, model.batch + READ_AHEAD), model.batch):
        good = [(job, future.result()) for job, future in group if future.exception() is None]
        for job, future in group:
            if (err := future.exception()) is not None:
                yield _record(job, error=reason(err))
        if not good:
            continue
        begun = time.monotonic()
        results = model.results([loaded.prepared for _, loaded in good])
        seconds = (time.monotonic() - begun) / len(good)
        for (job, loaded), result in zip(good, results, strict=True):
            if math.isfinite(result.score):
                yield _written(model, job, loaded, result, seconds, out)
            else:
                yield _record(job, error=f"{job.path}: the model's score is {result.score}; its training may have diverged")


def _record(job: Job, **values: Any) -> dict[str, Any]:
    return {**dict.fromkeys(FIELDS), "input": str(job.path), **values}


def _written(model: Model, job: Job, loaded: Loaded, result: Result, seconds: float, out: Path) -> dict[str, Any]:
    """Write the map and the overlay, and only then say so in a record."""
    buffer = io.BytesIO()
    np.save(buffer, result.heatmap)
    place = f"maps/{job.stem}.npy"
    _write(out / place, buffer)
    if model.bundle.calibration is not None:
        _write(out / "overlays" / f"{job.stem}.png", _overlay(loaded, result, model.bundle.calibration.heat_scale))
    numbers = {"score": result.score, "p_value": result.p_value, "flag": result.flag}
    judged = {name: getattr(result, name) for name in ("shift", "unlike", "shift_features", "differs")}
    return _record(job, **numbers, map=place, seconds=round(seconds, 4), **judged)


def _overlay(loaded: Loaded, result: Result, scale: float) -> io.BytesIO:
    import PIL.Image

    buffer = io.BytesIO()
    PIL.Image.fromarray(overlay(loaded.image.pixels, result.heatmap, scale)).save(buffer, "png")
    return buffer


def _write(target: Path, content: io.BytesIO) -> None:
    with naming(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    atomic_bytes(target, content.getvalue())
