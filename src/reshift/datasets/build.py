"""Run a plan: write images, masks, ``manifest.csv`` and ``dataset.json``. An interrupted run continues."""

import csv
import io
import os
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from reshift import __version__
from reshift.config import read_json
from reshift.data.cases import SPLITS
from reshift.data.manifest import COLUMNS, load_cases
from reshift.datasets import DATASETS
from reshift.datasets.download import is_archive, unpacked_download
from reshift.datasets.plan import CaseResult, NotFoundError, Plan, PlanFunction, Settings, SourceCase, list_source
from reshift.errors import UserError, reason
from reshift.system.cores import cores
from reshift.system.files import append_json, atomic_bytes, atomic_json, atomic_text, remove_temporary_files
from reshift.system.lock import output_folder
from reshift.system.progress import progress

LOG = "subjects.jsonl"
BESIDE = "because files of the data set lie unpacked beside it; if some are missing, unpack it, too"


class Summary(NamedTuple):
    """What was written, and what was not."""

    counts: dict[str, dict[str, int]]  # split → normal, abnormal, subjects
    left_out: dict[str, int]
    skipped: list[str]
    notes: list[str]
    layout: str
    manifest: Path
    cases: dict[str, int]  # found = prepared + left_out (by a rule) + refused (listed in ``skipped``)


def build(plan_of: PlanFunction, source: Path, out: Path, settings: Settings) -> Summary:
    """Convert ``source``, a folder or an archive, by its plan and write the result below ``out``."""
    if out.resolve().is_relative_to(source.resolve()):
        raise UserError(f"{out}: is inside the source, and the next run would read it; choose another --out")
    with _planned(plan_of, source, settings) as (plan, folder), output_folder(out):
        return _build(plan, folder, out, settings)


@contextmanager
def _planned(plan_of: PlanFunction, source: Path, settings: Settings) -> Iterator[tuple[Plan, Path]]:
    """The plan, and the folder that it is about. Archives are opened only where the data set is not found without them."""
    if source.is_dir() or not is_archive(source):
        tree = list_source(source)
        packed = [path.as_posix() for path in tree if is_archive(path)]
        try:
            plan = plan_of(tree, source, settings)
        except NotFoundError:
            if not packed:
                raise
        else:
            if not packed or not plan.lacks_a_part:
                plan.notes.extend(f"{name}: not opened, {BESIDE}" for name in packed)
                yield plan, source
                return
    elif not source.exists():
        raise UserError(f"{source}: no such file")
    with unpacked_download(source) as (folder, problems, lost):
        try:
            plan = plan_of(list_source(folder), folder, settings)
        except UserError as err:
            why = f"; {problems[0]}" if problems else ""
            raise UserError(f"{str(err).replace(str(folder), str(source))}{why}") from None
        _refuse_lost(plan, lost)
        plan.problems.extend(problems)
        yield plan, folder


def _refuse_lost(plan: Plan, lost: Collection[Path]) -> None:
    """Take the cases with a lost file out of the plan: such as an image with two masks, one of them damaged in the archive.

    What the plan says of a lost file is taken out, too; the line about the archive tells of it.
    """
    named = tuple(f"{path.as_posix()}: " for path in lost)
    plan.cases = [case for case in plan.cases if not any(path in lost for path in case.files)]
    plan.problems = [line for line in plan.problems if not line.startswith(named)]


def _build(plan: Plan, source: Path, out: Path, settings: Settings) -> Summary:
    """Convert the cases that an earlier run has not converted."""
    cases = _unique_cases(plan)
    log = _read_log(out, settings)
    finished, skipped = dict[str, dict[str, Any]](), list(plan.problems)
    waiting = []
    for case in cases:
        record = log.get(case.key)
        if record and record["files"] == _sizes(case, source) and all((out / p).is_file() for p in _written(record)):
            finished[case.key] = record
        else:
            waiting.append(case)
    with progress("preparing", len(cases), len(finished)) as advance:
        for case, future in _convert_ahead(waiting):
            try:
                result = future.result()
            except UserError as err:
                skipped.append(_relative(str(err), source, settings))
            else:  # outside the try: a full disk must stop the run
                finished[case.key] = _write_samples(case, result, out, source)
                append_json(out / LOG, finished[case.key])
            advance(1, case.key)
    return _finish(plan, [finished[case.key] for case in cases if case.key in finished], skipped, out, settings)


def _unique_cases(plan: Plan) -> list[SourceCase]:
    cases: dict[str, SourceCase] = {}
    for case in plan.cases:
        if case.key in cases:
            first, second = (each.files[0].as_posix() for each in (cases[case.key], case))
            plan.problems.append(f"{case.key}: exists twice, {first} is used and {second} is not; remove one")
        else:
            cases[case.key] = case
    return list(cases.values())


def _read_log(out: Path, settings: Settings) -> dict[str, dict[str, Any]]:
    """The finished cases of an earlier run, which must have had the same settings."""
    path = out / LOG
    for folder in (out, out / "images", out / "masks", out / "ignore"):
        folder.mkdir(exist_ok=True)
        remove_temporary_files(folder)
    header = {**settings.record(), "version": __version__}
    if not path.exists():
        if (out / "manifest.csv").exists():
            raise UserError(f"{out}: holds a manifest.csv that 'prepare' did not write; choose another --out")
        append_json(path, header)
        return {}
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    try:
        whole = [read_json(line) for line in lines if line.endswith("\n")]
    except ValueError:
        raise UserError(f"{path}: damaged; remove {out} and run it again") from None
    if not whole or whole[0] != header:
        had = ", ".join(f"{k} {v}" for k, v in (whole[0] if whole else {}).items() if header.get(k) != v)
        raise UserError(f"{out}: was prepared with other settings ({had or 'unknown'}); choose another --out, or remove it")
    if len(whole) < len(lines):  # the last line was cut short when the run was killed
        atomic_text(path, "".join(lines[: len(whole)]))
    return {record["key"]: record for record in whole[1:]}


