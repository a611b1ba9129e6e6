"""Score one series as ``reshift score --dicom-out`` does, and list the DICOM objects that came of it."""

import csv
import io
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from reshift.data.dicom.header import read_header
from reshift.errors import UserError
from reshift.inference.outputs import KINDS, Outputs
from reshift.pacs.ledger import Ledger, Result
from reshift.pacs.uids import is_uid
from reshift.system.files import atomic_text

if TYPE_CHECKING:
    from reshift.inference.model import Model

RESULTS = "series"  # folder in the output folder, with a folder for every series
TABLE = "series.csv"


class SeriesScore(NamedTuple):
    """What came of a series."""

    score: float | None  # the highest of its images or volumes
    flagged: int  # slices or images
    results: list[Result]
    notes: list[str]  # what is unusual about it


def score_series(model: "Model", spool: Path, out: Path, overlays: str, kinds: tuple[str, ...] = KINDS) -> SeriesScore:
    """Score the folder of a series into ``out/series/NAME``. If any part of it fails, so does the series."""
    from reshift.inference.score import score

    name, folder = spool.name, out / RESULTS / spool.name
    summary = score(model, [spool], folder, dicom=True, overlays=overlays, outputs=Outputs(kinds=kinds))
    records = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
    if why := _failure(records, spool):
        shutil.rmtree(folder)  # the next try begins anew
        raise UserError(_without_path(why, spool))
    whole = [record["score"] for record in records if record["slice"] is None and record["score"] is not None]
    made = [path for path in sorted((folder / "dicom").rglob("*.dcm")) if path.is_file()]  # a single image has a folder NAME.dcm
    results = [_result(path, name, out) for path in made]
    notes = [_without_path(note, spool) for note in (*summary.notes, *([summary.warning] if summary.warning else []))]
    return SeriesScore(max(whole, default=None), sum(bool(record["flag"]) for record in records), results, notes)


def _failure(records: list[dict[str, Any]], spool: Path) -> str | None:
    """Why a series failed. Reading may fail for a moment only: then a slice is beside its stack, or the hash is missing."""
    for record in records:
        if record["error"] is not None:
            return str(record["error"])
    inputs = {record["input"] for record in records}
    split = str(spool) in inputs and len(inputs) > 1
    unread = any(record["slice"] is None and record["sha256"] is None for record in records)
    return "a slice could not be read; run it again" if split or unread else None


def check_model(model: "Model") -> None:
    """What is needed to make DICOM results, before anything is fetched."""
    from importlib.util import find_spec

    if find_spec("highdicom") is None:
        raise UserError("reshift pacs needs: pip install 'reshift[pacs]'")
    if model.bundle.calibration is None:
        raise UserError("results need a threshold, and the bundle has none; run 'reshift calibrate'")


def claim(ledger: Ledger, model: "Model") -> None:
    """A ledger belongs to one model with one calibration."""
    from hashlib import sha256

    bundle = model.bundle
    settings = "".join(part.model_dump_json() for part in (bundle.config, bundle.calibration) if part is not None)
    stamp = sha256(f"{bundle.fingerprint}{settings}".encode()).hexdigest()
    ledger.belongs("model", stamp, "holds results of another model or calibration")


def write_table(ledger: Ledger, out: Path) -> Path:
    """``series.csv``: every series with its state; names are hashes, the ledger knows which UIDs they stand for."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("name", "modality", "state", "instances", "score", "flagged", "stored", "changed", "reason"))
    for row in ledger.all_series():
        stored = sum(result.stored for result in ledger.results(row.name))
        table.writerow(
            (row.name, row.modality, row.state, row.instances, row.score, row.flagged, stored, row.changed, row.reason or "")
        )
    atomic_text(out / TABLE, text.getvalue())
    return out / TABLE


def _result(path: Path, name: str, out: Path) -> Result:
    header = read_header(path, ("SOPInstanceUID", "SeriesInstanceUID"))
    sop, series = ("".join(header.words(tag)) for tag in ("SOPInstanceUID", "SeriesInstanceUID"))
    if not (is_uid(sop) and is_uid(series)):
        raise UserError(f"{path}: has no valid UIDs; delete its folder and run it again")
    return Result(sop, name, series, path.relative_to(out).as_posix(), stored=False)


def _without_path(why: str, spool: Path) -> str:
    return why.replace(f"{spool}/", "").replace(f"{spool}: ", "").replace(str(spool), spool.name)
