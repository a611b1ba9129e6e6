"""``prepare`` takes a download as it is: zip, tar and tar.gz, several in a folder, damaged ones; nothing is written elsewhere."""

import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dataset_trees as trees
import pytest
from helpers import Cli, refused

from reshift.data import archive
from reshift.data.manifest import load_cases
from reshift.datasets.download import unpacked_download

SIZE = 32
pytestmark = pytest.mark.usefixtures("scratch")


@pytest.fixture(scope="module")
def busi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.busi(tmp_path_factory.mktemp("busi"))


def pack(folder: Path, target: Path) -> Path:
    """As the publishers do: one folder with everything in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if target.suffix == ".zip":
        with zipfile.ZipFile(target, "w") as packed:
            for path in files:
                packed.write(path, path.relative_to(folder))
    else:
        with tarfile.open(target, "w:gz" if target.name.endswith("gz") else "w") as tar:
            for path in files:
                tar.add(path, str(path.relative_to(folder)))
    return target


def content(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*.png")}


@pytest.mark.parametrize("name", ["Dataset_BUSI.zip", "busi.tar", "busi.tar.gz", "busi.TGZ"])
def test_an_archive_gives_what_its_folder_gives(run_cli: Cli, busi: Path, scratch: Path, tmp_path: Path, name: str) -> None:
    source = pack(busi, tmp_path / name)
    done = run_cli("prepare", "busi", "--source", source, "--out", tmp_path / "out", "--size", SIZE)
    assert done.code == 0, done.err
    assert run_cli("prepare", "busi", "--source", busi, "--out", tmp_path / "plain", "--size", SIZE).code == 0
    assert content(tmp_path / "out") == content(tmp_path / "plain") != {}
    assert (tmp_path / "out/manifest.csv").read_bytes() == (tmp_path / "plain/manifest.csv").read_bytes()
    before = (tmp_path / "out/subjects.jsonl").read_bytes()
    assert run_cli("prepare", "busi", "--source", source, "--out", tmp_path / "out", "--size", SIZE).code == 0
    assert (tmp_path / "out/subjects.jsonl").read_bytes() == before  # a second run finds everything done
    assert str(tmp_path) not in (tmp_path / "out/dataset.json").read_text() + before.decode()
    assert list(scratch.iterdir()) == []


def test_a_folder_of_downloads_and_an_archive_in_an_archive(run_cli: Cli, scratch: Path, tmp_path: Path) -> None:
    downloads = tmp_path / "downloads"
    (downloads / "notes").mkdir(parents=True)
    (downloads / "notes/read me.txt").write_text("x")
    pack(trees.ixi(tmp_path / "ixi", volumes=2), downloads / "IXI-T1.tar")
    (tmp_path / "inner").mkdir()
    pack(trees.atlas(tmp_path / "atlas", volumes=4), tmp_path / "inner/ATLAS.tar.gz")
    pack(tmp_path / "inner", downloads / "kaggle.zip")
    done = run_cli("prepare", "ixi-atlas", "--source", downloads, "--out", tmp_path / "out", "--size", SIZE)
    assert done.code == 0, done.err
    facts = json.loads((tmp_path / "out/dataset.json").read_text())
    assert facts["cases"] == {"found": 6, "prepared": 6, "left_out": 0, "refused": 0}
    assert list(scratch.iterdir()) == []
    logged = (tmp_path / "out/subjects.jsonl").read_text()
    assert '"IXI-T1.tar/IXI002-Guys-0800-T1.nii.gz"' in logged
    assert '"kaggle.zip/ATLAS.tar.gz/ATLAS_2/Training/' in logged


def test_an_archive_beside_its_unpacked_content_is_not_opened(run_cli: Cli, busi: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(busi, tmp_path / "source"))
    (source / "Dataset_BUSI.zip").write_bytes(b"never read")
    done = run_cli("prepare", "busi", "--source", source, "--out", tmp_path / "out", "--size", SIZE)
    assert done.code == 0
    assert "Dataset_BUSI.zip: not opened" in done.err


def cut(path: Path, share: float) -> None:
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


@pytest.mark.parametrize("name", ["busi.tar", "busi.tar.gz"])
def test_what_is_before_a_cut_is_used_and_the_cut_is_reported(
    run_cli: Cli, busi: Path, scratch: Path, tmp_path: Path, name: str
) -> None:
    source = pack(busi, tmp_path / name)
    cut(source, 0.8)
    done = run_cli("prepare", "busi", "--source", source, "--out", tmp_path / "out", "--size", SIZE)
    assert done.code == 3
    [line] = [line for line in done.err.splitlines() if f"{name}: cut short" in line]
    facts = json.loads((tmp_path / "out/dataset.json").read_text())
    assert line.removeprefix("skipped: ") in facts["skipped"]
    assert "download it again" in line
    assert 0 < facts["cases"]["prepared"] < 18
    assert facts["cases"]["found"] == sum(facts["cases"][k] for k in ("prepared", "left_out", "refused"))
    assert list(scratch.iterdir()) == []


def test_a_tar_that_ends_between_two_files_is_cut_short(busi: Path, tmp_path: Path) -> None:
    """Python's own reader takes this for the end."""
    source = pack(busi, tmp_path / "busi.tar")
    with tarfile.open(source) as tar:
        at = tar.getmembers()[10].offset
    source.write_bytes(source.read_bytes()[:at])
    with unpacked_download(source) as (folder, problems, lost):
        assert sum(path.is_file() for path in folder.rglob("*")) == 10
        [last] = lost  # another file of its case may have been behind the cut
        assert (folder / last).stat().st_size
        but = f"except the case of the last, {last.relative_to('busi.tar').as_posix()}, which may lack a file"
        assert problems == [f"busi.tar: cut short or damaged after 10 files, which are used, {but}; download it again"]


