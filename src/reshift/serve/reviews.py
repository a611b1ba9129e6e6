"""What a reader of results decided: accept or reject, with a note; as CSV for a spreadsheet."""

import csv
import io
import time
from datetime import UTC, datetime
from typing import Any

from reshift.serve.jobs import Database

COLUMNS = ("job", "case", "name", "score", "p_value", "flag", "verdict", "rating", "note", "reviewer", "time")


class Reviews:
    """The newest review of every case."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def put(
        self, job: str, item: str, name: str, *, verdict: str, rating: int | None, note: str, reviewer: str
    ) -> dict[str, Any]:
        """Set a case's review."""
        now = time.time()
        with self.database.change() as change:
            change.execute(
                "INSERT OR REPLACE INTO reviews VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (job, item, name, verdict, rating, note, reviewer, now),
            )
        return {"verdict": verdict, "rating": rating, "note": note, "reviewer": reviewer, "time": iso(now)}

    def remove(self, job: str, item: str) -> bool:
        """Take a review back."""
        with self.database.change() as change:
            return change.execute("DELETE FROM reviews WHERE job = ? AND item = ?", (job, item)).rowcount == 1

    def of(self, job: str) -> dict[str, dict[str, Any]]:
        """All reviews of a job, by case."""
        rows = self.database.all("SELECT * FROM reviews WHERE job = ?", job)
        fields = ("verdict", "rating", "note", "reviewer")
        return {row["item"]: {**{name: row[name] for name in fields}, "time": iso(row["time"])} for row in rows}


def iso(seconds: float | None) -> str | None:
    """A time as ISO 8601 in UTC."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def as_csv(rows: list[dict[str, Any]]) -> str:
    """A table that a spreadsheet opens; text that it would take for a formula is quoted."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow([_cell(row.get(column)) for column in COLUMNS])
    return buffer.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return "" if value is None else value
