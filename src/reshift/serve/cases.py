"""The cases of a job, from its ``scores.jsonl``: one per file or series, a volume with its slices."""

import hashlib
import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from reshift.serve.errors import not_found

SHOWN = ("score", "p_value", "flag", "shift", "unlike", "shift_features", "differs", "seconds", "error")  # of a record
SORTS: dict[str, Callable[["Case"], Any]] = {
    "index": lambda case: case.number,
    "name": lambda case: case.name,
    "score": lambda case: (case.record["score"] is None, -(case.record["score"] or 0.0), case.number),
}


class Case(NamedTuple):
    """One file or series: its own record, and those of its slices."""

    id: str
    number: int  # in the order of the records
    name: str  # as it was uploaded, or below --data
    source: str  # as the record has it
    record: dict[str, Any]
    slices: list[dict[str, Any]]


class CaseList(NamedTuple):
    """All that a job has so far."""

    cases: list[Case]
    by_id: dict[str, Case]

    def get(self, identifier: str) -> Case:
        """One case."""
        if identifier not in self.by_id:
            raise not_found("case")
        return self.by_id[identifier]


def read_cases(results: Path, hidden: Path) -> CaseList:
    """Read the records; ``hidden`` is the folder whose name users do not see."""
    path = results / "scores.jsonl"
    try:
        about = path.stat()
    except FileNotFoundError:
        return CaseList([], {})
    return _read(path, about.st_mtime_ns, about.st_size, hidden)


@lru_cache(maxsize=16)
def _read(path: Path, _modified: int, _size: int, hidden: Path) -> CaseList:
    cases: dict[str, Case] = {}
    slices: dict[str, list[dict[str, Any]]] = {}
    with path.open("rb") as file:
        for line in file:
            try:
                record = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                record = None  # being written at this moment
            if record is None:
                continue
            source = record["input"]
            if record["slice"] is not None:
                slices.setdefault(source, []).append(record)
                continue
            name = source.removeprefix(f"{hidden}/")
            identifier = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
            if record["error"] is not None:
                record["error"] = record["error"].replace(f"{hidden}/", "").replace(str(hidden), "the upload")
            cases[source] = Case(identifier, len(cases), name, source, record, slices.pop(source, []))
    found = [case._replace(number=number) for number, case in enumerate(cases.values())]
    return CaseList(found, {case.id: case for case in found})


def forget() -> None:
    """Keep nothing of any job in memory."""
    _read.cache_clear()


def case_json(case: Case, review: dict[str, Any] | None, links: str) -> dict[str, Any]:
    """A case as a list shows it."""
    worst = max(case.slices, key=lambda record: record["score"] or 0.0, default=None)
    flagged = sum(bool(record["flag"]) for record in case.slices)
    return {
        "id": case.id,
        "index": case.number,
        "name": case.name,
        **{name: case.record.get(name) for name in SHOWN},
        "flag": flagged > 0 if case.slices and case.record.get("flag") is None else case.record.get("flag"),
        "lowest_slice_p_value": _smallest(case),  # no p-value of the volume: the lowest of many is often low
        "volume": bool(case.slices),
        "slices": len(case.slices),
        "flagged_slices": flagged,
        "top_slice": worst["slice"] if worst else None,
        "has_map": bool(case.record.get("map")) and case.record["error"] is None,
        "sha256": case.record.get("sha256"),
        "review": review,
        "url": links,
    }


def _smallest(case: Case) -> float | None:
    known = [record["p_value"] for record in case.slices if record["p_value"] is not None]
    return min(known) if known else None
