"""Pictures read and written by other processes: the same files, nothing lost, and nobody left behind."""

import errno
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Cli, assert_nothing_half_written, read_records, refused, save_many
from numpy.typing import NDArray
from pydicom.data import get_testdata_file

from reshift.config import DataConfig
from reshift.errors import UserError
from reshift.inference import score_hands
from reshift.inference.score_hands import Processes, Threads, hands
from reshift.inference.score_helper import Picture
from reshift.inference.score_picture import Seen, Task
from reshift.system import workers as helping
from reshift.system.messages import receive, send
from reshift.system.workers import VARIABLE, Helper, Said


@pytest.fixture
def two_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2")


def task(out: Path) -> Task:
    return Task(DataConfig(size=32), out, None, dicom=False)


def results(out: Path) -> tuple[list[dict[str, object]], dict[str, bytes]]:
    records = [{name: value for name, value in record.items() if name != "seconds"} for record in read_records(out)]
    return records, {
        str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*.*")) if path.suffix != ".jsonl"
    }


def test_the_same_files_as_by_threads(
    run_cli: Cli, tiny_bundle: Path, folder_of_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for helpers in ("0", "3"):
        monkeypatch.setenv(VARIABLE, helpers)
        assert run_cli("score", tiny_bundle, folder_of_images, "--out", tmp_path / helpers).code == 0
    assert results(tmp_path / "3") == results(tmp_path / "0")
    assert len(read_records(tmp_path / "3")) == 12


@pytest.mark.usefixtures("two_helpers")
def test_a_bad_file_is_one_bad_record(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    images, out = save_many(tmp_path / "in", 5), tmp_path / "out"
    (images / "003.png").write_bytes(b"no picture")
    assert run_cli("score", tiny_bundle, images, "--out", out).code == 3
    errors = [record["error"] for record in read_records(out)]
    assert [error is not None for error in errors] == [False, False, False, True, False]
    assert "003.png" in str(errors[3])


def test_batches_keep_their_order_whatever_is_in_them(tmp_path: Path) -> None:
    images = save_many(tmp_path / "in", 7)
    (images / "002.png").write_bytes(b"")
    pictures = [Picture(path, path.name) for path in sorted(images.glob("*.png"))]
    with Processes(task(tmp_path), 3, 2) as team, Threads(task(tmp_path), 3) as other:
        found, expected = ([item for batch in each.read(pictures) for item in batch] for each in (team, other))
        assert set(team.where) == {path.name for path, _ in pictures} - {"002.png"}  # who writes what; nobody the bad one
    assert [picture for picture, _ in found] == pictures
    for (_, mine), (_, theirs) in zip(found, expected, strict=True):
        assert isinstance(mine, UserError) == isinstance(theirs, UserError)
        assert str(mine) == str(theirs) if isinstance(mine, UserError) else np.array_equal(mine, theirs)  # type: ignore[arg-type]


def test_dicom_pictures_go_the_same_way(run_cli: Cli, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = tmp_path / "in"
    images.mkdir()
    for i, name in enumerate(("CT_small.dcm", "MR_small_jp2klossless.dcm")):  # the second is decompressed by a process of its own
        (images / f"{i}.dcm").write_bytes(Path(str(get_testdata_file(name))).read_bytes())
    for helpers in ("0", "2"):
        monkeypatch.setenv(VARIABLE, helpers)
        assert run_cli("score", tiny_bundle, images, "--out", tmp_path / helpers).code == 0
    assert results(tmp_path / "2") == results(tmp_path / "0")
    assert len(read_records(tmp_path / "2")) == 2


@pytest.mark.usefixtures("two_helpers")
def test_where_nothing_can_be_written(run_cli: Cli, tiny_bundle: Path, folder_of_images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "maps").write_text("a file where a folder should be")
    outcome = run_cli("score", tiny_bundle, folder_of_images, "--out", out)
    assert "could not be written" in refused(outcome)


def test_a_helper_that_dies_is_one_line_and_a_second_run_goes_on(
    run_cli: Cli, tiny_bundle: Path, folder_of_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    real, asked = Helper.ask, list[str]()

    def dying(self: Helper, value: Any, arrays: list[NDArray[Any]], answer: Callable[[Said], Any]) -> "Future[Any]":
        asked.append(value[0])
        if asked.count("write") == 4:
            self.process.kill()
        return real(self, value, arrays, answer)

    monkeypatch.setattr(Helper, "ask", dying)
    line = refused(run_cli("score", tiny_bundle, folder_of_images, "--out", tmp_path / "out"))
    assert f"has ended (exit -9), perhaps for want of memory; run it again to go on, with {VARIABLE}=0" in line
    monkeypatch.setattr(Helper, "ask", real)
    assert run_cli("score", tiny_bundle, folder_of_images, "--out", tmp_path / "out").code == 0
    assert len(read_records(tmp_path / "out")) == 12
    assert_nothing_half_written(tmp_path / "out")


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_helpers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from reshift.config import DataConfig\n"
        "from reshift.inference.score_hands import Processes; from reshift.inference.score_picture import Task\n"
        "team = Processes(Task(DataConfig(), Path(sys.argv[1]), None, False), 4, 2)\n"
        "print(*(helper.process.pid for helper in team.helpers), flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert all("score_helper" in _command(pid) for pid in pids)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for _ in range(600):
        if not any("score_helper" in _command(pid) for pid in pids):
            break
        time.sleep(0.1)
    assert not any("score_helper" in _command(pid) for pid in pids)


def test_who_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    started = list[str]()
    monkeypatch.setattr(score_hands, "Helper", lambda module, _first: started.append(module))
    kinds = [
        (32, 10_000, 16, 16),
        (32, 10_000, 64, 16),
        (32, 10_000, 8, 8),
        (32, 10_000, 4, 0),
        (32, 100, 16, 0),
        (1, 10_000, 16, 0),
    ]
    for batch, pictures, cores, expected in kinds:
        started.clear()
        monkeypatch.setattr(helping, "cores", lambda cores=cores: cores)
        assert isinstance(hands(task(tmp_path), batch, pictures), Processes if expected else Threads)
        assert len(started) == expected
    monkeypatch.setattr(helping, "cores", lambda: 16)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    started.clear()
    hands(task(tmp_path), 32, 10_000)
    assert len(started) == 8
    monkeypatch.setenv(VARIABLE, "0")
    assert isinstance(hands(task(tmp_path), 32, 10_000), Threads)
    monkeypatch.setenv(VARIABLE, "many")
    with pytest.raises(UserError, match="is no number of processes; 0 means threads"):
        hands(task(tmp_path), 32, 10_000)


def test_without_room_for_processes_threads_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setenv(VARIABLE, "2")
    monkeypatch.setattr(subprocess, "Popen", full)
    with pytest.warns(UserWarning, match=r"could be started \(Resource temporarily unavailable\); threads do their work"):
        assert isinstance(hands(task(tmp_path), 32, 10_000), Threads)


def test_a_picture_s_features_go_with_it(tmp_path: Path) -> None:
    images = save_many(tmp_path / "in", 3)
    pictures = [Picture(path, path.name) for path in sorted(images.glob("*.png"))]
    seen = [Seen(0.5, np.zeros((32, 32), np.float32), np.ones(4) if i == 1 else None, 0.1) for i in range(3)]
    with Processes(task(tmp_path / "out"), 3, 1) as team:
        list(team.read(pictures))
        ((names, records),) = team.write(list(zip(pictures, seen, strict=True)))
    assert names == pictures
    assert [record["score"] for record in records.result()] == [0.5] * 3


def test_messages_arrive_whole_or_not_at_all() -> None:
    arrays: list[NDArray[Any]] = [np.arange(6, dtype=np.float32).reshape(2, 3).T, np.zeros((0, 4)), np.array(np.nan)]
    pipe = BytesIO()
    send(pipe, {"path": "ä\udc80", "score": float("inf"), "none": None}, arrays)
    sent = pipe.getvalue()
    value, found = receive(BytesIO(sent))
    assert value == {"path": "ä\udc80", "score": float("inf"), "none": None}
    for a, b in zip(arrays, found, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
    for cut in (0, 5, 20, len(sent) - 1):
        with pytest.raises(EOFError):
            receive(BytesIO(sent[:cut]))
