"""Zip files are unpacked completely, and nothing in an archive can write outside its temporary folder."""

import contextlib
import os
import shutil
import signal
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from forked import Forked
from helpers import BRIGHTNESS, Cli, noise, read_records, save_many, start, write_manifest
from helpers import refused as refused_by_command
from PIL import Image
from processes import wait_until

from reshift.data import archive
from reshift.data.archive import unpacked
from reshift.errors import UserError

pytestmark = pytest.mark.usefixtures("scratch")


def pack(path: Path, entries: dict[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", how) as file:
        for name, content in entries.items():
            file.writestr(name, content)
    return path


def refused(path: Path, scratch: Path, expected: str) -> None:
    with pytest.raises(UserError, match=expected) as refusal, unpacked(path):
        pass
    assert str(refusal.value).startswith(str(path))
    assert "\n" not in str(refusal.value)
    assert list(scratch.iterdir()) == []
    assert not (scratch.parent / "evil.png").exists()


def test_a_zipped_folder(tmp_path: Path, scratch: Path) -> None:
    save_many(tmp_path / "images" / "inner", 3)
    path = tmp_path / "images.zip"
    with zipfile.ZipFile(path, "w") as file:
        for image in sorted((tmp_path / "images").rglob("*")):
            file.write(image, image.relative_to(tmp_path))
        file.writestr("__MACOSX/._000.png", b"x")
        file.writestr("images/.DS_Store", b"x")
    with unpacked(path) as folder:
        assert folder.name == "images"
        assert [p.name for p in sorted(folder.rglob("*"))] == ["inner", "000.png", "001.png", "002.png"]
        assert np.array_equal(np.asarray(Image.open(folder / "inner" / "001.png")), noise(1))
    assert list(scratch.iterdir()) == []


def test_files_at_the_top_and_backslashes(tmp_path: Path) -> None:
    with unpacked(pack(tmp_path / "a.zip", {"manifest.csv": b"image\n", "images\\1.png": b"x"})) as folder:
        assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.*")) == ["images/1.png", "manifest.csv"]


def test_other_paths_are_returned_as_they_are(tmp_path: Path) -> None:
    volume = tmp_path / "a.nii.gz"
    volume.touch()
    for path in (tmp_path, tmp_path / "nothing.zip", tmp_path / "manifest.csv", volume):
        with unpacked(path) as found:
            assert found == path


def test_the_folder_is_removed_when_the_work_fails(tmp_path: Path, scratch: Path) -> None:
    path = pack(tmp_path / "a.zip", {"a.png": b"x"})

    def work() -> None:
        with unpacked(path):
            assert len(list(scratch.iterdir())) == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["../evil.png", "a/../../evil.png", "/evil.png", "..\\evil.png", "C:/evil.png", "c:evil.png", "\\\\host\\evil.png"]
)
def test_names_that_lead_out_of_the_folder(tmp_path: Path, scratch: Path, name: str) -> None:
    refused(pack(tmp_path / "a.zip", {"ok.png": b"x", name: b"x"}), scratch, "leads out of the folder")


@pytest.mark.parametrize(("kind", "expected"), [(stat.S_IFLNK, "link"), (stat.S_IFIFO, "not a regular file")])
def test_links_and_devices(tmp_path: Path, scratch: Path, kind: int, expected: str) -> None:
    entry = zipfile.ZipInfo("evil")
    entry.external_attr = (kind | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr(entry, "/etc/passwd")
    refused(tmp_path / "a.zip", scratch, expected)


def test_encrypted(tmp_path: Path, scratch: Path) -> None:
    path = pack(tmp_path / "a.zip", {"a.png": b"x"})
    content = bytearray(path.read_bytes())
    content[6] |= 1  # the flag in the entry, and in the table of contents
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    refused(path, scratch, "encrypted")


@pytest.mark.parametrize("name", ["b.zip", "b.tar.gz", "B.7Z"])
def test_archives_within_archives(tmp_path: Path, scratch: Path, name: str) -> None:
    refused(pack(tmp_path / "a.zip", {"a.png": b"x", f"in/{name}": b"x"}), scratch, "another archive")


def test_other_archives(tmp_path: Path, scratch: Path) -> None:
    path = tmp_path / "images.tar.gz"
    path.touch()
    refused(path, scratch, "only .zip")


def test_too_many_files_or_bytes(tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pack(tmp_path / "a.zip", {f"{i}.raw": bytes(200_000) for i in range(4)})
    with unpacked(path) as folder:  # a thousand times its size, but small
        assert (folder / "3.raw").stat().st_size == 200_000
    monkeypatch.setattr(archive, "FREE_BYTES", 500_000)
    refused(path, scratch, "times its size, over the limit of 100")
    monkeypatch.setattr(archive, "MAX_BYTES", 500_000)
    refused(path, scratch, r"unpacks to .* GiB, over the limit")
    monkeypatch.setattr(archive, "MAX_FILES", 3)
    refused(path, scratch, "holds 4 files, over the limit of 3")


def test_a_full_disk(tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    refused(pack(tmp_path / "a.zip", {"a.png": bytes(1000)}), scratch, "GiB free; set TMPDIR")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_repeated_names_and_empty_archives(tmp_path: Path, scratch: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("a.png", b"1")
        file.writestr("a.png", b"2")
    refused(tmp_path / "a.zip", scratch, "'a.png' twice")
    refused(pack(tmp_path / "b.zip", {}), scratch, "holds no files")
    nameless = pack(tmp_path / "e.zip", {"a": b"1"})
    nameless.write_bytes(nameless.read_bytes().replace(b"a", b"\0"))
    refused(nameless, scratch, "damaged|holds no files|cannot be unpacked")
    refused(pack(tmp_path / "c.zip", {"a": b"1", "a/b": b"2"}), scratch, "cannot be unpacked")
    refused(pack(tmp_path / "d.zip", {f"{'n' * 300}.png": b"1"}), scratch, "cannot be unpacked")


def test_damage(tmp_path: Path, scratch: Path) -> None:
    path = pack(tmp_path / "a.zip", {"a.png": np.random.default_rng(0).bytes(5000)})
    whole = path.read_bytes()
    for content in (b"", b"no archive", whole[: len(whole) // 2], whole[:-4], whole[:200] + bytes(50) + whole[250:]):
        path.write_bytes(content)
        refused(path, scratch, "not a zip file we can read, or damaged")


def test_random_damage_is_refused_or_harmless(tmp_path: Path, scratch: Path) -> None:
    path = pack(tmp_path / "a.zip", {"a.png": b"hello" * 99, "b/c.png": b"x" * 50})
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(100):
        content = bytearray(whole)
        for at in rng.integers(0, len(whole), 3):
            content[at] = rng.integers(256)
        path.write_bytes(content)
        with contextlib.suppress(UserError), unpacked(path) as folder:
            assert folder == scratch or scratch in folder.parents
        assert list(scratch.iterdir()) == []


def test_commands_accept_a_zip_file_and_remove_its_folder(run_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    images = save_many(tmp_path / "healthy")
    data = Path(shutil.make_archive(str(tmp_path / "healthy"), "zip", tmp_path, images.name))
    out = tmp_path / "scores"
    assert run_cli("train", "--data", data, "--out", tmp_path / "run", *BRIGHTNESS).code == 0
    assert run_cli("info", tmp_path / "run" / "bundle", "--json").out.count('"dataset": "healthy"') == 1
    assert run_cli("score", tmp_path / "run" / "bundle", data, "--out", out).code == 0
    first = (out / "scores.jsonl").read_text()
    assert first.count("\n") == 12
    assert f'"{data}!healthy/000.png"' in first
    assert run_cli("score", tmp_path / "run" / "bundle", data, "--out", out).code == 0
    assert (out / "scores.jsonl").read_text() == first  # the same names again, so nothing is scored twice
    assert (out / "maps" / "healthy" / "000.png.npy").exists()
    assert list(temporary.iterdir()) == []


STUCK = """
import os, tempfile, time, reshift.inference.images as module
tempfile.tempdir = os.environ["SCRATCH"]
write = module.write_case
module.write_case = lambda task, sample: (time.sleep(4 * (sample.case.name[-5] >= "5")), write(task, sample))[1]
"""


@pytest.fixture
def zipped(tmp_path: Path) -> Path:
    save_many(tmp_path / "healthy")
    return Path(shutil.make_archive(str(tmp_path / "healthy"), "zip", tmp_path, "healthy"))


@contextlib.contextmanager
def scoring(bundle: Path, data: Path, out: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Forked]:
    """A process that has scored some images of a zip file, and waits."""
    monkeypatch.setenv("SCRATCH", str(scratch))
    process = start("score", bundle, data, "--out", out, prelude=STUCK)
    try:
        wait_until(lambda: (out / "scores.jsonl").exists() and (out / "scores.jsonl").read_bytes().count(b"\n") == 5, process)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_what_a_killed_run_left_is_removed_and_its_records_count(
    run_cli: Cli, tiny_bundle: Path, zipped: Path, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with scoring(tiny_bundle, zipped, out, scratch, monkeypatch) as process:
        (left,) = scratch.iterdir()
        assert stat.S_IMODE(left.stat().st_mode) == 0o700
        process.kill()
    assert list(scratch.iterdir()) == [left]
    before = (out / "maps" / "healthy" / "000.png.npy").stat().st_mtime_ns
    assert run_cli("score", tiny_bundle, zipped, "--out", out).code == 0
    assert [record["input"] for record in read_records(out)] == [f"{zipped}!healthy/{i:03d}.png" for i in range(12)]
    assert (out / "maps" / "healthy" / "000.png.npy").stat().st_mtime_ns == before  # scored once
    assert list(scratch.iterdir()) == []


def test_a_closed_terminal_removes_what_was_unpacked(
    tiny_bundle: Path, zipped: Path, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scoring(tiny_bundle, zipped, tmp_path / "out", scratch, monkeypatch) as process:
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 130
    assert list(scratch.iterdir()) == []


def test_a_folder_in_use_is_left_alone(
    run_cli: Cli, tiny_bundle: Path, zipped: Path, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scoring(tiny_bundle, zipped, tmp_path / "out", scratch, monkeypatch) as process:
        (used,) = scratch.iterdir()
        assert run_cli("score", tiny_bundle, zipped, "--out", tmp_path / "other").code == 0
        assert list(scratch.iterdir()) == [used]
        assert len(list(used.rglob("*.png"))) == 12
        assert process.poll() is None
    assert len(read_records(tmp_path / "other")) == 12


def test_errors_name_the_archive(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    path = pack(tmp_path / "a.zip", {"in/bad.png": b"no image", "in/deep/bad.tif": b""})
    done = run_cli("score", tiny_bundle, path, "--out", tmp_path / "out")
    assert done.code == 3
    for record in read_records(tmp_path / "out"):
        assert record["input"].startswith(f"{path}!in/")
        assert record["error"].startswith(f"{record['input']}: ")
    empty = pack(tmp_path / "b.zip", {"note.txt": b"x"})
    refused_by_command(run_cli("score", tiny_bundle, empty, "--out", tmp_path / "out2"), f"{empty}: no PNG")


@pytest.mark.parametrize("where", ["/absolute", "../../..", "images/../../.."])
def test_a_list_in_an_archive_names_only_files_of_the_archive(run_cli: Cli, tmp_path: Path, where: str) -> None:
    save_many(tmp_path / "secret")
    save_many(tmp_path / "in" / "images", 3)
    secret = tmp_path / "secret" / "000.png"
    named = secret if where == "/absolute" else f"{where}/{os.path.relpath(secret, tmp_path / 'scratch')}"
    rows = ["images/000.png,,a,0,test,", f"images/001.png,{named},b,1,test,"]
    write_manifest(tmp_path / "in", *rows)
    data = Path(shutil.make_archive(str(tmp_path / "data"), "zip", tmp_path / "in"))
    for command in (("check", data), ("train", "--data", data, "--out", tmp_path / "run")):
        refused_by_command(run_cli(*command), f"{data}!manifest.csv: lists", "not in the archive")
