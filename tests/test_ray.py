"""``--engine ray`` on a real Ray with two workers: ``score`` and ``bench`` leave what local runs leave, whoever dies."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_suites import BRIGHTNESS, DAE, HEAD, IMPOSSIBLE, SWEEP, cells_in, results_in, write_suite
from dicom_files import enhanced, series, write
from guides import DOCS, commands
from helpers import Cli, Outcome, read_records, save, save_many
from processes import alive, meanwhile, wait_until
from ray_local import METHOD, local_ray
from volumes import save_head

from reshift.bench import ray_engine
from reshift.bench.cells import Spec, Task
from reshift.bench.plan import group_tasks, plan
from reshift.bench.suite import load_suite
from reshift.inference import score_ray
from reshift.system.ray_cluster import NOTES
from reshift.training.run import resolve, train_run

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes the way Linux shows them")
LONG = "updates = { epochs = 60 }"  # with a checkpoint after every step


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gate")


@pytest.fixture(scope="module", autouse=True)
def ray(gate: Path) -> Iterator[Any]:
    with local_ray(gate) as ray:
        yield ray


@pytest.fixture(scope="module")
def gated_bundle(tmp_path_factory: pytest.TempPathFactory, folder_of_images: Path) -> Path:
    config = resolve(METHOD, "paper", [{"data": {"size": 32}, "calibrate": {"features": "off"}}])
    return train_run(config, folder_of_images, tmp_path_factory.mktemp("gated"))


# ---- score ---------------------------------------------------------------------------------------------------------------


def everything(root: Path) -> Path:
    """Pictures, two of them bad, a volume, a series with a slice missing, and a DICOM file of many frames."""
    save_many(root, 20)
    (root / "003.png").write_bytes(b"damaged")
    (root / "017.png").write_bytes(b"")
    save_head(root / "head.nii.gz")
    series(root / "scan", count=7)
    sorted((root / "scan").iterdir())[1].unlink()
    write(enhanced(SeriesInstanceUID="1.2.826.0.1.3680043.8.498.99"), root / "frames" / "frames.dcm")
    return root


def files(out: Path) -> dict[str, bytes]:
    """All that was written besides the records, to the last bit."""
    paths = (path for path in out.rglob("*") if path.is_file() and path.name != "scores.jsonl")
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in paths}


def warnings(done: Outcome) -> list[str]:
    return [line for line in done.err.splitlines() if not line.startswith("scoring: ")]


def assert_same(out: Path, local: Path) -> None:
    assert read_records(out) == read_records(local)
    assert files(out) == files(local)


def test_the_same_scores_as_a_local_run(run_cli: Cli, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything(tmp_path / "in")
    monkeypatch.chdir(tmp_path)
    local = run_cli("score", tiny_bundle, "in", "--out", "local")
    done = run_cli("score", tiny_bundle, "in", "--out", "out", "--engine", "ray", "--workers", "2")
    assert (done.code, local.code) == (3, 3), done
    assert done.out == local.out.replace("local", "out")
    assert sorted(warnings(done)) == sorted(warnings(local))
    assert any("is one missing?" in line for line in warnings(done))
    assert len(read_records(tmp_path / "out")) > 30
    assert_same(tmp_path / "out", tmp_path / "local")


def test_a_worker_killed_while_scoring(run_cli: Cli, gated_bundle: Path, gate: Path, tmp_path: Path) -> None:
    """And what was finished before is not touched."""
    images, out = save_many(tmp_path / "in", 24), tmp_path / "out"
    (images / "005.png").write_bytes(b"damaged")
    assert run_cli("score", gated_bundle, images / "000.png", "--out", out).code == 0
    before = (out / "maps" / "000.png.npy").stat().st_mtime_ns
    killed: list[int] = []

    def kill() -> None:
        wait_until(lambda: len(list(gate.iterdir())) == 2)  # both have begun, and neither can go on
        killed.append(int(min(path.name for path in gate.iterdir())))
        os.kill(killed[0], signal.SIGKILL)
        wait_until(lambda: not alive(killed[0]))
        (gate / "open").touch()

    with meanwhile(kill):
        assert run_cli("score", gated_bundle, images, "--out", out, "--engine", "ray", "--workers", "2").code == 3
    assert len({path.name for path in gate.iterdir()} - {"open"}) >= 3  # another process took over
    local = tmp_path / "local"
    assert run_cli("score", gated_bundle, images / "000.png", "--out", local).code == 0
    assert run_cli("score", gated_bundle, images, "--out", local).code == 3
    assert_same(out, local)
    assert (out / "maps" / "000.png.npy").stat().st_mtime_ns == before


def test_a_file_that_kills_its_worker(
    run_cli: Cli, gated_bundle: Path, gate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is recorded as failed, and costs no other file its score."""
    (gate / "open").touch()
    images = save_many(tmp_path / "in", 8)
    fatal = np.full((24, 32), 255, dtype=np.uint8)
    fatal[0, 0] = 0
    save(fatal, images / "002.png")
    monkeypatch.setattr(score_ray, "TRIES", 1)
    done = run_cli("score", gated_bundle, images, "--out", tmp_path / "out", "--engine", "ray", "--workers", "1")
    assert done.code == 3
    bad = read_records(tmp_path / "out")[2]
    assert bad["error"] == f"{images / '002.png'}: its worker died 1 times; out of memory, or a file that a library crashes on?"
    run_cli("score", gated_bundle, images, "--out", tmp_path / "local")
    others = [read_records(tmp_path / name) for name in ("out", "local")]
    assert others[0][:2] + others[0][3:] == others[1][:2] + others[1][3:]


