"""Bundles that are incomplete, damaged or of another version: one line that names the file, exit 2."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers import Cli, read_records, refused, save_many

from reshift.errors import UserError
from reshift.inference.bundle import load_bundle

FILES = ("config.json", "calibration.json", "model.safetensors")
DEEP = 100_000


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(tiny_bundle, tmp_path / "copy"))


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_incomplete_bundles(run_cli: Cli, bundle: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "config.json"):
        (bundle / name).unlink()
        refused(run_cli("info", bundle), bundle, f"{name} is missing")
    refused(run_cli("info", tmp_path / "none"), tmp_path / "none", "no such bundle folder")
    refused(run_cli("info", bundle / "README.md"), "README.md", "no such bundle folder")
    shutil.copytree(bundle, tmp_path / "run" / "bundle")
    refused(run_cli("info", tmp_path / "run"), f"did you mean {tmp_path / 'run' / 'bundle'}?")


def test_a_bundle_without_calibration_still_scores(run_cli: Cli, bundle: Path, folder_of_images: Path, tmp_path: Path) -> None:
    (bundle / "calibration.json").unlink()
    done = run_cli("score", bundle, folder_of_images, "--out", tmp_path / "s")
    assert done.code == 0
    assert "no calibration.json" in done.err
    assert {(record["p_value"], record["flag"]) for record in read_records(tmp_path / "s")} == {(None, None)}
    assert not (tmp_path / "s" / "overlays").exists()


def test_damaged_weights(run_cli: Cli, bundle: Path) -> None:
    path = bundle / "model.safetensors"
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-1] ^= 4
    for content in (bytes(flipped), whole[:-3], b"", whole + b"x"):
        path.write_bytes(content)
        refused(run_cli("info", bundle), path, "damaged")


@pytest.mark.parametrize("name", ["config.json", "calibration.json"])
@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"format": NaN}', "\xff", "[" * DEEP, '{"a": ' * 500 + "1" + "}" * 500])
def test_damaged_tables(run_cli: Cli, bundle: Path, name: str, damage: str) -> None:
    (bundle / name).write_text(damage, encoding="latin-1")
    refused(run_cli("info", bundle), bundle)


def test_wrong_values_in_a_bundle_name_the_file(run_cli: Cli, bundle: Path) -> None:
    edit_json(bundle / "calibration.json", held_out=None, training=None)
    refused(run_cli("info", bundle), bundle / "calibration.json", "no normals")
    edit_json(bundle / "calibration.json", pixel_quantile="high")
    refused(run_cli("info", bundle), bundle / "calibration.json", "pixel_quantile")
    edit_json(bundle / "calibration.json", pixel_quantile=float("nan"))
    refused(run_cli("info", bundle), bundle / "calibration.json", "not valid JSON")
    (bundle / "calibration.json").unlink()
    for key, value in (("config", 5), ("training", []), ("config", {"seed": -1}), ("config", {"method": "dmb"})):
        whole = (bundle / "config.json").read_text()
        edit_json(bundle / "config.json", **{key: value})
        refused(run_cli("info", bundle), bundle / "config.json", "damaged, or of another version")
        (bundle / "config.json").write_text(whole)


def test_a_bundle_of_another_format(run_cli: Cli, bundle: Path) -> None:
    edit_json(bundle / "config.json", format=99, reshift="9.0")
    refused(run_cli("info", bundle), bundle, "format 99, by reshift 9.0", "train it again")


# ---- files that would not end, or not fit in memory ----------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_only_regular_files_are_read(run_cli: Cli, bundle: Path, name: str) -> None:
    """A pipe would wait for ever, a device has no end, and a link may lead nowhere."""
    path = bundle / name
    path.unlink()
    os.mkfifo(path)
    refused(run_cli("info", bundle), path, "not a regular file")
    for target in ("/dev/zero", name):  # the second: a link to itself
        path.unlink()
        path.symlink_to(target)
        refused(run_cli("info", bundle), path)


def test_files_of_absurd_size_are_refused_unread(run_cli: Cli, bundle: Path) -> None:
    for name in FILES:
        whole = (bundle / name).read_bytes()
        os.truncate(bundle / name, 2**40)  # a hole, which takes no room on the disk
        refused(run_cli("info", bundle), bundle / name)
        (bundle / name).write_bytes(whole)


def test_a_link_to_a_regular_file_is_read(run_cli: Cli, bundle: Path, tmp_path: Path) -> None:
    for name in FILES:
        (bundle / name).rename(tmp_path / name)
        (bundle / name).symlink_to(tmp_path / name)
    assert run_cli("info", bundle).code == 0


def set_model(bundle: Path, method: str, **model: object) -> None:
    config = json.loads((bundle / "config.json").read_text())["config"]
    edit_json(bundle / "config.json", config=config | {"method": method, "model": model})


@pytest.mark.parametrize("method", ["ae", "fanogan"])
def test_no_setting_asks_for_a_terabyte(run_cli: Cli, bundle: Path, method: str) -> None:
    set_model(bundle, method, width=100_000)
    refused(run_cli("info", bundle), bundle / "config.json", "model.width", "less than or equal to")


def test_a_network_that_is_larger_than_its_weights_is_not_built(run_cli: Cli, bundle: Path) -> None:
    """3 GB, which every single setting allows; the file with the weights is empty."""
    set_model(bundle, "fanogan", width=256)
    refused(run_cli("info", bundle), bundle / "config.json", "larger network")


def test_other_weights_are_named(run_cli: Cli, bundle: Path) -> None:
    set_model(bundle, "dae", widths=[4, 8])
    refused(run_cli("info", bundle), bundle, "the weights do not fit config.json")


# ---- calibration.json ----------------------------------------------------------------------------------------------------


def test_a_flipped_bit_is_refused(bundle: Path) -> None:
    """Or it changes nothing: 1e-06 and 1E-06 are one number."""
    path, before, rng = bundle / "calibration.json", load_bundle(bundle).calibration, random.Random(0)
    whole, refusals = path.read_bytes(), list[str]()
    for bit in rng.sample(range(8 * len(whole)), 400):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            assert load_bundle(bundle).calibration == before
        except UserError as err:
            refusals.append(str(err))
    assert len(refusals) > 390
    for line in refusals:
        assert line.startswith(str(path))
        assert "\n" not in line
        assert len(line) < len(str(path)) + 400


def without_checksum(bundle: Path) -> dict[str, Any]:
    """The calibration as bundles of the first version have it."""
    stored: dict[str, Any] = json.loads((bundle / "calibration.json").read_text())
    stored.pop("sha256", None)
    return stored


def test_a_calibration_without_a_checksum_is_of_an_older_version(bundle: Path) -> None:
    before = load_bundle(bundle).calibration
    (bundle / "calibration.json").write_text(json.dumps(without_checksum(bundle)))
    assert load_bundle(bundle).calibration == before


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        ("image_quantile", 2, "image_quantile"),
        ("pixel_quantile", 0.0, "pixel_quantile"),
        ("held_out.images", 0, "held_out.images"),
        ("held_out.images", 3, "held_out"),
        ("held_out.scores", [], "held_out"),
        ("held_out.scores", [2.0, 1.0], "held_out.scores"),
        ("held_out.scores", [1.0, 1e999], "held_out.scores"),
        ("held_out.image_threshold", 1e999, "image_threshold"),
        ("training.pixel_threshold", -1e999, "pixel_threshold"),
        ("acquisition.distances", [], "acquisition"),
        ("acquisition.distances", [2.0, 1.0], "acquisition.distances"),
        ("acquisition.mean", [0.0] * 9, "acquisition"),
        ("acquisition.precision", [[0.0] * 10] * 9, "acquisition"),
        ("acquisition.precision", [[0.0] * 9] * 10, "acquisition"),
        ("acquisition.precision", [[1e999] * 10] * 10, "acquisition.precision"),
    ],
)
def test_wrong_values_in_a_calibration(run_cli: Cli, bundle: Path, place: str, value: object, named: str) -> None:
    stored = without_checksum(bundle)
    table, _, key = place.rpartition(".")
    (stored[table] if table else stored)[key] = value
    (bundle / "calibration.json").write_text(json.dumps(stored).replace("Infinity", "1e999"))
    refused(run_cli("info", bundle), bundle / "calibration.json", named)


def test_calibrate_does_not_use_the_regex_of_a_bundle(run_cli: Cli, bundle: Path, tmp_path: Path) -> None:
    """The bundle may be a stranger's, and some regexes take years; subjects do not matter for thresholds."""
    config = json.loads((bundle / "config.json").read_text())["config"]
    config["data"]["subject"] = "^(a+)+$"
    edit_json(bundle / "config.json", config=config)
    done = run_cli("calibrate", bundle, "--data", save_many(tmp_path / "normals", 4), "--device", "cpu")
    assert done.code == 0, done.err
    found = load_bundle(bundle).calibration
    assert found is not None
    assert found.held_out is not None
    assert found.held_out.images == 4
