"""What ``--engine ray`` is made of, without Ray: refusals, shares and chunks, and a worker that sees another folder."""

import json
import os
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from dicom_files import series
from helpers import Cli, refused, save_many
from hypothesis import given
from hypothesis import strategies as st

from reshift.data.read import Input
from reshift.errors import UserError
from reshift.inference import score_ray
from reshift.inference.inputs import ScoreCase, find_cases
from reshift.inference.model import GPU_BATCH
from reshift.inference.score_ray import CHUNKS, Setup, Worker, chunk_size, packed, unpacked
from reshift.system import ray_cluster
from reshift.system.ray_cluster import Share, SharedFolder, count_attempt, share, shared_folder

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="reshift[ray] is not installed")
CPU_NODES = [{"CPU": 4.0}, {"CPU": 8.0}]
GPU_NODES = [{"CPU": 4.0, "GPU": 2.0}, {"CPU": 8.0}]


@pytest.fixture(autouse=True)
def no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.fixture
def score(run_cli: Cli, tiny_bundle: Path, folder_of_images: Path, tmp_path: Path) -> Cli:
    return lambda *more: run_cli("score", tiny_bundle, folder_of_images, "--out", tmp_path / "out", *more)


def test_without_ray(score: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "find_spec", lambda _name: None)
    refused(score("--engine", "ray"), "pip install 'reshift[ray]'")


@needs_ray
def test_options_that_do_not_go_together(score: Cli) -> None:
    refused(score("--engine", "spark"), "'spark'", "local or ray")
    refused(score("--workers", "2"), "--engine ray")
    refused(score("--engine", "ray", "--device", "cuda:1"), "cuda:1", "its own GPU")


@needs_ray
def test_a_cluster_that_is_not_there(score: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "REACH_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as closed:
        addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in (silent, closed)]
        closed.close()
        for address in (*addresses, "ray://127.0.0.1:10001", "nowhere"):
            monkeypatch.setenv("RAY_ADDRESS", address)
            refused(score("--engine", "ray"), f"RAY_ADDRESS={address}")


def test_an_archive_is_not_unpacked_for_a_cluster(
    run_cli: Cli, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    done = run_cli("score", tiny_bundle, tmp_path / "images.zip", "--out", tmp_path / "out", "--engine", "ray")
    refused(done, "images.zip", "unpack it", "share")


@pytest.mark.parametrize(
    ("nodes", "workers", "device", "expected"),
    [
        (CPU_NODES, None, "auto", Share(12, 1, 0)),
        (CPU_NODES, 2, "auto", Share(2, 4, 0)),
        (CPU_NODES, 1, "cpu", Share(1, 8, 0)),  # no node has twelve
        (CPU_NODES, 40, "cpu", Share(40, 1, 0)),  # the others wait, or the cluster grows
        (GPU_NODES, None, "auto", Share(2, 1, 1)),
        (GPU_NODES, 1, "cuda", Share(1, 1, 1)),
        (GPU_NODES, 5, "auto", Share(5, 1, 1 / 3)),  # three on a card at most
        (GPU_NODES, None, "cpu", Share(12, 1, 0)),
    ],
)  # fmt: skip
def test_shares(nodes: list[dict[str, float]], workers: int | None, device: str, expected: Share) -> None:
    assert share(nodes, workers, device) == expected


def test_no_card_in_the_cluster() -> None:
    with pytest.raises(UserError, match="the Ray cluster has no GPUs; use auto or cpu"):
        share(CPU_NODES, None, "cuda")


@given(st.integers(1, 10**8), st.integers(1, 512), st.booleans())
def test_chunks_are_whole_batches_and_not_too_many(cases: int, workers: int, gpu: bool) -> None:
    size = chunk_size(cases, Share(workers, 1, int(gpu)))
    assert size >= 1
    assert size % (GPU_BATCH if gpu else 1) == 0
    assert cases / size <= CHUNKS


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 9))
def test_chunks_hold_everything_in_order(volumes: list[bool], size: int) -> None:
    cases = [ScoreCase(Input(Path(f"{i}.nii" if volume else f"{i}.png")), str(i), str(i)) for i, volume in enumerate(volumes)]
    chunks = list(score_ray._chunks(range(len(cases)), cases, size))
    assert [i for chunk in chunks for i in chunk] == list(range(len(cases)))
    for chunk in chunks:
        assert len(chunk) <= (1 if volumes[chunk[0]] else size)
        assert len({volumes[i] for i in chunk}) == 1


def test_a_case_travels_as_text(tmp_path: Path) -> None:
    series(tmp_path / "in" / "scan")
    save_many(tmp_path / "in", 2)
    odd = ScoreCase(Input(Path(os.fsdecode(b"caf\xe9.png"))), os.fsdecode(b"caf\xe9.png"), "caf")  # no Unicode
    cases = [*find_cases([tmp_path / "in"]), odd]
    assert any(case.input.series for case in cases)
    assert [unpacked(*json.loads(json.dumps(packed(case)))) for case in cases] == cases


def answers(setup: Setup, cases: list[ScoreCase]) -> list[dict[str, Any]]:
    pyarrow = pytest.importorskip("pyarrow", reason="reshift[ray] is not installed")
    table = pyarrow.table({"case": [json.dumps([i, *packed(case)]) for i, case in enumerate(cases)]})
    return [json.loads(text) for text in Worker(setup, alone=False)(table).column("answer").to_pylist()]


def test_a_worker_that_sees_another_folder(
    tiny_bundle: Path, folder_of_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a worker changes it
    cases = find_cases([folder_of_images])
    with shared_folder(tmp_path / "out") as mine:
        good = Setup(tiny_bundle, mine, False, "cpu", False, 3, "")
        assert [answer["index"] for answer in answers(good, cases)] == list(range(len(cases)))
        for shared, word in (
            (mine._replace(token="another"), "is not the same folder on node"),
            (SharedFolder(tmp_path, mine.token, tmp_path), "is not the same folder on node"),
            (mine._replace(version="0.0.1"), "the driver 0.0.1; install the same on every node"),
        ):
            assert [word in answer["mistake"] for answer in answers(good._replace(shared=shared), cases)] == [True]
        elsewhere = mine._replace(home=tmp_path / "nowhere")
        assert "index" in answers(good._replace(shared=elsewhere), cases)[0]  # absolute names do not need it
        lost = answers(good._replace(shared=elsewhere, relative=True), cases)
        assert ["absolute paths" in answer["mistake"] for answer in lost] == [True]
        (mine.notes / "chunk-0").write_text("a\nb\nc\n")  # three have died here
        assert answers(good, cases) == [{"given up": 0}]
    assert not mine.notes.exists()


def test_what_was_scored_before_a_crash_is_kept(
    tiny_bundle: Path, folder_of_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cases = find_cases([folder_of_images])[:3]
    for error, kind in ((UserError("disk full"), "mistake"), (RuntimeError("no such kernel"), "crash")):

        def broken(_run: Any, todo: list[ScoreCase], error: Exception = error) -> Any:
            yield todo[0], []
            raise error

        monkeypatch.setattr(score_ray, "score_cases", broken)
        with shared_folder(tmp_path / "out") as mine:
            first, last = answers(Setup(tiny_bundle, mine, False, "cpu", False, 3, ""), cases)
        assert first["index"] == 0
        assert str(error) in last[kind]


def test_tries_are_counted(tmp_path: Path) -> None:
    assert [count_attempt(tmp_path / "mark") for _ in range(3)] == [1, 2, 3]
    assert str(os.getpid()) in (tmp_path / "mark").read_text()
