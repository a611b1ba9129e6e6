"""``scores.jsonl``, of any length: an index of what it holds is kept in memory, the records stay in the file."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from io import FileIO
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

from reshift.inference.inputs import ScoreCase
from reshift.system.files import append_bytes, json_line, writing

Record = dict[str, Any]
FIELDS = (
    "input", "slice", "score", "p_value", "flag", "map", "seconds", "error", "shift", "unlike", "shift_features", "differs",
    "size", "modified", "sha256", "not_judged", "findings",
)  # of every line  # fmt: skip
# Of lines by earlier versions: without findings and not_judged, and without a file's content.
EARLIER_FIELDS = (FIELDS[:-2], FIELDS[:-5])


def new_record(case: ScoreCase, **values: Any) -> Record:
    """A line of ``scores.jsonl``; what was read is recorded with a finished input, not with its slices."""
    content = case.content._asdict() if case.content is not None and values.get("slice") is None else {}
    if values.get("error") is not None:
        values["error"] = values["error"].replace(str(case.path), case.source)
    return {**dict.fromkeys(FIELDS), "input": case.source, **values, **content}


def failed_record(case: ScoreCase, error: str) -> Record:
    """The record of a case that could not be scored."""
    return new_record(case._replace(content=None), error=error)


class Entry(NamedTuple):
    """Where the lines of one input lie; they follow each other, and the input's own (``slice`` None) is the last."""

    start: int  # in bytes
    size: int
    map: str | None  # of a case that is finished; None where it failed or was cut short
    content: tuple[int, int] | None = None  # size and time of change of what was scored


class Tally(NamedTuple):
    """What the whole file says."""

    failures: int
    differs: list[tuple[str, ...]]  # of every image that was judged


class RecordFile:
    """The file while a run adds to it: opened once, at the first record."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: FileIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            self.file.close()

    def append(self, records: Sequence[Record]) -> Entry:
        """Append the records of one input, all or none of them."""
        lines = b"".join(json_line(record) for record in records)
        with writing(self.path):
            if self.file is None:
                self.file = self.path.open("ab", buffering=0)
            return Entry(append_bytes(self.file, lines), len(lines), _finished(records[-1]), _content(records[-1]))


def read_index(path: Path) -> dict[str, Entry]:
    """Find every input of earlier runs. A line cut short by a kill is dropped: from here, and from the file."""
    if not path.exists():
        return {}
    with path.open("rb") as file:
        damaged = any(_parsed(line) is None for line in file)
    if damaged:
        with path.open("rb") as file:
            _replace(path, (line for line in file if _parsed(line) is not None))
    index: dict[str, Entry] = {}
    with path.open("rb") as file:
        for name, entry, complete in _entries(file):
            if complete or name not in index:  # the last whole try counts
                index[name] = entry
    return index


def read_sha256(path: Path, entry: Entry) -> str | None:
    """The hash in an input's own record."""
    digest: str | None = json.loads(list(_lines(path, [entry]))[-1]).get("sha256")
    return digest


def sort_records(path: Path, index: dict[str, Entry], names: Iterable[str]) -> Tally:
    """Bring the file into the order of ``names``, each input once, and count."""
    failures, differs, kinds, ordered, at = 0, list[tuple[str, ...]](), dict[tuple[str, ...], tuple[str, ...]](), True, 0
    if not path.exists():
        return Tally(0, [])
    wanted = [index[name] for name in names]
    for line in _lines(path, wanted):
        record = json.loads(line)
        failures += record["error"] is not None
        if record["differs"] is not None:
            kind = tuple(record["differs"])
            differs.append(kinds.setdefault(kind, kind))  # few kinds, many images
    for entry in wanted:
        ordered, at = ordered and entry.start == at, at + entry.size
    if not ordered or at != path.stat().st_size:
        _replace(path, _lines(path, wanted))
    return Tally(failures, differs)


def _parsed(line: bytes) -> Record | None:
    """Return the record of a whole line, or None."""
    try:
        record = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and tuple(record) in (FIELDS, *EARLIER_FIELDS) else None


def _finished(record: Record) -> str | None:
    return record["map"] if record["slice"] is None and record["error"] is None else None


def _content(record: Record) -> tuple[int, int] | None:
    return (record["size"], record["modified"]) if record.get("modified") is not None else None


def _entries(file: BinaryIO) -> Iterator[tuple[str, Entry, bool]]:
    """Every input's lines, with whether they end in its own record."""
    start = 0
    for (name, _), group in groupby(_numbered(file), key=lambda item: item[:2]):
        size, last = 0, Record()
        for _, _, length, record in group:
            size, last = size + length, record
        yield name, Entry(start, size, _finished(last), _content(last)), last["slice"] is None
        start += size


def _numbered(file: BinaryIO) -> Iterator[tuple[str, int, int, Record]]:
    """Name, number of the try, length and record of every line: an input's own record ends a try."""
    tries = 0
    for line in file:
        record = json.loads(line)
        yield record["input"], tries, len(line), record
        tries += record["slice"] is None


def _lines(path: Path, entries: Iterable[Entry]) -> Iterator[bytes]:
    with path.open("rb") as file:
        for entry in entries:
            file.seek(entry.start)
            yield from file.read(entry.size).splitlines(keepends=True)


def _replace(path: Path, lines: Iterable[bytes]) -> None:
    """Write the file anew, whole or not at all, without ever holding it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        try:
            with temporary.open("wb") as file:
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
