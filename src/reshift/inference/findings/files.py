"""``findings.json`` and ``findings.csv``: all findings of ``scores.jsonl``, one row each, of any number."""

import csv
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from reshift import __version__
from reshift.inference.findings.measure import FIELDS
from reshift.system.files import writing

AXES = ("x", "y", "z")
COLUMNS = (
    "input", "p_value", *FIELDS[:7], *(f"centroid_{a}" for a in AXES), *(f"from_{a}" for a in AXES), *(f"to_{a}" for a in AXES),
    "peak", *(f"peak_{a}" for a in AXES), "mean", "voxels", "first_slice", "last_slice", "peak_slice", "slice_p_value",
)  # fmt: skip


def write_findings(out: Path, threshold: float, min_diameter: float) -> None:
    """Write both files from the records in ``out``, whole or not at all, without ever holding them."""
    records = out / "scores.jsonl"
    if not records.exists():
        return
    targets = [out / "findings.json", out / "findings.csv"]
    parts = [target.with_name(f".{target.name}.{os.getpid()}.tmp") for target in targets]
    with writing(targets[0]):
        try:
            with ExitStack() as stack:
                files = [stack.enter_context(_open(part)) for part in parts]
                about = {"reshift": __version__, "threshold": threshold, "min_diameter": min_diameter}
                _write(files[0], files[1], records, about)
                for file in files:
                    file.flush()
                    os.fsync(file.fileno())
            for part, target in zip(parts, targets, strict=True):
                part.replace(target)
        finally:
            for part in parts:
                part.unlink(missing_ok=True)


def _open(path: Path) -> TextIO:
    return path.open("w", encoding="utf-8", errors="surrogateescape", newline="")


def _write(as_json: TextIO, as_csv: TextIO, records: Path, about: dict[str, Any]) -> None:
    table = csv.writer(as_csv, lineterminator="\n")
    table.writerow(COLUMNS)
    unknown, between = 0, ""
    as_json.write(json.dumps(about)[:-1] + ', "findings": [')
    for record in _cases(records):
        unknown += record.get("findings") is None
        for finding in record.get("findings") or ():
            row = {"input": record["input"], "p_value": record["p_value"], **finding}
            as_json.write(f"{between}\n{json.dumps(row, allow_nan=False)}")
            table.writerow(_flat(row))
            between = ","
    as_json.write(f'\n], "cases_without": {unknown}}}\n')


def _cases(records: Path) -> Iterator[dict[str, Any]]:
    """The records of images and whole volumes that were scored."""
    with records.open("rb") as file:
        for line in file:
            record = json.loads(line)
            if record["slice"] is None and record["map"] is not None:
                yield record


def _flat(row: dict[str, Any]) -> list[Any]:
    """One cell per column; an input that a spreadsheet would take for a formula is marked as text."""
    source = str(row["input"])
    return [
        f"'{source}" if source[:1] in ("=", "+", "-", "@") else source,
        *(row[name] for name in ("p_value", *FIELDS[:7])),
        *(*row["centroid"], *row["box"][0], *row["box"][1]),
        *(row["peak"], *row["peak_at"], row["mean"], row["voxels"]),
        *(row["slices"] or (None, None)),
        *(row["peak_slice"], row["slice_p_value"]),
    ]
