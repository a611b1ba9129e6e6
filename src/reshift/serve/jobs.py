"""Jobs in SQLite. A job that was accepted is here until it is deleted; whether it runs at the moment is not stored.

So a killed server finds its unfinished jobs ``queued`` again, and what scoring left on the disk says how far each had come.
"""

import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from reshift.errors import UserError

SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  kind TEXT NOT NULL,
  state TEXT NOT NULL,
  owner TEXT NOT NULL,
  model TEXT NOT NULL,
  path TEXT,
  options TEXT NOT NULL,
  cases INTEGER NOT NULL,
  failures INTEGER NOT NULL DEFAULT 0,
  bytes INTEGER NOT NULL,
  sha256 TEXT NOT NULL,
  key TEXT,
  created REAL NOT NULL,
  finished REAL,
  attempts INTEGER NOT NULL DEFAULT 0,
  error TEXT,
  notes TEXT NOT NULL DEFAULT '[]',
  UNIQUE (owner, key)
);
CREATE INDEX IF NOT EXISTS by_state ON jobs (state, number);
CREATE TABLE IF NOT EXISTS reviews (
  job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
  item TEXT NOT NULL,
  name TEXT NOT NULL,
  verdict TEXT NOT NULL,
  rating INTEGER,
  note TEXT NOT NULL,
  reviewer TEXT NOT NULL,
  time REAL NOT NULL,
  PRIMARY KEY (job, item)
);
"""
OPEN, ENDED = ("queued",), ("done", "failed", "cancelled")  # "deleting" is neither: its files are about to go


class Job(NamedTuple):
    """A row."""

    number: int
    id: str
    kind: str  # score or evaluate
    state: str  # queued, done, failed, cancelled, deleting
    owner: str
    model: str
    path: str | None  # below --data; None: the files were uploaded
    options: dict[str, Any]
    cases: int
    failures: int
    bytes: int
    sha256: str
    key: str | None
    created: float
    finished: float | None
    attempts: int  # by workers that were killed
    error: str | None
    notes: list[str]


class Database:
    """One connection for all threads, which take turns. A commit is on the disk when it returns."""

    def __init__(self, path: Path) -> None:
        self.lock = threading.RLock()
        try:
            self.connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self.connection.row_factory = sqlite3.Row
            path.chmod(0o600)
            for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "secure_delete = ON"):
                self.connection.execute(f"PRAGMA {pragma}")
            self.connection.executescript(SCHEMA)
        except sqlite3.Error as err:
            raise UserError(f"{path}: cannot be used ({err}); make room, or choose another --store") from None

    def close(self) -> None:
        """End the connection."""
        with self.lock:
            self.connection.close()

    def all(self, statement: str, *values: Any) -> list[sqlite3.Row]:
        """The rows of a query."""
        with self.lock:
            return self.connection.execute(statement, values).fetchall()

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """Change several things, all or none."""
        with self.lock:
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:  # SQLite may have ended it by itself
                    with suppress(sqlite3.Error):
                        self.connection.execute("ROLLBACK")
                raise


class Jobs:
    """What is known of every job."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def add(
        self, identifier: str, *, kind: str, owner: str, model: str, path: str | None, options: dict[str, Any], cases: int,
        size: int, sha256: str, key: str | None, notes: Sequence[str],
    ) -> Job:  # fmt: skip
        """Accept a job; if the owner has used the key before, return the job of then."""
        values = (
            identifier,
            kind,
            owner,
            model,
            path,
            json.dumps(options),
            cases,
            size,
            sha256,
            key,
            time.time(),
            json.dumps(notes),
        )
        with self.database.change() as change:
            before = self.with_key(owner, key)
            if before is not None:
                return before
            change.execute(
                "INSERT INTO jobs (id, kind, state, owner, model, path, options, cases, bytes, sha256, key, created, notes) "
                "VALUES (?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )
        found = self.get(identifier)
        assert found is not None
        return found

    def get(self, identifier: str) -> Job | None:
        """One job; None for one that is being deleted."""
        return _first(self.database.all("SELECT * FROM jobs WHERE id = ? AND state != 'deleting'", identifier))

    def with_key(self, owner: str, key: str | None) -> Job | None:
        """The job that was accepted with an idempotency key."""
        if key is None:
            return None
        rows = self.database.all("SELECT * FROM jobs WHERE owner = ? AND key = ? AND state != 'deleting'", owner, key)
        return _first(rows)

    def page(
        self, *, limit: int, before: int | None, states: Sequence[str], kinds: Sequence[str], without: Sequence[str] = ()
    ) -> list[Job]:
        """The newest jobs first."""
        marks, sorts, others = (", ".join("?" * len(chosen)) for chosen in (states, kinds, without))
        chosen = f"number < ? AND state IN ({marks}) AND kind IN ({sorts}) AND id NOT IN ({others})"
        query = f"SELECT * FROM jobs WHERE {chosen} ORDER BY number DESC LIMIT ?"  # nosec B608
        rows = self.database.all(query, before or 2**62, *states, *kinds, *without, limit)
        return [_job(row) for row in rows]

    def queued(self) -> list[Job]:
        """All that are not finished, the oldest first."""
        return [_job(row) for row in self.database.all("SELECT * FROM jobs WHERE state = 'queued' ORDER BY number")]

    def count(self) -> dict[str, int]:
        """How many jobs are in each state."""
        return {row["state"]: row["n"] for row in self.database.all("SELECT state, count(*) AS n FROM jobs GROUP BY state")}

    def identifiers(self) -> list[str]:
        """Of all jobs."""
        return [row["id"] for row in self.database.all("SELECT id FROM jobs")]

    def finish(
        self, identifier: str, state: str, error: str | None = None, *, failures: int = 0, cases: int | None = None,
        notes: Sequence[str] = (),
    ) -> bool:  # fmt: skip
        """End a queued job; False where it has ended before, or is being deleted."""
        with self.database.change() as change:
            done = change.execute(
                "UPDATE jobs SET state = ?, error = ?, failures = ?, cases = coalesce(?, cases), notes = ?, finished = ? "
                "WHERE id = ? AND state = 'queued'",
                (state, error, failures, cases, json.dumps(list(notes)), time.time(), identifier),
            )
            return done.rowcount == 1

    def count_attempt(self, identifier: str) -> int:
        """Its worker was killed; return how often that has happened."""
        with self.database.change() as change:
            change.execute("UPDATE jobs SET attempts = attempts + 1 WHERE id = ?", (identifier,))
        rows = self.database.all("SELECT attempts FROM jobs WHERE id = ?", identifier)
        return int(rows[0]["attempts"]) if rows else 0

    def begin_deletion(self, identifier: str) -> bool:
        """From now on nobody sees the job; False where there is none."""
        with self.database.change() as change:
            done = change.execute("UPDATE jobs SET state = 'deleting' WHERE id = ? AND state != 'deleting'", (identifier,))
            return done.rowcount == 1

    def being_deleted(self) -> list[str]:
        """Those whose deletion has begun."""
        return [row["id"] for row in self.database.all("SELECT id FROM jobs WHERE state = 'deleting'")]

    def remove(self, identifier: str) -> None:
        """Forget a job and its reviews, in the log of changes, too."""
        with self.database.lock:
            with self.database.change() as change:
                change.execute("DELETE FROM jobs WHERE id = ?", (identifier,))
            self.database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def expired(self, before: float) -> list[str]:
        """Finished before a time."""
        marks = ", ".join("?" * len(ENDED))
        query = f"SELECT id FROM jobs WHERE state IN ({marks}) AND finished < ?"  # nosec B608
        return [row["id"] for row in self.database.all(query, *ENDED, before)]


def _job(row: sqlite3.Row) -> Job:
    values = dict(row)
    values["options"], values["notes"] = json.loads(values["options"]), json.loads(values["notes"])
    return Job(**values)


def _first(rows: list[sqlite3.Row]) -> Job | None:
    return _job(rows[0]) if rows else None
