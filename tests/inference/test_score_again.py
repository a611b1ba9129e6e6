"""A second run into the same folder: changed files are scored again, results are no inputs, and two runs at once are refused."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from dicom_files import series
from forked import Forked
from helpers import Cli, noise, read_records, refused, save, save_many, start
from processes import wait_until
from volumes import save_head

from reshift.inference.records import EARLIER_FIELDS

STUCK = """
import time, reshift.inference.images as module
write = module.write_case
module.write_case = lambda task, sample: (time.sleep(4 * (sample.case.name[-5] >= "5")), write(task, sample))[1]
"""


def heatmap(out: Path, index: int = 0) -> bytes:
    return bytes(np.load(out / read_records(out)[index]["map"]).tobytes())


def times(out: Path) -> list[int]:
    return [(out / record["map"]).stat().st_mtime_ns for record in read_records(out)]


def test_a_replaced_file_is_scored_again(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    """Also one of the same size: here an uncompressed TIFF."""
    images, out = tmp_path / "in", tmp_path / "out"
    for i in range(3):
        save(noise(i), images / f"{i}.tif")
    score = ("score", tiny_bundle, images, "--out", out)
    assert run_cli(*score).code == 0
    before, maps, written = read_records(out), [heatmap(out, i) for i in range(3)], times(out)
    save(noise(9), images / "1.tif")
    assert (images / "1.tif").stat().st_size == before[1]["size"]
    done = run_cli(*score)
    assert done.code == 0
    assert f"{images / '1.tif'}: has changed since it was scored" in done.err
    after = read_records(out)
    assert [after[i] == before[i] for i in range(3)] == [True, False, True]
    assert [record["map"] for record in after] == [record["map"] for record in before]
    assert [heatmap(out, i) == maps[i] for i in range(3)] == [True, False, True]
    assert [times(out)[i] == written[i] for i in range(3)] == [True, False, True]  # the others were not scored again
    assert run_cli("score", tiny_bundle, images, "--out", tmp_path / "at-once").code == 0
    assert read_records(tmp_path / "at-once") == after


def test_a_file_that_was_only_copied_anew_keeps_its_score(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    images, out = save_many(tmp_path / "in", 3), tmp_path / "out"
    assert run_cli("score", tiny_bundle, images, "--out", out).code == 0
    before, written = (out / "scores.jsonl").read_bytes(), times(out)
    os.utime(images / "001.png", ns=(1, 1))
    done = run_cli("score", tiny_bundle, images, "--out", out)
    assert (done.code, "changed" in done.err) == (0, False)
    assert (out / "scores.jsonl").read_bytes() == before
    assert times(out) == written


def test_a_replaced_file_that_fails_keeps_no_old_result(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    images, out = save_many(tmp_path / "in", 2), tmp_path / "out"
    assert run_cli("score", tiny_bundle, images, "--out", out).code == 0
    (images / "001.png").write_bytes(b"damaged")
    assert run_cli("score", tiny_bundle, images, "--out", out).code == 3
    assert [record["map"] for record in read_records(out)] == ["maps/in/000.png.npy", None]
    found = sorted(path.name for path in out.rglob("*.*") if path.is_file() and path.parent != out)
    assert found == ["000.png", "000.png.npy"]


def test_a_changed_volume_or_slice_of_a_series_is_scored_again(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    images, out = tmp_path / "in", tmp_path / "out"
    series(images / "scan")
    save_head(images / "head.nii")
    assert run_cli("score", tiny_bundle, images, "--out", out).code == 0
    before = read_records(out)
    own = [record for record in before if record["slice"] is None]
    assert [record["sha256"] is not None for record in own] == [True, True]
    assert all(record["sha256"] is None for record in before if record["slice"] is not None)
    assert run_cli("score", tiny_bundle, images, "--out", out).err.count("changed") == 0
    sorted((images / "scan").iterdir())[0].unlink()
    volume = bytearray((images / "head.nii").read_bytes())
    volume[-2000:] = bytes(2000)
    (images / "head.nii").write_bytes(volume)
    assert "(and 1 more)" in run_cli("score", tiny_bundle, images, "--out", out).err
    after = [record for record in read_records(out) if record["slice"] is None]
    assert [record["input"] for record in after] == [record["input"] for record in own]
    assert all(new["sha256"] != old["sha256"] for new, old in zip(after, own, strict=True))


def test_records_of_an_earlier_version_are_made_anew(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    images, out = save_many(tmp_path / "in", 3), tmp_path / "out"
    score = ("score", tiny_bundle, images, "--out", out)
    assert run_cli(*score).code == 0
    before = read_records(out)
    lines = [json.loads(line) for line in (out / "scores.jsonl").read_text().splitlines()]
    earlier = "".join(json.dumps({name: line[name] for name in EARLIER_FIELDS[-1]}) + "\n" for line in lines)
    (out / "scores.jsonl").write_text(earlier)
    other = save(noise(7), tmp_path / "other.png")
    assert run_cli("score", tiny_bundle, other, "--out", out).code == 0
    assert len(read_records(out)) == 4  # inputs that this run was not given keep their records
    assert "earlier version" in run_cli(*score).err
    assert sorted(read_records(out), key=lambda record: str(record["input"]))[:3] == before


def test_results_in_the_input_folder_are_no_inputs(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    images = save_many(tmp_path / "in", 3)
    series(images / "scan")
    out = images / "scan" / "results"
    for _ in range(3):
        assert run_cli("score", tiny_bundle, images, "--out", out).code == 0
        names = [record["input"] for record in read_records(out) if record["slice"] is None]
        assert names == [*(str(images / f"{i:03d}.png") for i in range(3)), str(images / "scan")]


def test_an_output_folder_that_would_mix_results_and_images_is_refused(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    images = save_many(tmp_path / "overlays", 3)
    for given, out in ((images, images), (images, tmp_path)):
        refused(run_cli("score", tiny_bundle, given, "--out", out), given, "choose another --out")
    assert sorted(path.name for path in images.iterdir()) == ["000.png", "001.png", "002.png"]


@contextmanager
def scoring(bundle: Path, images: Path, out: Path) -> Iterator[Forked]:
    """A process that has scored some images, and waits."""
    process = start("score", bundle, images, "--out", out, prelude=STUCK)
    try:
        wait_until(lambda: (out / "scores.jsonl").exists() and (out / "scores.jsonl").read_bytes().count(b"\n") == 5, process)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_second_run_into_the_same_folder_is_refused(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    images, out = save_many(tmp_path / "in"), tmp_path / "out"
    with scoring(tiny_bundle, images, out) as process:
        before = (out / "scores.jsonl").read_bytes()
        refused(run_cli("score", tiny_bundle, images, "--out", out), out, f"process {process.pid}", "is writing there")
        assert (out / "scores.jsonl").read_bytes() == before
    assert run_cli("score", tiny_bundle, images, "--out", out).code == 0  # a killed process holds nothing
    assert len(read_records(out)) == 12
