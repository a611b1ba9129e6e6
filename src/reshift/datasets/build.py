"""From a plan to a folder: images, masks, ``manifest.csv`` and ``dataset.json``; resumable, and never half a file."""

import csv
import hashlib
import io
import json
import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift import __version__
from reshift.data.manifest import COLUMNS, load_cases
from reshift.datasets import DATASETS
from reshift.errors import UserError, reason
from reshift.system.cores import cores
from reshift.system.files import append_json, atomic_bytes, atomic_json, atomic_text, sweep, writable_folder
from reshift.system.progress import progress

LOG = "subjects.jsonl"
ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".7z")


class Settings(NamedTuple):
    """What decides the result, beside the source."""

    dataset: str
    seed: int
    size: int  # side of the pictures
    protocol: str
    fit: str  # "crop" or "pad", for pictures that are not square


class Sample(NamedTuple):
    """One picture of the result."""

    name: str  # file name without suffix
    pixels: NDArray[np.uint8]  # (size, size)
    label: int
    split: str
    mask: NDArray[np.bool_] | None = None
    ignore: NDArray[np.bool_] | None = None
    note: str = ""


class Made(NamedTuple):
    """What came of a job: pictures, and how many were left out by which rule."""

    samples: Sequence[Sample]
    left_out: Counter[str] = Counter()  # noqa: RUF012 (never added to)


@dataclass(frozen=True)
class Job:
    """One case: a volume, or a picture. ``key`` is unique; ``subject`` is what may be in one split only."""

    key: str
    subject: str
    files: tuple[Path, ...]
    make: Callable[[], Made]


@dataclass
class Plan:
    """All that is known of a source before a pixel is read."""

    layout: str
    jobs: list[Job]
    expected: list[tuple[str, int, int]]  # what, the published count, the count found
    rules: list[str]
    problems: list[str] = field(default_factory=list)  # cases that cannot be used; they count as failed
    notes: list[str] = field(default_factory=list)  # what a user should know
    report: dict[str, Any] = field(default_factory=dict)  # goes into dataset.json


class Summary(NamedTuple):
    """How it went."""

    counts: dict[str, dict[str, int]]  # split → normal, abnormal, subjects
    left_out: dict[str, int]
    skipped: list[str]
    notes: list[str]
    layout: str
    manifest: Path


PlanFunction = Callable[[list[Path], Path, Settings], Plan]


def build(plan_of: PlanFunction, source: Path, out: Path, settings: Settings) -> Summary:
    """Run the plan for ``source`` and write what comes of it below ``out``."""
    tree = listing(source)
    if out.resolve().is_relative_to(source.resolve()):
        raise UserError(f"{out}: lies inside the source, and would be read as part of it next time; choose another --out")
    plan = plan_of(tree, source, settings)
    jobs = _unique(plan)
    log = _open_log(out, settings)
    finished, skipped = dict[str, dict[str, Any]](), list(plan.problems)
    waiting = []
    for job in jobs:
        record = log.get(job.key)
        if record and record["files"] == _sizes(job, source) and all((out / p).is_file() for p in _written(record)):
            finished[job.key] = record
        else:
            waiting.append(job)
    with progress("preparing", len(jobs), len(finished)) as advance:
        for job, made in _ahead(waiting):
            try:
                result = made.result()
            except UserError as err:
                skipped.append(_relative(str(err), source))
            else:  # a full disk is no fault of the case, and stops the run
                finished[job.key] = _store(job, result, out, source)
                append_json(out / LOG, finished[job.key])
            advance(1, job.key)
    return _finish(plan, [finished[job.key] for job in jobs if job.key in finished], skipped, out, settings)


def listing(source: Path) -> list[Path]:
    """Every file below ``source``, relative to it and sorted; hidden ones are passed over."""
    if not source.is_dir():
        raise UserError(f"{source}: no such folder; --source is the folder that the dataset was unpacked into")
    found: list[Path] = []
    for root, folders, files in os.walk(source):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(root, name).relative_to(source) for name in files if not name.startswith(".")]
    return sorted(found)


