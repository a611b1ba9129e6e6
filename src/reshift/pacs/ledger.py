"""What has happened to every study and series, in SQLite: it survives a kill at any moment, and a re-run continues from it.

The ledger names studies, series and instances by their UIDs, which lead to patients in an archive. Beside it only DICOM files do.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

from reshift.errors import UserError
from reshift.pacs.uids import modality_code, series_name

FORMAT = "1"
SCHEMA = """
CREATE TABLE IF NOT EXISTS about (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS study (uid TEXT PRIMARY KEY, state TEXT NOT NULL, reason TEXT);
CREATE TABLE IF NOT EXISTS series (
  name TEXT PRIMARY KEY, study TEXT NOT NULL, uid TEXT NOT NULL, modality TEXT NOT NULL, state TEXT NOT NULL, reason TEXT,
  instances INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0, score REAL, flagged INTEGER,
  changed TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now')));
CREATE TABLE IF NOT EXISTS result (
  sop TEXT PRIMARY KEY, name TEXT NOT NULL, series TEXT NOT NULL, path TEXT NOT NULL, stored INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS received (sop TEXT PRIMARY KEY, name TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS series_of_study ON series (study);
CREATE INDEX IF NOT EXISTS result_of_series ON result (name);
CREATE INDEX IF NOT EXISTS received_of_series ON received (name);
"""
STATES = ("found", "fetched", "scored", "pushed", "failed", "skipped")


class Row(NamedTuple):
    """One series."""

    name: str
    study: str
    uid: str
    modality: str
    state: str  # one of STATES
    reason: str | None  # why it failed or was skipped
    instances: int  # of the source, when it was fetched or received
    bytes: int
    score: float | None
    flagged: int | None
    changed: str


class Result(NamedTuple):
    """A DICOM object that was made of a series."""

    sop: str
    name: str  # of the source series
    series: str  # UID of its own series
    path: str  # relative to the output folder
    stored: bool


class Ledger:
    """Every method is one transaction, and any thread may call it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = RLock()
        try:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=30.0)
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(SCHEMA)
        except sqlite3.Error as err:
            raise UserError(f"{path}: cannot be used ({err}); make room, or choose another --out") from None
        self.belongs("format", FORMAT, "was written by another version of reshift")

    def close(self) -> None:
        """Close the file; everything is on disk already."""
        with self._lock:
            self._db.close()

    def belongs(self, key: str, value: str, why: str) -> None:
        """A ledger is of one archive and one model: two could not be told apart."""
        with self._transaction() as db:
            db.execute("INSERT OR IGNORE INTO about VALUES (?, ?)", (key, value))
            if db.execute("SELECT value FROM about WHERE key = ?", (key,)).fetchone()[0] != value:
                raise UserError(f"{self.path}: {why}; choose another --out")

    def note(self, key: str, value: str) -> None:
        """Keep a fact about the runs."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", (key, value))

    def noted(self, key: str) -> str | None:
        """A fact that ``note`` kept."""
        found = self._all("SELECT value FROM about WHERE key = ?", key)
        return str(found[0][0]) if found else None

    def add_studies(self, uids: Iterable[str]) -> None:
        """Studies that have to be looked at, also those that were finished before: a series may have come since."""
        with self._transaction() as db:
            db.executemany(
                "INSERT INTO study VALUES (?, 'found', NULL) ON CONFLICT (uid) DO UPDATE SET state = 'found', reason = NULL",
                [(uid,) for uid in uids],
            )

    def end_study(self, uid: str, state: str, reason: str | None = None) -> None:
        """A study of which nothing is left to do ("done") or that ``failed``; failed ones are tried again by the next run."""
        with self._transaction() as db:
            db.execute("UPDATE study SET state = ?, reason = ? WHERE uid = ?", (state, reason, uid))

    def open_studies(self) -> list[str]:
        """Studies that an earlier run did not finish, oldest first."""
        return [row[0] for row in self._all("SELECT uid FROM study WHERE state != 'done' ORDER BY rowid")]

    def failed_studies(self) -> list[str]:
        """Why whole studies failed."""
        return [
            row[0] for row in self._all("SELECT reason FROM study WHERE state = 'failed' AND reason IS NOT NULL ORDER BY rowid")
        ]

    def add_series(self, study: str, uid: str, modality: str) -> Row:
        """A series that was found, or what is known of it already."""
        modality = modality_code(modality)
        name = series_name(study, uid, modality)
        with self._transaction() as db:
            db.execute(
                "INSERT OR IGNORE INTO series (name, study, uid, modality, state) VALUES (?, ?, ?, ?, 'found')",
                (name, study, uid, modality),
            )
        return self.series(name)

    def series(self, name: str) -> Row:
        """One series by its name."""
        return Row(*self._all("SELECT * FROM series WHERE name = ?", name)[0])

    def all_series(self, study: str | None = None) -> list[Row]:
        """All series, or those of a study, in the order in which they were found."""
        if study is None:
            return [Row(*row) for row in self._all("SELECT * FROM series ORDER BY rowid")]
        return [Row(*row) for row in self._all("SELECT * FROM series WHERE study = ? ORDER BY rowid", study)]

    def set_state(self, name: str, state: str, reason: str | None = None) -> None:
        """Move a series on."""
        with self._transaction() as db:
            _set(db, name, state=state, reason=reason)

    def fetched(self, name: str, instances: int, size: int) -> None:
        """All instances are in the spool."""
        with self._transaction() as db:
            _set(db, name, state="fetched", reason=None, instances=instances, bytes=size)

    def scored(self, name: str, score: float | None, flagged: int | None, results: Iterable[Result]) -> None:
        """The results lie in the output folder."""
        with self._transaction() as db:
            db.execute("DELETE FROM result WHERE name = ?", (name,))
            db.executemany("INSERT INTO result VALUES (?, ?, ?, ?, ?)", results)
            _set(db, name, state="scored", reason=None, score=score, flagged=flagged)

    def stored(self, sops: Iterable[str]) -> None:
        """The archive has these results."""
        with self._transaction() as db:
            db.executemany("UPDATE result SET stored = 1 WHERE sop = ?", [(sop,) for sop in sops])

    def results(self, name: str) -> list[Result]:
        """The results of a series."""
        rows = self._all("SELECT * FROM result WHERE name = ? ORDER BY path", name)
        return [Result(sop, name, series, path, bool(stored)) for sop, name, series, path, stored in rows]

    def is_result_series(self, uid: str) -> bool:
        """Whether a series in the archive is one of ours."""
        return bool(self._all("SELECT 1 FROM result WHERE series = ? LIMIT 1", uid))

    def count_stored(self) -> int:
        """How many results the archive has taken."""
        return int(self._all("SELECT count(*) FROM result WHERE stored")[0][0])

    def receive(self, sop: str, name: str) -> None:
        """An instance lies in the spool; its series has to be scored again if it was scored without it."""
        with self._transaction() as db:
            db.execute("INSERT OR IGNORE INTO received VALUES (?, ?)", (sop, name))
            _set(db, name, state="found", reason=None)

    def has_received(self, sop: str) -> str | None:
        """The series of an instance that was received before."""
        found = self._all("SELECT name FROM received WHERE sop = ?", sop)
        return str(found[0][0]) if found else None

    def count_received(self, name: str) -> int:
        """How many instances of a series were ever received."""
        return int(self._all("SELECT count(*) FROM received WHERE name = ?", name)[0][0])

    def _all(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._db.execute(query, values).fetchall()
            except sqlite3.Error as err:  # what a failed write left has to be undone first, which needs room
                raise UserError(f"{self.path}: could not be read ({err}); make room and run it again") from None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            except sqlite3.Error as err:
                self._roll_back()
                raise UserError(f"{self.path}: could not be written ({err}); make room and run it again") from None
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            with suppress(sqlite3.Error):  # the disk does not work; what was written does not count when it is opened again
                self._db.execute("ROLLBACK")


def _set(db: sqlite3.Connection, name: str, **values: object) -> None:
    columns = ", ".join(f"{column} = ?" for column in values)
    now = "changed = strftime('%Y-%m-%dT%H:%M:%SZ', 'now')"
    db.execute(f"UPDATE series SET {columns}, {now} WHERE name = ?", (*values.values(), name))  # nosec B608
