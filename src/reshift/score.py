"""``reshift score``: files and folders in, one record per image out. A bad case is recorded; a re-run continues."""

import io
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reshift.data.image import Image
from reshift.data.manifest import load_cases
from reshift.data.prepare import Prepared
from reshift.data.read import list_images, read_image
from reshift.data.source import ahead
from reshift.errors import UserError
from reshift.picture import overlay
from reshift.predict import Model, Result, grouped
from reshift.progress import progress
from reshift.write import atomic_bytes, atomic_json, atomic_text, writable_folder


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
    roots: dict[str, int] = {}
    for given in inputs:
        count = roots[given.name] = roots.get(given.name, 0) + 1
        root = f"{given.stem if given.is_file() else given.name}{f'~{count}' if count > 1 else ''}"
        for path, stem in _expand(given, root):
            jobs.setdefault(path.resolve(), Job(path, stem))  # a file named twice is scored once
    return list(jobs.values())


def _expand(given: Path, root: str) -> list[tuple[Path, str]]:
    if given.suffix in (".csv", ".json") or (given / "manifest.csv").is_file():
        cases = load_cases(given)
        chosen = [case for case in cases if case.split == "test"] or cases
        return [(case.image, f"{root}/{case.name}") for case in chosen]
    if given.is_dir():
        found = list_images(given)
        if not found:
            raise UserError(f"{given}: no PNG, JPEG or TIFF images in this folder")
        return [(path, f"{root}/{path.relative_to(given).as_posix()}") for path in found]
    if not given.exists():
        raise UserError(f"{given}: no such file or folder")
    return [(given, f"{root}{given.suffix}")]


def score(model: Model, inputs: Sequence[Path], out: Path) -> tuple[int, int]:
    """Score everything not yet in ``out/scores.jsonl``; return (cases, failures) of the whole file."""
    jobs = find_jobs(inputs)
    writable_folder(out)
    done = _resume(out, model.bundle.fingerprint)
    todo = [job for job in jobs if str(job.path) not in done]
    with progress("scoring", len(jobs), len(jobs) - len(todo)) as advance, (out / "scores.jsonl").open("a") as records:
        for record in _records(model, todo, out):
            try:
                records.write(json.dumps(record, allow_nan=False) + "\n")
                records.flush()
            except OSError as err:
                raise UserError(f"{out}: could not be written ({err.strerror}); make room and run it again") from err
            done[record["input"]] = record
            advance()
    return len(done), sum(record["error"] is not None for record in done.values())


def _resume(out: Path, fingerprint: str) -> dict[str, dict[str, Any]]:
    """What an earlier run finished. Its failures are tried again, and a line cut short by a kill is dropped."""
    stamp, records = out / "run.json", out / "scores.jsonl"
    if records.exists():
        before = json.loads(stamp.read_text()).get("bundle") if stamp.exists() else None
        if before != fingerprint:
            raise UserError(f"{out}: holds scores of another model; choose another --out, or delete that folder")
    atomic_json(stamp, {"bundle": fingerprint})
    done: dict[str, dict[str, Any]] = {}
    for line in records.read_text().splitlines() if records.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record["error"] is None:
            done[record["input"]] = record
    atomic_text(records, "".join(json.dumps(record) + "\n" for record in done.values()))
    return done


def _records(model: Model, jobs: Sequence[Job], out: Path) -> Iterator[dict[str, Any]]:
    def load(job: Job) -> Loaded:
        image = read_image(job.path)
        return Loaded(image, model.prepare(image))

    for group in grouped(ahead(load, jobs), model.batch):
        good = [(job, future.result()) for job, future in group if future.exception() is None]
        for job, future in group:
            if future.exception() is not None:
                yield _failed(job, future)
        if not good:
            continue
        begun = time.monotonic()
        results = model.results([loaded.prepared for _, loaded in good])
        seconds = (time.monotonic() - begun) / len(good)
        for (job, loaded), result in zip(good, results, strict=True):
            yield _written(model, job, loaded, result, seconds, out)


def _written(model: Model, job: Job, loaded: Loaded, result: Result, seconds: float, out: Path) -> dict[str, Any]:
    """Write the map and the overlay, and only then say so in a record."""
    target = out / "maps" / f"{job.stem}.npy"
    target.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    np.save(buffer, result.heatmap)
    atomic_bytes(target, buffer.getvalue())
    if model.bundle.calibration is not None:
        _write_overlay(out / "overlays" / f"{job.stem}.png", loaded, result, model.bundle.calibration.heat_scale)
    numbers = {"score": result.score, "p_value": result.p_value, "flag": result.flag}
    place = {"map": target.relative_to(out).as_posix(), "seconds": round(seconds, 4)}
    return {"input": str(job.path), "slice": None, **numbers, **place, "error": None}


def _write_overlay(target: Path, loaded: Loaded, result: Result, scale: float) -> None:
    import PIL.Image

    target.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    PIL.Image.fromarray(overlay(loaded.image.pixels, result.heatmap, scale)).save(buffer, "png")
    atomic_bytes(target, buffer.getvalue())


def _failed(job: Job, future: Future[Loaded]) -> dict[str, Any]:
    err = future.exception()
    text = str(err) if isinstance(err, UserError) else f"{type(err).__name__}: {err}"
    empty = dict.fromkeys(("slice", "score", "p_value", "flag", "map", "seconds"))
    return {"input": str(job.path), **empty, "error": text}