def not_found(source: Path, title: str, wanted: Iterable[str], tree: Sequence[Path]) -> UserError:
    """Say which files were looked for; an archive lying there is the likely reason."""
    packed = [path.as_posix() for path in tree if path.name.endswith(ARCHIVES)]
    hint = f"; unpack {packed[0]} first" if packed else ""
    return UserError(f"{source}: no {title} here; looked for {' or '.join(wanted)}{hint}")


def drawn(items: Iterable[str], seed: int) -> list[str]:
    """Shuffle by lots that only the item and the seed decide: the same on every machine, whatever else is in the list."""
    return sorted(set(items), key=lambda item: hashlib.blake2b(f"{seed}\0{item}".encode()).digest())


def parts(subjects: Iterable[str], seed: int, train: float = 0.75, val: float = 0.05) -> dict[str, str]:
    """Deal whole subjects out to train, val and test; 1251 of them become 938, 62 and 251."""
    order = drawn(subjects, seed)
    a = int(train * len(order))
    b = a + int(val * len(order))
    return {s: "train" if i < a else "val" if i < b else "test" for i, s in enumerate(order)}


def safe(text: str) -> str:
    """Make a file name of ``text``: what shells, Windows and CSV readers stumble over becomes a dash."""
    return re.sub(r"-{2,}", "-", re.sub(r"[^A-Za-z0-9_.-]+", "-", text)).strip("-.")


def _unique(plan: Plan) -> list[Job]:
    jobs: dict[str, Job] = {}
    for job in plan.jobs:
        if job.key in jobs:
            plan.problems.append(
                f"{job.key}: is there twice, as {jobs[job.key].files[0].name} and {job.files[0].name}; remove one"
            )
        else:
            jobs[job.key] = job
    return list(jobs.values())


def _open_log(out: Path, settings: Settings) -> dict[str, dict[str, Any]]:
    """Take up what an earlier run left, if it was made by the same rules."""
    path = writable_folder(out) / LOG
    for folder in (out, out / "images", out / "masks", out / "ignore"):
        folder.mkdir(exist_ok=True)
        sweep(folder)
    mine = {**settings._asdict(), "version": __version__}
    if not path.exists():
        if (out / "manifest.csv").exists():
            raise UserError(f"{out}: holds a manifest.csv that 'prepare' did not write; choose another --out")
        append_json(path, mine)
        return {}
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    try:
        whole = [json.loads(line) for line in lines if line.endswith("\n")]
    except ValueError:
        raise UserError(f"{path}: damaged; remove {out} and run it again") from None
    if not whole or whole[0] != mine:
        had = ", ".join(f"{k} {v}" for k, v in (whole[0] if whole else {}).items() if mine.get(k) != v)
        raise UserError(f"{out}: was prepared with other settings ({had or 'unknown'}); choose another --out, or remove it")
    if len(whole) < len(lines):  # a kill cut the last line short
        atomic_text(path, "".join(lines[: len(whole)]))
    return {record["key"]: record for record in whole[1:]}


def _sizes(job: Job, source: Path) -> list[list[Any]]:
    return [[f.as_posix(), (source / f).stat().st_size if (source / f).exists() else -1] for f in job.files]


def _written(record: dict[str, Any]) -> Iterator[str]:
    for row in record["rows"]:
        yield from (row[column] for column in ("image", "mask", "ignore") if row[column])


def _ahead(jobs: Sequence[Job]) -> Iterator[tuple[Job, Future[Made]]]:
    """A few cases at a time: unpacking releases the lock, and a volume is too large to read many ahead."""
    workers, waiting = min(4, cores()), deque[tuple[Job, Future[Made]]]()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for job in jobs:
                waiting.append((job, pool.submit(_guarded, job)))
                if len(waiting) > workers:
                    yield waiting.popleft()
            while waiting:
                yield waiting.popleft()
        finally:
            pool.shutdown(cancel_futures=True)


