"""Series in an archive, and ``reshift pacs`` against it."""

import sqlite3
from pathlib import Path
from typing import Any

import dicom_files

STUDY = "1.2.826.0.1.3680043.8.498.7"


def write_study(folder: Path, number: int, slices: int = 4, **tags: Any) -> list[Path]:
    """The files of a study with one CT series; UIDs follow from ``number``, so that it can be written again."""
    study, target = f"{STUDY}.{number}", folder / f"study{number}"
    identity = {"StudyInstanceUID": study, "SeriesInstanceUID": f"{study}.1", "StudyDate": "20260115", **tags}
    for k, instance in enumerate(dicom_files.series(target / "made", slices, **identity)):
        instance.SOPInstanceUID = f"{identity['SeriesInstanceUID']}.{k + 1}"
        dicom_files.write(instance, target / f"{k}.dcm")
    return sorted(target.glob("*.dcm"))


def states(out: Path) -> dict[str, list[str]]:
    """State → reasons, of every series in the ledger."""
    found = dict[str, list[str]]()
    with sqlite3.connect(out / "ledger.sqlite") as db:
        for state, reason in db.execute("SELECT state, reason FROM series ORDER BY rowid"):
            found.setdefault(state, []).append(reason or "")
    db.close()
    return found
