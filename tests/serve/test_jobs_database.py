"""The database of a server goes on after a commit that failed."""

import sqlite3
from pathlib import Path

import pytest

from reshift.errors import UserError
from reshift.serve.jobs import Database, Jobs


def fill(jobs: Jobs, first: int, count: int) -> None:
    for number in range(first, first + count):
        jobs.add(
            f"{number:016x}", kind="score", owner="ann", model="m", path=None, options={}, cases=1, size=1, sha256="0", key=None,
            notes=["x" * 500],
        )  # fmt: skip


def test_a_commit_that_fails_leaves_no_open_transaction(tmp_path: Path) -> None:
    database = Database(tmp_path / "jobs.sqlite")
    jobs = Jobs(database)
    database.connection.execute("PRAGMA max_page_count = 1")  # it becomes the present size: the disk is full
    with pytest.raises(sqlite3.OperationalError, match="full"):
        fill(jobs, 0, 1000)
    assert not database.connection.in_transaction
    known = len(jobs.queued())
    database.connection.execute("PRAGMA max_page_count = 100000")
    fill(jobs, 2000, 1)
    assert len(jobs.queued()) == known + 1
    database.close()


def test_a_database_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "jobs.sqlite").write_bytes(b"no database at all" * 99)
    with pytest.raises(UserError, match=r"jobs.sqlite: cannot be used \(file is not a database\)"):
        Database(tmp_path / "jobs.sqlite")
