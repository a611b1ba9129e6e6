"""Nothing accepted is lost: kills of the server and of its worker, full disks, damaged models, and too much at once."""

import io
import json
import os
import shutil
import signal
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from helpers import assert_nothing_half_written, read_records, refused, run_process
from PIL import Image
from processes import alive, descendants, wait_until
from servers import Server, launch, serving
from test_serve import png


@pytest.fixture
def models(tiny_bundle: Path, tmp_path: Path) -> Path:
    shutil.copytree(tiny_bundle, tmp_path / "models" / "tiny")
    return tmp_path / "models"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home") / "store"


@pytest.fixture(scope="module")
def server(tiny_bundle: Path, store: Path) -> Iterator[Server]:
    with serving("--models", tiny_bundle, "--store", store, "--max-queued", 2) as found:
        yield found


def scoring_process(server: Server) -> int:
    """The process that has torch loaded; 0 if there is none at the moment."""
    with suppress(OSError):
        for process in descendants({server.process.pid}):
            if "libtorch" in Path(f"/proc/{process}/maps").read_text():
                return process
    return 0


def many(count: int, seed: int = 0) -> list[tuple[str, bytes]]:
    return [(f"{i:03d}.png", png(seed + i)) for i in range(count)]


def smooth_png(side: int) -> bytes:
    """A picture of few bytes."""
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((side, side)).save(buffer, "png")
    return buffer.getvalue()


def zipped(files: list[tuple[str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files:
            archive.writestr(name, content)
    return buffer.getvalue()


def test_a_killed_server_finishes_every_job_exactly_once(models: Path, tmp_path: Path) -> None:
    store, options = tmp_path / "store", ("--models", models, "--store", tmp_path / "store")
    server = launch(*options)
    server.wait_ready()
    jobs = [server.submit(("many.zip", zipped(many(300, 300 * i)))) for i in range(3)]
    wait_until(lambda: any((store / "jobs" / job / "results" / "scores.jsonl").exists() for job in jobs))
    children = descendants({server.process.pid})
    server.kill()
    wait_until(lambda: not any(alive(child) for child in children))
    (store / "incoming" / "0123456789abcdef").mkdir()  # an upload that never ended
    (store / "jobs" / "fedcba9876543210").mkdir()  # killed between the rename and the row
    with serving(*options) as server:
        for job in jobs:
            done = server.ended(job)
            assert (done["state"], done["failures"]) == ("done", 0)
            lines = [json.loads(line) for line in (store / "jobs" / job / "results" / "scores.jsonl").read_text().splitlines()]
            assert len(lines) == len({line["input"] for line in lines}) == 300
        refused(run_process("serve", *options, "--port", 0), store, "is writing there")
        assert_nothing_half_written(store / "jobs")
        assert not list((store / "incoming").iterdir())
        assert sorted(path.name for path in (store / "jobs").iterdir()) == sorted(jobs)
    ended = [json.loads(line) for line in (store / "audit.jsonl").read_text().splitlines()]
    assert sorted(line["job"] for line in ended if line["what"] == "job done") == sorted(jobs)


def test_a_killed_worker_is_replaced_and_its_job_tried_once_more(server: Server) -> None:
    for expected in ("done", "failed"):
        job = server.submit(("many.zip", zipped(many(900))))
        for _ in range(1 if expected == "done" else 2):
            wait_until(lambda job=job: server.get(f"/jobs/{job}")["state"] == "running")  # type: ignore[misc]
            old = scoring_process(server)
            assert old > 1
            os.kill(old, signal.SIGKILL)
            wait_until(lambda old=old: scoring_process(server) not in (0, old))  # type: ignore[misc]
        done = server.ended(job)
        assert done["state"] == expected, done
        assert done["error"] is None or "killed twice" in done["error"]
    assert server.ended(server.submit(("a.png", png())))["state"] == "done"
    assert "reshift_worker_deaths_total 3" in server.http.get("/metrics").text


def test_cancelled_and_deleted_while_running(server: Server, store: Path) -> None:
    for end in ("cancel", "delete"):
        job = server.submit(("many.zip", zipped(many(900))))
        results = store / "jobs" / job / "results"
        wait_until((results / "scores.jsonl").exists)
        if end == "delete":
            assert server.http.delete(f"/api/v1/jobs/{job}").status_code == 204
            assert not results.parent.exists()
        else:
            answer = server.http.post(f"/api/v1/jobs/{job}/cancel")
            assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
            assert 0 < answer.json()["done"] == len(read_records(results)) < 900
            assert server.http.post(f"/api/v1/jobs/{job}/cancel").status_code == 409
    assert server.ended(server.submit(("a.png", png())))["state"] == "done"
    assert not results.parent.exists()


def test_a_model_that_does_not_load_fails_its_jobs_only(models: Path, tmp_path: Path) -> None:
    shutil.copytree(models / "tiny", models / "broken")
    (models / "broken" / "model.safetensors").write_bytes(b"damaged")
    shutil.copytree(models / "tiny", models / "unreadable")
    (models / "unreadable" / "config.json").write_text("{")
    with serving("--models", models, "--store", tmp_path / "store", "--keep", "2s") as server:
        assert "say which model" in server.post(("a.png", png())).json()["detail"]
        assert "config.json is damaged" in server.post(("a.png", png()), model="unreadable").json()["detail"]
        failed = server.ended(server.submit(("a.png", png()), model="broken"))
        assert (failed["state"], "model.safetensors: damaged" in failed["error"]) == ("failed", True)
        assert str(tmp_path) not in failed["error"]
        good = server.submit(("a.png", png()), model="tiny")
        assert server.ended(good)["state"] == "done"
        wait_until(lambda: not list((tmp_path / "store" / "jobs").iterdir()))  # --keep
        assert server.get("/jobs")["items"] == []


def test_too_much_is_refused_with_a_time_to_come_back(server: Server) -> None:
    worker = scoring_process(server)
    assert worker > 1
    os.kill(worker, signal.SIGSTOP)  # what it was given stays there, and the rest waits
    try:
        answers = [server.post(("a.png", png(i))) for i in range(8)]
    finally:
        os.kill(worker, signal.SIGCONT)
    assert [answer.status_code for answer in answers] == [201] * 6 + [429] * 2  # four run, two wait
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers[6:])
    assert {server.ended(answer.json()["id"])["state"] for answer in answers[:6]} == {"done"}


def test_a_full_disk_is_no_mistake_of_the_server(models: Path, tmp_path: Path) -> None:
    limit = "import resource, signal; resource.setrlimit(resource.RLIMIT_FSIZE, (200000, 200000))"
    ignored = f"{limit}; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)"
    with serving("--models", models, "--store", tmp_path / "store", "--rate", 1, prelude=ignored) as server:
        answer = server.post(("a.png", png(0, 600, 600)))
        assert (answer.status_code, "disk is full" in answer.json()["detail"]) == (507, True)
        assert not list((tmp_path / "store" / "incoming").iterdir())
        failed = server.ended(server.submit(("smooth.png", smooth_png(600))))  # its heat-map is larger than the image
        assert (failed["state"], failed["failures"]) in (("failed", 0), ("done", 1)), failed
        said = failed["error"] or server.cases(failed["id"])[0]["error"]
        assert "File too large" in said, said
        assert server.http.get("/health").status_code == 200
        for _ in range(100):  # five at once, then one a second
            answer = server.http.get("/api/v1/session")
            if answer.status_code != 200:
                break
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
