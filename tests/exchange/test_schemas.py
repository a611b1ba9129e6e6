"""The published JSON Schemas accept what the program writes, and refuse what it would not."""

import csv
import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from helpers import Cli, labelled, refused
from volumes import save_head

from reshift.config import Config
from reshift.exchange.schemas import SCHEMAS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def validator(run_cli: Cli) -> Any:
    def make(name: str) -> Any:
        schema = json.loads(run_cli("schema", name).out)
        jsonschema.Draft202012Validator.check_schema(schema)
        return jsonschema.Draft202012Validator(schema)

    return make


def test_scores(run_cli: Cli, validator: Any, tiny_bundle: Path, folder_of_images: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no image")
    scan = save_head(tmp_path / "scan.nii.gz")
    run_cli("score", tiny_bundle, folder_of_images, scan, tmp_path / "bad.png", "--out", tmp_path / "out")
    lines, check = (tmp_path / "out" / "scores.jsonl").read_text().splitlines(), validator("scores")
    records = [json.loads(line) for line in lines]
    assert {record["error"] is None for record in records} == {True, False}
    for record in records:
        check.validate(record)
    for wrong in ({"score": "high"}, {"slice": 1.5}, {"unknown": 1}, {"flag": "yes"}):
        assert not check.is_valid({**records[0], **wrong}), wrong
    del records[0]["p_value"]
    assert not check.is_valid(records[0])


def test_metrics(run_cli: Cli, validator: Any, tiny_bundle: Path, tmp_path: Path) -> None:
    manifest = labelled(tmp_path / "data")
    assert run_cli("evaluate", tiny_bundle, "--data", manifest, "--out", tmp_path / "out").code == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    check = validator("metrics")
    check.validate(metrics)
    assert not check.is_valid({**metrics, "image": {**metrics["image"], "auc": "good"}})
    assert not check.is_valid({**metrics, "seed": -1})
    with manifest.open(newline="") as file:
        rows = [{key: value for key, value in row.items() if value} for row in csv.DictReader(file)]
    for row in rows:
        validator("manifest").validate(row)
    assert not validator("manifest").is_valid({**rows[0], "split": "trian"})
    assert not validator("manifest").is_valid({"label": "1"})


def test_bundles_and_configs(validator: Any, tiny_bundle: Path) -> None:
    config, calibration = validator("config"), validator("calibration")
    for bundle in (tiny_bundle, *ROOT.glob("tests/frozen/*/bundle")):
        config.validate(json.loads((bundle / "config.json").read_text())["config"])
        calibration.validate(json.loads((bundle / "calibration.json").read_text()))
    for path in ROOT.glob("configs/*.toml"):
        config.validate(tomllib.loads(path.read_text()))
    assert not config.is_valid({**Config(method="dmd").model_dump(mode="json"), "methd": "dmd"})
    assert not calibration.is_valid({**json.loads((tiny_bundle / "calibration.json").read_text()), "image_quantile": 2})


def test_names(run_cli: Cli) -> None:
    assert [line.split()[0] for line in run_cli("schema").out.splitlines()] == list(SCHEMAS)
    refused(run_cli("schema", "score"), "did you mean 'scores'?")