def test_one_damaged_file_of_a_zip_is_named(run_cli: Cli, busi: Path, tmp_path: Path) -> None:
    source = pack(busi, tmp_path / "busi.zip")
    with zipfile.ZipFile(source) as packed:
        info = next(info for info in packed.infolist() if info.filename.endswith("normal (4).png"))
    data = bytearray(source.read_bytes())
    data[info.header_offset + 200] ^= 255
    source.write_bytes(data)
    done = run_cli("prepare", "busi", "--source", source, "--out", tmp_path / "out", "--size", SIZE)
    assert done.code == 3
    assert "skipped: busi.zip/Dataset_BUSI_with_GT/normal/normal (4).png: damaged in the archive" in done.err
    assert "normal-4" not in {case.name for case in load_cases(tmp_path / "out")}


def test_a_damaged_archive_does_not_stop_the_others(run_cli: Cli, busi: Path, tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    pack(busi, tmp_path / "downloads/Dataset_BUSI.zip")
    (tmp_path / "downloads/more.zip").write_bytes(b"no zip")
    done = run_cli("prepare", "busi", "--source", tmp_path / "downloads", "--out", tmp_path / "out", "--size", SIZE)
    assert done.code == 3
    assert "skipped: more.zip: damaged, or not the archive its name says" in done.err
    assert len(load_cases(tmp_path / "out")) == 17  # of 18; the crop removes one lesion


def tar_with(change: Callable[[tarfile.TarInfo], None], size: int = 3) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name in ("Dataset/normal (1).png", "Dataset/second"):
            member = tarfile.TarInfo(name)
            member.size = size
            if name.endswith("second"):
                change(member)
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return data.getvalue()


def named(**fields: Any) -> Callable[[tarfile.TarInfo], None]:
    def change(member: tarfile.TarInfo) -> None:
        for name, value in fields.items():
            setattr(member, name, value)

    return change


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (named(name="../outside.png"), "leads out of the folder"),
        (named(name="/etc/outside.png"), "leads out of the folder"),
        (named(name="a/../../outside.png"), "leads out of the folder"),
        (named(type=tarfile.SYMTYPE, linkname="/etc", size=0), "holds the link 'Dataset/second'"),
        (named(type=tarfile.LNKTYPE, linkname="Dataset/normal (1).png", size=0), "holds the link"),
        (named(type=tarfile.FIFOTYPE, size=0), "not a regular file"),
        (named(type=tarfile.CHRTYPE, size=0), "not a regular file"),
        (named(name="Dataset/normal (1).png"), "twice"),
    ],
)
def test_an_unsafe_tar_is_refused_whole(
    run_cli: Cli, scratch: Path, tmp_path: Path, change: Callable[[tarfile.TarInfo], None], complaint: str
) -> None:
    source = tmp_path / "evil.tar"
    source.write_bytes(tar_with(change))
    before = set(tmp_path.rglob("*"))
    refused(run_cli("prepare", "busi", "--source", source, "--out", tmp_path / "out"), source, complaint)
    assert set(tmp_path.rglob("*")) == before
    assert list(scratch.iterdir()) == []


def test_a_tar_of_absurd_size_is_refused(run_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "bomb.tar.gz"
    with tarfile.open(source, "w:gz") as tar:
        for i in range(8):
            member = tarfile.TarInfo(f"{i}.png")
            member.size = 2**20
            tar.addfile(member, io.BytesIO(bytes(2**20)))
    monkeypatch.setattr(archive, "FREE_BYTES", 2**20)
    refused(run_cli("prepare", "busi", "--source", source, "--out", tmp_path / "out"), source, "times its size")
    monkeypatch.setattr(archive, "FREE_BYTES", 2**30)
    monkeypatch.setattr(archive, "MAX_FILES", 3)
    refused(run_cli("prepare", "busi", "--source", source, "--out", tmp_path / "out"), source, "over the limit of 3")


def test_other_archives_and_deeper_nesting(run_cli: Cli, busi: Path, tmp_path: Path) -> None:
    (tmp_path / "a.rar").write_bytes(b"x")
    refused(run_cli("prepare", "busi", "--source", tmp_path / "a.rar", "--out", tmp_path / "out"), "only .zip, .tar and .tar.gz")
    refused(run_cli("prepare", "busi", "--source", tmp_path / "no.tar", "--out", tmp_path / "out"), "no such file")
    inner = busi
    for level in range(3):
        (tmp_path / f"level{level}").mkdir()
        pack(inner, tmp_path / f"level{level}" / f"{level}.tar")
        inner = tmp_path / f"level{level}"
    done = run_cli("prepare", "busi", "--source", inner, "--out", tmp_path / "out")
    refused(done, "no BUSI here", "2.tar/1.tar/0.tar: an archive in an archive in an archive")
