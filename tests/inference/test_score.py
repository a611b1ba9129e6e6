"""Scoring: the records, the maps, and that nothing is lost or mixed up by bad files, kills and re-runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Cli, noise, read_records, refused, save, save_many, write_manifest
from numpy.typing import NDArray

from reshift.inference.inputs import find_cases
from reshift.inference.records import FIELDS, read_index


def cut_last_line(out: Path) -> None:
    path = out / "scores.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[: -len(content.splitlines()[-1]) // 2])


def test_records_and_maps(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    shapes = {"wide.png": (24, 50), "tall.png": (51, 24), "square.png": (40, 40)}
    for name, (height, width) in shapes.items():
        save(noise(1, height, width), tmp_path / "in" / name)
    out = tmp_path / "out"
    assert run_cli("score", tiny_bundle, tmp_path / "in", "--out", out).code == 0
    for line in (out / "scores.jsonl").read_text().splitlines():
        record = json.loads(line)
        checked = ("shift", "unlike", "shift_features", "differs", "size", "modified", "sha256", "not_judged", "findings")
        assert tuple(record) == FIELDS == ("input", "slice", "score", "p_value", "flag", "map", "seconds", "error", *checked)
        assert (record["slice"], record["error"]) == (None, None)
        assert 0 < record["p_value"] <= 1
        assert isinstance(record["flag"], bool)
        heatmap, (height, width) = np.load(out / record["map"]), shapes[Path(record["input"]).name]
        assert (heatmap.dtype, heatmap.shape) == (np.float32, (height, width))
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        seen = np.zeros((height, width), dtype=bool)
        seen[top : top + side, left : left + side] = True
        np.testing.assert_array_equal(np.isfinite(heatmap), seen)
    assert len(list((out / "overlays").rglob("*.png"))) == 3


def test_every_kind_of_file_is_scored(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    colour, alpha = np.dstack([noise(i) for i in range(3)]), np.dstack([noise(i) for i in range(4)])
    wide = noise().astype(np.uint16) * 99
    kinds: dict[str, NDArray[Any]] = {"rgba.png": alpha, "wide.png": wide, "wide.tif": wide, "colour.jpg": colour}
    kinds |= {"float.tif": noise().astype(np.float32), "bits.png": noise() > 99}
    for name, pixels in kinds.items():
        save(pixels, tmp_path / "in" / name)
    assert run_cli("score", tiny_bundle, tmp_path / "in", "--out", tmp_path / "out").code == 0
    assert len(read_records(tmp_path / "out")) == len(kinds)


def test_a_bad_case_is_recorded_and_tried_again(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    images, out = save_many(tmp_path / "in", 4), tmp_path / "out"
    whole = (images / "001.png").read_bytes()
    (images / "001.png").write_bytes(whole[:100])
    (images / "003.png").write_bytes(b"")
    done = run_cli("score", tiny_bundle, images, "--out", out)
    assert done.code == 3
    assert "4 cases, 2 failed" in done.out
    records = read_records(out)
    assert [record["error"] is None for record in records] == [True, False, True, False]
    assert "001.png: cannot be read" in records[1]["error"]
    assert {records[1][name] for name in FIELDS if name not in ("input", "error", "seconds")} == {None}
    before = (out / "maps" / "in" / "000.png.npy").stat().st_mtime_ns
    (images / "001.png").write_bytes(whole)
    assert run_cli("score", tiny_bundle, images, "--out", out).code == 3
    assert (out / "maps" / "in" / "000.png.npy").stat().st_mtime_ns == before  # done is done
    records = read_records(out)
    assert [Path(record["input"]).name for record in records] == ["000.png", "001.png", "002.png", "003.png"]
    assert [record["error"] is None for record in records] == [True, True, True, False]


def test_failures_of_other_inputs_stay_on_record(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    bad, good, out = tmp_path / "bad.png", save(noise(), tmp_path / "good.png"), tmp_path / "out"
    bad.write_bytes(b"no picture")
    assert run_cli("score", tiny_bundle, bad, "--out", out).code == 3
    done = run_cli("score", tiny_bundle, good, "--out", out)
    assert (done.code, [record["error"] is None for record in read_records(out)]) == (3, [False, True])


def test_equal_names_get_their_own_maps(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    for i, name in enumerate(("a/x.png", "b/x.png", "c/x.png", "c/x~2.png", "in/a/x.png", "in/b/x.png")):
        save(noise(i), tmp_path / name)
    out, loose = tmp_path / "out", [tmp_path / name for name in ("a/x.png", "c/x~2.png", "b/x.png")]
    assert run_cli("score", tiny_bundle, *loose, tmp_path / "in", "--out", out).code == 0
    assert run_cli("score", tiny_bundle, tmp_path / "c" / "x.png", "--out", out).code == 0  # later, alone
    records = read_records(out)
    assert len({record["map"] for record in records}) == len(records) == 6
    assert len({np.load(out / record["map"]).tobytes() for record in records}) == 6


def test_a_file_given_twice_is_scored_once(tmp_path: Path) -> None:
    images = save_many(tmp_path / "in", 3)
    assert len(find_cases([images, images / "001.png", tmp_path / "in" / ".." / "in"])) == 3


def test_maps_stay_inside_the_output(run_cli: Cli, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_many(tmp_path / "data" / "images", 2)
    (tmp_path / "data" / "lists").mkdir()
    absolute = tmp_path / "data" / "images" / "001.png"
    manifest = write_manifest(tmp_path / "data" / "lists", "../../data/images/000.png,,a,0,test,", f"{absolute},,b,0,test,")
    monkeypatch.chdir(tmp_path / "data" / "images")
    for i, given in enumerate((manifest, Path(), Path(".."))):
        out = tmp_path / f"out{i}"
        assert run_cli("score", tiny_bundle, given, "--out", out).code == 0
        for record in read_records(out):
            assert (out / "maps").resolve() in (out / record["map"]).resolve().parents
            assert (out / record["map"]).is_file()


def test_a_manifest_means_its_test_split(tmp_path: Path) -> None:
    save_many(tmp_path / "images", 3)
    rows = [f"images/00{i}.png,,s{i},0,{split}," for i, split in enumerate(("train", "test", "test"))]
    for given in (write_manifest(tmp_path, *rows), tmp_path):
        assert [case.path.name for case in find_cases([given])] == ["001.png", "002.png"]


def test_a_half_line_is_scored_again(run_cli: Cli, tiny_bundle: Path, folder_of_images: Path, tmp_path: Path) -> None:
    run_cli("score", tiny_bundle, folder_of_images, "--out", tmp_path)
    whole = read_records(tmp_path)
    cut_last_line(tmp_path)
    assert list(read_index(tmp_path / "scores.jsonl")) == [record["input"] for record in whole[:-1]]
    assert len(read_records(tmp_path)) == len(whole) - 1  # mended before anything is appended
    cut_last_line(tmp_path)
    assert run_cli("score", tiny_bundle, folder_of_images, "--out", tmp_path).code == 0
    assert read_records(tmp_path) == whole


def test_other_models_scores_are_not_mixed_in(run_cli: Cli, tiny_bundle: Path, folder_of_images: Path, tmp_path: Path) -> None:
    """Also where the weights are equal: other settings and other calibrations give other numbers."""
    other, out = tmp_path / "other", tmp_path / "out"
    train = ("train", "--data", folder_of_images, "--out", other, "--method", "brightness")
    assert run_cli(*train, "--set", "data.size=48").code == 0
    assert run_cli("score", tiny_bundle, folder_of_images, "--out", out).code == 0
    before = (out / "scores.jsonl").read_bytes()
    refused(run_cli("score", other / "bundle", folder_of_images, "--out", out), out, "another model", "--out")
    (out / "scored-by.json").write_text("damaged")
    refused(run_cli("score", tiny_bundle, folder_of_images, "--out", out), out, "another model")
    assert (out / "scores.jsonl").read_bytes() == before


def test_scores_may_lie_beside_the_run(run_cli: Cli, folder_of_images: Path, tmp_path: Path) -> None:
    train = ("train", "--data", folder_of_images, "--out", tmp_path, "--method", "brightness", "--set", "data.size=32")
    assert run_cli(*train).code == 0
    assert run_cli("score", tmp_path / "bundle", folder_of_images, "--out", tmp_path).code == 0
    assert run_cli(*train, "--resume").code == 0