def test_a_mistake_in_a_worker_is_one_line(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    """Maps that cannot be written; what was finished before stays, and the next run continues there."""
    images, out = save_many(tmp_path / "in", 6), tmp_path / "out"
    assert run_cli("score", tiny_bundle, images / "000.png", "--out", out).code == 0
    (out / "maps" / "in").write_text("in the way")
    done = run_cli("score", tiny_bundle, images, "--out", out, "--engine", "ray", "--workers", "1")
    last = done.err.splitlines()[-1]
    assert (done.code, "Traceback" in done.err) == (2, False), done
    assert last.startswith(f"reshift: {out / 'maps' / 'in'}")
    assert "could not be written" in last
    assert not (out / NOTES).exists()
    (out / "maps" / "in").unlink()
    assert run_cli("score", tiny_bundle, images, "--out", out).code == 0
    assert len(read_records(out)) == 6


# ---- bench ---------------------------------------------------------------------------------------------------------------


def started_by(attempts: Path) -> list[int]:
    """Process ids of the workers that started a task."""
    try:
        return [int(line.split()[1]) for line in attempts.read_text().splitlines()]
    except FileNotFoundError:
        return []


@pytest.mark.usefixtures("in_process")  # the local run
def test_the_same_cells_as_a_local_run_although_a_worker_is_killed(run_cli: Cli, tmp_path: Path) -> None:
    sweep = SWEEP.replace("updates = { epochs = 6 }", LONG)
    suite, out, local = write_suite(tmp_path, HEAD, sweep, IMPOSSIBLE), tmp_path / "out", tmp_path / "local"
    out.mkdir()
    [long] = [task for task in group_tasks(plan(load_suite(suite), None, out).specs, out) if len(task.cells) == 2]
    attempts = out / NOTES / f"task-{long.cells[0].model}"

    def kill() -> None:
        wait_until((long.folder / "checkpoint.safetensors").exists)
        [worker] = started_by(attempts)
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: len(started_by(attempts)) == 2)  # another worker continues

    with meanwhile(kill):
        found = run_cli("bench", suite, "--out", out, "--engine", "ray", "--workers", "2", "--device", "cpu")
    assert found.code == 3, found  # for the impossible cell
    assert run_cli("bench", suite, "--out", local, "--device", "cpu").code == 3
    assert results_in(out) == results_in(local)
    cells = {name: cell["status"] for name, cell in cells_in(out).items()}
    assert sorted(cells.values()) == ["done", "done", "failed"]
    assert {name: cell["error"] for name, cell in cells_in(out).items()} == {
        name: cell["error"] for name, cell in cells_in(local).items()
    }
    assert not (out / NOTES).exists()


def test_a_task_that_kills_every_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """If it dies in training, all its cells are recorded as failed; other tasks are run."""
    suite, out = write_suite(tmp_path, HEAD, BRIGHTNESS, DAE), tmp_path / "out"
    out.mkdir()
    doomed, good = sorted(
        group_tasks(plan(load_suite(suite), None, out).specs, out), key=lambda task: task.cells[0].method, reverse=True
    )
    heard: list[tuple[str, str]] = []
    monkeypatch.setattr(ray_engine, "_work", _deadly)
    monkeypatch.setattr(ray_engine, "ATTEMPTS", 2)
    ray_engine.run_ray([doomed, good], 2, "cpu", lambda event: heard.append((event.kind, event.cell)))
    assert ("failed", doomed.cells[0].name) in heard
    assert ("done", good.cells[0].name) in heard
    cells = cells_in(out)
    assert {cell["method"]: cell["status"] for cell in cells.values()} == {"dae": "failed", "brightness": "done"}
    assert "its Ray worker died 2 times" in cells[doomed.cells[0].file]["error"]
    assert "died" not in "".join(capfd.readouterr())  # Ray prints nothing


_real = ray_engine._work


def _deadly(task: Task, *rest: Any) -> str:
    spec: Spec = task.cells[0]
    if spec.method == "dae":
        os.kill(os.getpid(), signal.SIGKILL)
    return _real(task, *rest)


# ---- the guide -----------------------------------------------------------------------------------------------------------


def test_every_command_of_the_guide_runs(
    run_cli: Cli, tiny_bundle: Path, folder_of_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/first").mkdir(parents=True)
    Path("runs/first/bundle").symlink_to(tiny_bundle)
    Path("new").symlink_to(folder_of_images)
    write_suite(tmp_path, HEAD, BRIGHTNESS).rename("mine.toml")
    found = commands(DOCS / "guides" / "cluster.md")
    assert [program for program, *_ in found] == ["reshift", "reshift"]
    for _, *args in found:
        done = run_cli(*args)
        assert done.code == 0, done
    assert len(read_records(tmp_path / "runs" / "cluster" / "scores")) == 12
    assert len(cells_in(tmp_path / "runs" / "cluster" / "tables")) == 1
