"""JSON and TOML nested thousands of levels deep: one line that names the file, no RecursionError."""

import json
from pathlib import Path

import pytest
from helpers import Cli, refused, save_many

from reshift.bench.cells import read_cells

DEEP_JSON = ["[" * 100_000, '{"a":' * 900 + "1" + "}" * 900]
DEEP_TOML = ["a = " + "[" * 100_000, "a = " + "[" * 900 + "]" * 900, ".".join(["a"] * 5000) + " = 1"]


@pytest.mark.parametrize("text", DEEP_TOML, ids=("open", "lists", "tables"))
def test_a_config_and_a_suite(run_cli: Cli, folder_of_images: Path, tmp_path: Path, text: str) -> None:
    path = tmp_path / "deep.toml"
    path.write_text(text)
    refused(run_cli("train", "--data", folder_of_images, "--out", tmp_path / "run", "--config", path), path, "nested too deep")
    refused(run_cli("bench", path, "--out", tmp_path / "bench"), path, "nested too deep")


@pytest.mark.parametrize("setting", ["a=" + "[" * 100_000, ".".join(["a"] * 5000) + "=1"], ids=("lists", "tables"))
def test_an_option(run_cli: Cli, folder_of_images: Path, tmp_path: Path, setting: str) -> None:
    refused(run_cli("train", "--data", folder_of_images, "--out", tmp_path / "run", "--set", setting))


@pytest.mark.parametrize("text", DEEP_JSON, ids=("open", "closed"))
def test_json(run_cli: Cli, tmp_path: Path, text: str) -> None:
    data = save_many(tmp_path / "data" / "images").parent
    (data / "data.json").write_text(text)
    refused(run_cli("train", "--data", data, "--out", tmp_path / "run"), data / "data.json")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.json").write_text(text)
        (tmp_path / name / "cases.jsonl").write_text("{}\n")
    refused(run_cli("compare", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "out"), tmp_path / "a", "not valid JSON")


@pytest.mark.parametrize("text", DEEP_JSON, ids=("open", "closed"))
def test_a_cell_of_a_benchmark_is_left_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "a.json").write_text(text)
    found, [warning] = read_cells(tmp_path)
    assert not found
    assert "a.json: damaged or incomplete" in warning


@pytest.mark.parametrize("text", DEEP_JSON, ids=("open", "closed"))
def test_the_state_of_a_run(run_cli: Cli, tiny_bundle: Path, folder_of_images: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(text)
    settings = ("--method", "brightness", "--set", "data.size=32", "--set", "calibrate.features=off")
    done = run_cli("train", "--data", folder_of_images, "--out", tmp_path / "run", "--resume", *settings)
    refused(done, tmp_path / "run" / "run.json", "damaged")
    out = tmp_path / "scored"
    out.mkdir()
    (out / "scored-by.json").write_text(text)
    (out / "scores.jsonl").write_text(json.dumps({}) + "\n")
    refused(run_cli("score", tiny_bundle, folder_of_images, "--out", out), out, "another model")
