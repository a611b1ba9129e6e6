"""``reshift serve`` in the rounds: uploads to a server that meets a fault, then a server without one over the same store.

A round is lost if an accepted job is not known afterwards, has not ended, or has other results than those of an unbroken run.
"""

import io
import json
import os
import signal
import sqlite3
import time
import zipfile
from contextlib import closing, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from helpers import assert_nothing_half_written

STUCK = 60.0  # seconds until the jobs have to end
GENTLE = ("kill", "clock")  # faults that may cost no job: what was accepted ends as if nothing had happened
LASTING = ("full", "fsync", "read-only")  # while they last, a job may have to wait for its end
WAIT = 8.0  # seconds for it then


class Jobs(NamedTuple):
    """What clients saw of one server."""

    answers: list[tuple[int, str]]  # to each upload: status, and the job's id or the reason
    states: dict[str, tuple[str, str | None, int]]  # of jobs: state, error, failed cases
    records: dict[str, dict[str, Any]]  # of jobs that are done: the score of each input


# ---- in the child: worker and readers are forked, not started anew, which would take seconds ---------------------------------


class Forking:
    """As much of a multiprocessing context as the server uses."""

    fork = get_context("fork")
    Pipe = staticmethod(fork.Pipe)

    @classmethod
    def Process(cls, target: Any, args: Any, **options: Any) -> Any:  # noqa: N802 (multiprocessing's name)
        """A process that holds nothing of the server but its pipe: it has to notice when the server is killed."""
        return cls.fork.Process(target=_alone, args=(target, args), **options)


def _alone(target: Any, args: Any) -> None:
    kept = {0, 1, 2, args[0].fileno()}
    for number in {int(path.name) for path in Path("/proc/self/fd").iterdir()} - kept:
        with suppress(OSError):  # the one that listed them
            os.close(number)
    target(*args)


def fork_processes() -> None:
    """For this process and those below it."""
    import reshift.serve.dispatch
    import reshift.system.workers

    for module in (reshift.serve.dispatch, reshift.system.workers):
        vars(module)["get_context"] = lambda _kind: Forking


# ---- beside it: the clients ------------------------------------------------------------------------------------------------


def drive(child: int, said: int, uploads: list[str], known: list[str], fault: str) -> Jobs:
    """Send every upload, wait until they and the ``known`` jobs have ended, and end the server."""
    seen = Jobs([], {}, {})
    url = _address(child, said)
    if url is not None:
        with httpx.Client(base_url=url, timeout=STUCK) as http, suppress(httpx.TransportError):  # where it is killed
            _talk(http, seen, uploads, known, WAIT if fault in LASTING else STUCK)
    if _runs(child):
        os.kill(child, signal.SIGTERM)
    return seen


def _talk(http: httpx.Client, seen: Jobs, uploads: list[str], known: list[str], seconds: float) -> None:
    for path in uploads:
        answer = http.post("/api/v1/jobs", files={"files": (Path(path).name, Path(path).read_bytes())})
        body = answer.json()
        seen.answers.append((answer.status_code, body["id"] if answer.status_code == 201 else body["detail"]))
    limit = time.monotonic() + seconds
    for job in [*known, *(text for status, text in seen.answers if status == 201)]:
        seen.states[job] = "unknown", None, 0
        while time.monotonic() < limit:
            answer = http.get(f"/api/v1/jobs/{job}", params={"wait": 4})
            if answer.status_code != 200:
                break
            found = answer.json()
            seen.states[job] = found["state"], found["error"], found["failures"]
            if found["state"] not in ("queued", "running"):
                break
        if seen.states[job][0] == "done":
            seen.records[job] = _scores(http.get(f"/api/v1/jobs/{job}/scores.jsonl"))


def _scores(answer: httpx.Response) -> dict[str, Any]:
    """Input → score; what is not so is kept as it is, and equals no unbroken run's."""
    if answer.status_code != 200:
        return {"refused": answer.json()["detail"]}
    lines = [json.loads(line) for line in answer.text.splitlines()]
    found = {line["input"]: line["score"] for line in lines}
    return found if len(found) == len(lines) else {"twice": lines}


def _address(child: int, said: int) -> str | None:
    """Where the server listens; None if it ended before."""
    while _runs(child):
        text = os.pread(said, 2**16, 0).decode(errors="replace")
        if "http://" in text and "/ (for" in text:
            return text[text.index("http://") :].split()[0]
        time.sleep(0.01)
    return None


def _runs(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


# ---- a round ---------------------------------------------------------------------------------------------------------------


def write_uploads(images: Path, folder: Path) -> list[Path]:
    """An image, and a zip of four."""
    folder.mkdir()
    first, *others = sorted(images.iterdir())[:5]
    (folder / first.name).write_bytes(first.read_bytes())
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in others:
            archive.write(path, path.name)
    (folder / "some.zip").write_bytes(buffer.getvalue())
    return sorted(folder.iterdir())


def results(seen: Jobs) -> list[dict[str, Any]]:
    """What an unbroken server makes of the uploads, in their order."""
    assert [status for status, _ in seen.answers] == [201] * len(seen.answers), seen
    assert all(tuple(state) == ("done", None, 0) for state in seen.states.values()), seen
    return [seen.records[job] for _, job in seen.answers]


def check(where: str, fault: str, first: Jobs, again: Jobs, wanted: list[dict[str, Any]], store: Path) -> str:
    """Compare what two servers said of the jobs with an unbroken run; a word for how the first one ended."""
    accepted = {text: wanted[i] for i, (status, text) in enumerate(first.answers) if status == 201}
    refused = [text for status, text in first.answers if status != 201]
    assert all(text and len(text.splitlines()) == 1 for text in refused), f"{where}: {refused}"
    unfinished = [job for job, (state, _, _) in first.states.items() if state in ("queued", "running")]
    assert not unfinished or fault in LASTING, f"{where}: {unfinished} did not end"
    sent = {text: wanted[i] for i, (_, text) in enumerate(again.answers)}  # all once more: the next server works as ever
    failures = 0
    for job, expected in {**accepted, **sent}.items():
        state, error, failed = again.states[job]
        if state == "done" and not failed:
            assert again.records[job] == expected, f"{where}: {again.records[job]} instead of {expected}"
            continue
        assert job in accepted, f"{where}: a job without a fault ended as {again.states[job]}"
        assert fault not in GENTLE, f"{where}: {job} ended as {again.states[job]}"
        assert state == "done" or (state == "failed" and error and len(error.splitlines()) == 1), f"{where}: {again.states}"
        failures += 1
    _check_store(where, store, {*accepted, *sent})
    return "one line" if refused else "a failed case" if failures else "later" if unfinished else "complete"


def _check_store(where: str, store: Path, jobs: set[str]) -> None:
    """Nothing half-written, nothing that no row knows."""
    with closing(sqlite3.connect(store / "jobs.sqlite")) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",), where
        rows = {row[0] for row in database.execute("SELECT id FROM jobs")}
    assert jobs <= rows, f"{where}: lost {jobs - rows}"  # one more may be there: it was accepted, and nobody heard of it
    assert {path.name for path in (store / "jobs").iterdir()} == rows, where
    assert not list((store / "incoming").iterdir()), where
    assert_nothing_half_written(store / "jobs")