def _guarded(job: Job) -> Made:
    """A damaged file may raise anything; it must not stop the others."""
    try:
        return job.make()
    except (UserError, MemoryError):
        raise
    except Exception as err:
        raise UserError(f"{job.files[0].as_posix()}: cannot be used ({reason(err)})") from err


def _store(job: Job, made: Made, out: Path, source: Path) -> dict[str, Any]:
    rows, left = list[dict[str, Any]](), Counter(made.left_out)
    for sample in made.samples:
        if sample.pixels.min() == sample.pixels.max():
            left["nothing to see"] += 1
            continue
        row = {"image": _save(sample.pixels, out, "images", sample.name), "mask": "", "subject": job.subject,
               "label": sample.label, "split": sample.split, "note": sample.note, "ignore": ""}  # fmt: skip
        for column, folder, plane in (("mask", "masks", sample.mask), ("ignore", "ignore", sample.ignore)):
            if plane is not None and plane.any():
                row[column] = _save(plane, out, folder, sample.name)
        rows.append(row)
    return {"key": job.key, "files": _sizes(job, source), "rows": rows, "left_out": dict(sorted(left.items()))}


def _save(plane: NDArray[Any], out: Path, folder: str, name: str) -> str:
    import PIL.Image

    buffer = io.BytesIO()
    PIL.Image.fromarray(plane).save(buffer, "PNG")
    atomic_bytes(out / folder / f"{name}.png", buffer.getvalue())
    return f"{folder}/{name}.png"


def _relative(line: str, source: Path) -> str:
    """Nothing that is kept may tell where the source lay."""
    return line.replace(f"{source}{os.sep}", "")


def _finish(plan: Plan, records: Sequence[dict[str, Any]], skipped: list[str], out: Path, settings: Settings) -> Summary:
    rows = [row for record in records for row in record["rows"]]
    if not rows:
        raise UserError(f"nothing could be prepared; {skipped[0] if skipped else 'the rules left every picture out'}")
    columns = (*COLUMNS[:6], "ignore") if any(row["ignore"] for row in rows) else COLUMNS[:6]
    table = io.StringIO()
    writer = csv.DictWriter(table, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(sorted(rows, key=lambda row: str(row["image"])))
    atomic_text(out / "manifest.csv", table.getvalue())
    for folder in ("masks", "ignore"):
        if not any((out / folder).iterdir()):
            (out / folder).rmdir()
    load_cases(out / "manifest.csv")  # refuses a subject in two splits, so that no rule of ours can leak unseen
    left = sum((Counter(record["left_out"]) for record in records), Counter[str]())
    counts = _counts(rows)
    odd = [f"{want} {what} expected, found {have}" for what, want, have in plan.expected if want != have]
    entry = DATASETS[settings.dataset]
    atomic_json(out / "dataset.json", {
        "dataset": settings.dataset, "title": entry.title, "licence": entry.licence, "download": entry.download,
        "version": __version__, "layout": plan.layout, "settings": settings._asdict(), "counts": counts,
        "expected": [{"what": what, "published": want, "found": have} for what, want, have in plan.expected],
        "rules": plan.rules, "left_out": dict(sorted(left.items())), "skipped": sorted(skipped), "notes": plan.notes,
        **plan.report,
    })  # fmt: skip
    return Summary(counts, dict(sorted(left.items())), sorted(skipped), [*odd, *plan.notes], plan.layout, out / "manifest.csv")


def _counts(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    found = {}
    for split in ("train", "val", "test"):
        mine = [row for row in rows if row["split"] == split]
        if mine:
            abnormal = sum(row["label"] for row in mine)
            subjects = len({row["subject"] for row in mine})
            found[split] = {"normal": len(mine) - abnormal, "abnormal": abnormal, "subjects": subjects}
    return found