def _sizes(case: SourceCase, source: Path) -> list[list[Any]]:
    """Names and sizes; of a file that is not in the source, which has a whole path, the last part of its name."""
    names = [f.name if f.is_absolute() else f.as_posix() for f in case.files]
    return [
        [name, (source / f).stat().st_size if (source / f).exists() else -1] for name, f in zip(names, case.files, strict=True)
    ]


def _written(record: dict[str, Any]) -> Iterator[str]:
    for row in record["rows"]:
        yield from (row[column] for column in ("image", "mask", "ignore") if row[column])


def _convert_ahead(cases: Sequence[SourceCase]) -> Iterator[tuple[SourceCase, Future[CaseResult]]]:
    """Convert a few cases at a time; volumes are too large for more."""
    workers, waiting = min(4, cores()), deque[tuple[SourceCase, Future[CaseResult]]]()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for case in cases:
                waiting.append((case, pool.submit(_convert, case)))
                if len(waiting) > workers:
                    yield waiting.popleft()
            while waiting:
                yield waiting.popleft()
        finally:
            pool.shutdown(cancel_futures=True)


def _convert(case: SourceCase) -> CaseResult:
    """Convert one case. A damaged file may raise anything, and must not stop the others."""
    try:
        return case.convert()
    except (UserError, MemoryError):
        raise
    except Exception as err:
        raise UserError(f"{case.files[0].as_posix()}: cannot be used ({reason(err)})") from err


def _write_samples(case: SourceCase, result: CaseResult, out: Path, source: Path) -> dict[str, Any]:
    """Write the images of one case; return its line of the log."""
    rows, left = list[dict[str, Any]](), Counter(result.left_out)
    for sample in result.samples:
        if sample.pixels.min() == sample.pixels.max():
            left["nothing to see"] += 1
            continue
        row = {"image": _save(sample.pixels, out, "images", sample.name), "mask": "", "subject": case.subject,
               "label": sample.label, "split": sample.split, "note": sample.note, "ignore": ""}  # fmt: skip
        for column, folder, plane in (("mask", "masks", sample.mask), ("ignore", "ignore", sample.ignore)):
            if plane is not None and plane.any():
                row[column] = _save(plane, out, folder, sample.name)
        rows.append(row)
    return {"key": case.key, "files": _sizes(case, source), "rows": rows, "left_out": dict(sorted(left.items()))}


def _save(plane: NDArray[Any], out: Path, folder: str, name: str) -> str:
    import PIL.Image

    buffer = io.BytesIO()
    PIL.Image.fromarray(plane).save(buffer, "PNG")
    atomic_bytes(out / folder / f"{name}.png", buffer.getvalue())
    return f"{folder}/{name}.png"


def _relative(line: str, source: Path, settings: Settings) -> str:
    """Without the paths of the user's folders: they must not be in any output."""
    for folder in (source, settings.brain_masks):
        line = line.replace(f"{folder}{os.sep}", "") if folder else line
    return line


def _finish(plan: Plan, records: Sequence[dict[str, Any]], skipped: list[str], out: Path, settings: Settings) -> Summary:
    rows = [row for record in records for row in record["rows"]]
    if not rows:
        raise UserError(f"nothing could be prepared; {skipped[0] if skipped else 'the rules left every image out'}")
    columns = (*COLUMNS, "ignore") if any(row["ignore"] for row in rows) else COLUMNS
    table = io.StringIO()
    writer = csv.DictWriter(table, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(sorted(rows, key=lambda row: str(row["image"])))
    atomic_text(out / "manifest.csv", table.getvalue())
    for folder in ("masks", "ignore"):
        if not any((out / folder).iterdir()):
            (out / folder).rmdir()
    load_cases(out / "manifest.csv")  # refuses a subject in two splits, should a rule of ours leak
    left = sum((Counter(record["left_out"]) for record in records), Counter[str]())
    counts = _counts(rows)
    used = sum(bool(record["rows"]) for record in records)
    cases = {"found": len(records) + len(skipped), "prepared": used, "left_out": len(records) - used, "refused": len(skipped)}
    unexpected = [f"{want} {what} expected, found {have}" for what, want, have in plan.expected if want != have]
    entry = DATASETS[settings.dataset]
    atomic_json(out / "dataset.json", {
        "dataset": settings.dataset, "title": entry.title, "licence": entry.licence, "download": entry.download,
        "version": __version__, "layout": plan.layout, "settings": settings.record(), "caveat": plan.caveat, "counts": counts,
        "cases": cases,
        "expected": [{"what": what, "published": want, "found": have} for what, want, have in plan.expected],
        "rules": plan.rules, "left_out": dict(sorted(left.items())), "skipped": sorted(skipped), "notes": plan.notes,
        **plan.extra,
    })  # fmt: skip
    notes = [*unexpected, *plan.notes, *([plan.caveat] if plan.caveat else [])]
    return Summary(counts, dict(sorted(left.items())), sorted(skipped), notes, plan.layout, out / "manifest.csv", cases)


def _counts(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    found = {}
    for split in SPLITS:
        members = [row for row in rows if row["split"] == split]
        if members:
            abnormal = sum(row["label"] for row in members)
            subjects = len({row["subject"] for row in members})
            found[split] = {"normal": len(members) - abnormal, "abnormal": abnormal, "subjects": subjects}
    return found
