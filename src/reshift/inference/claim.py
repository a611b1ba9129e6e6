"""``scored-by.json``: an output folder belongs to one model with one calibration, and remembers what ran the model."""

import hashlib
import json
from pathlib import Path
from typing import Any

from reshift.errors import UserError
from reshift.inference.bundle import Bundle
from reshift.inference.outputs import Outputs
from reshift.system.files import atomic_json

STAMP, RECORDS, RUNTIME = "scored-by.json", "scores.jsonl", "runtime"


def claim(out: Path, bundle: Bundle, outputs: Outputs) -> str:
    """Take the folder for this model, or refuse: the numbers of two could not be told apart. Return the model's hash."""
    exclude = {"data": {"max_pixels"}}  # it changes no score; and settings that an old bundle does not know change none
    config = bundle.config.model_dump_json(exclude=exclude, exclude_unset=True)
    settings = config + (bundle.calibration.model_dump_json(exclude_unset=True) if bundle.calibration else "")
    mine = {"model_sha256": bundle.fingerprint, "settings_sha256": hashlib.sha256(settings.encode()).hexdigest()}
    theirs = _read(out)
    known = {name: theirs.pop(name) for name in (*outputs.stamp(), RUNTIME) if name in theirs} if theirs else {}
    ran = {RUNTIME: known.pop(RUNTIME)} if RUNTIME in known else {}
    if (out / RECORDS).exists():
        if theirs != mine:
            raise UserError(f"{out}: holds scores of another model or calibration; choose another --out, or delete that folder")
        outputs.refuse_mixed(out, known)
    atomic_json(out / STAMP, {**mine, **outputs.stamp(), **ran})
    return hashlib.sha256("".join(mine.values()).encode()).hexdigest()


def earlier_runtime(out: Path, default: str) -> str:
    """What ran the model for the records in ``out``; ``default`` where an earlier version did not say."""
    return str((_read(out) or {}).get(RUNTIME, default))


def note_runtime(out: Path, runtime: str) -> None:
    """Remember what runs the model; call it before the first record is written."""
    atomic_json(out / STAMP, {**(_read(out) or {}), RUNTIME: runtime})


def _read(out: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((out / STAMP).read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
