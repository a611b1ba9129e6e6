"""Files that an archive has lost: the case they belong to is refused, and not prepared from what is left of it."""

import errno
import json
import shutil
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import dataset_trees as trees
import pytest
from helpers import Cli, refused

from reshift.data import archive
from reshift.data.manifest import load_cases
from reshift.datasets.download import unpacked_download
from reshift.errors import UserError

SIZE = 32
BENIGN = "Dataset_BUSI_with_GT/benign"
TWO_MASKS = f"{BENIGN}/benign (100)_mask_1.png"
pytestmark = pytest.mark.usefixtures("scratch")


@pytest.fixture(scope="module")
def busi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.busi(tmp_path_factory.mktemp("busi"))


def pack(folder: Path, target: Path, kind: int = zipfile.ZIP_DEFLATED, within: str = "") -> Path:
    with zipfile.ZipFile(target, "w", kind) as packed:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            packed.write(path, within + path.relative_to(folder).as_posix())
    return target


def damage(path: Path, name: str) -> None:
    """Change a few bytes in the middle of a packed file."""
    with zipfile.ZipFile(path) as packed:
        info = packed.getinfo(name)
    data = bytearray(path.read_bytes())
    middle = info.header_offset + 30 + len(name) + max(12, info.compress_size // 2)
    for i in range(middle, middle + 8):
        data[i] ^= 255
    path.write_bytes(data)


def facts_of(out: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((out / "dataset.json").read_text())
    assert facts["cases"]["found"] == sum(facts["cases"][key] for key in ("prepared", "left_out", "refused"))
    return facts


def names(out: Path) -> set[str]:
    return {case.image.stem for case in load_cases(out)}


@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
@pytest.mark.parametrize("file", ["benign (1).png", "benign (100)_mask_1.png"])
def test_a_damaged_file_of_a_zip_costs_its_image_alone(run_cli: Cli, busi: Path, tmp_path: Path, kind: int, file: str) -> None:
    """An image with one of its two masks would have healthy tissue where there is a lesion."""
    source = pack(busi, tmp_path / "busi.zip", kind)
    damage(source, f"{BENIGN}/{file}")
    done = run_cli("prepare", "busi", "--source", source, "--out", tmp_path / "out", "--size", SIZE)
    assert done.code == 3
    facts = facts_of(tmp_path / "out")
    assert facts["skipped"] == [f"busi.zip/{BENIGN}/{file}: damaged in the archive; download it again"]
    assert facts["cases"] == {"found": 18, "prepared": 16, "left_out": 1, "refused": 1}
    lost = "benign-1" if file == "benign (1).png" else "benign-100"
    assert names(tmp_path / "out") & {"benign-1", "benign-10", "benign-100"} == {"benign-1", "benign-10", "benign-100"} - {lost}


@pytest.mark.parametrize("between", [True, False])
def test_a_tar_that_is_cut_between_two_masks(run_cli: Cli, busi: Path, tmp_path: Path, between: bool) -> None:
    """The cut is before the second mask's header, so that nothing names it, or within its data."""
    source, first = tmp_path / "busi.tar", [f"{BENIGN}/benign (100).png", f"{BENIGN}/benign (100)_mask.png", TWO_MASKS]
    files = sorted(path.relative_to(busi).as_posix() for path in busi.rglob("*") if path.is_file())
    with tarfile.open(source, "w") as tar:
        for name in [name for name in files if name not in first] + first:
            tar.add(busi / name, name)
    with tarfile.open(source) as tar:
        end = tar.getmember(TWO_MASKS)
    source.write_bytes(source.read_bytes()[: end.offset if between else end.offset_data + 20])
    done = run_cli("prepare", "busi", "--source", source, "--out", tmp_path / "out", "--size", SIZE)
    assert done.code == 3
    [line] = facts_of(tmp_path / "out")["skipped"]
    assert line.startswith("busi.tar: cut short")
    assert f"the case of the last, {BENIGN}/benign (100)_mask.png" in line if between else f"in {TWO_MASKS}, after" in line
    assert "benign-100" not in names(tmp_path / "out")
    assert len(names(tmp_path / "out")) == 16


def test_nothing_takes_the_place_of_a_lost_file(run_cli: Cli, tmp_path: Path) -> None:
    """WMH's ``orig/`` stands in where a case has no ``pre/``, but this one has."""
    folder = trees.wmh(tmp_path / "wmh", ("Utrecht/1", "Utrecht/2"))
    source = pack(folder, tmp_path / "wmh.zip")
    damage(source, "dataverse_files/test/Utrecht/1/pre/FLAIR.nii.gz")
    done = run_cli("prepare", "wmh", "--source", source, "--out", tmp_path / "out", "--size", SIZE)
    assert done.code == 3
    [line] = facts_of(tmp_path / "out")["skipped"]
    assert line.startswith("wmh.zip/dataverse_files/test/Utrecht/1/pre/FLAIR.nii.gz: damaged")
    assert {case.subject for case in load_cases(tmp_path / "out")} == {"Utrecht-2"}


def test_an_unsupported_compression_is_not_called_damage(run_cli: Cli, busi: Path, tmp_path: Path) -> None:
    source = pack(busi, tmp_path / "busi.zip")
    data = bytearray(source.read_bytes())
    for mark, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        where = -1
        while (where := data.find(mark, where + 1)) >= 0:
            data[where + at : where + at + 2] = struct.pack("<H", 9)  # Deflate64, as Windows writes large archives
    source.write_bytes(data)
    done = run_cli("prepare", "busi", "--source", source, "--out", tmp_path / "out")
    assert "damaged" not in refused(done, source, "unsupported compression", "with another program")


def test_a_file_and_a_folder_of_one_name_cost_that_file(run_cli: Cli, busi: Path, tmp_path: Path) -> None:
    source = pack(busi, tmp_path / "busi.zip")
    with zipfile.ZipFile(source, "a") as packed:
        packed.writestr("a", "x")
        packed.writestr("a/b.png", "y")
    done = run_cli("prepare", "busi", "--source", source, "--out", tmp_path / "out", "--size", SIZE)
    assert done.code == 3
    [line] = facts_of(tmp_path / "out")["skipped"]
    assert line.startswith("busi.zip/a/b.png: cannot be unpacked (File exists)")
    assert len(names(tmp_path / "out")) == 17


def test_only_a_full_disk_asks_for_another_one(busi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(archive, "write_member", full)
    source = pack(busi, tmp_path / "busi.zip")
    with pytest.raises(UserError, match=r"\(No space left on device\); set TMPDIR to another disk"), unpacked_download(source):
        pass


def test_a_zip_that_is_cut_short_is_refused_whole(run_cli: Cli, busi: Path, tmp_path: Path) -> None:
    source = pack(busi, tmp_path / "busi.zip")
    source.write_bytes(source.read_bytes()[: source.stat().st_size // 2])
    refused(run_cli("prepare", "busi", "--source", source, "--out", tmp_path / "out"), source, "damaged", "download it again")


@pytest.mark.parametrize(("protocol", "cases"), [("test", 5), ("all", 6)])
def test_a_part_in_an_archive_beside_the_unpacked_one(run_cli: Cli, tmp_path: Path, protocol: str, cases: int) -> None:
    source = trees.wmh(tmp_path / "source") / "dataverse_files"
    pack(source / "test", source / "test.zip", within="test/")
    shutil.rmtree(source / "test")
    command = ("prepare", "wmh", "--source", source, "--size", SIZE, "--protocol", protocol, "--out")
    done = run_cli(*command, tmp_path / "out")
    assert done.code == 0, done.err
    assert "not opened" not in done.err
    assert facts_of(tmp_path / "out")["cases"]["prepared"] == cases
    done = run_cli("prepare", "wmh", "--source", source, "--size", SIZE, "--protocol", "training", "--out", tmp_path / "part")
    assert "test.zip: not opened, because files of the data set lie unpacked beside it" in done.err
    (source / "test.zip").rename(source / "test.7z")
    if protocol == "test":
        refused(run_cli(*command, tmp_path / "no"), "has no 'test' cases, only training", "unpack test.7z first")
