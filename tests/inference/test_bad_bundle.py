"""Bundles that are incomplete, damaged or of another version: one line that names the file, exit 2."""

import json
import shutil
from pathlib import Path

import pytest
from helpers import Cli, read_records, refused


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
@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"format": NaN}', "\xff"])
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
