"""``score --engine ray`` on a real Ray with two workers: what comes out is what a local run leaves, whoever dies on the way."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dicom_files import enhanced, series, write
from helpers import Cli, Outcome, read_records, save, save_many
from processes import alive, meanwhile, wait_until
from ray_local import METHOD, local_ray
from volumes import save_head

from reshift.inference import score_ray
from reshift.system.ray_cluster import NOTES
from reshift.training.run import resolve, train_run

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes the way Linux shows them")


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


def test_as_a_local_run(run_cli: Cli, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_worker_killed_at_work(run_cli: Cli, gated_bundle: Path, gate: Path, tmp_path: Path) -> None:
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
