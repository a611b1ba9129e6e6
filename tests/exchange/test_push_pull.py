"""Bundles that are shared arrive whole or not at all: the hub (a local one), plain addresses, folders."""

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import Cli, labelled, refused
from hub_server import Hub, hub_server

NAMES = ["README.md", "calibration.json", "config.json", "model.safetensors"]
REPO = "clinic/brains"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with hub_server() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        server.token = "secret"
        yield server


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def left(tmp_path: Path) -> list[str]:
    """What a refused pull left behind."""
    return [path.name for path in tmp_path.iterdir() if path.name != "hf"]


def test_a_bundle_goes_to_the_hub_and_comes_back(run_cli: Cli, hub: Hub, tiny_bundle: Path, tmp_path: Path) -> None:
    before = contents(tiny_bundle)
    done = run_cli("push", tiny_bundle, REPO, "--license", "cc-by-4.0")
    assert (done.code, contents(tiny_bundle)) == (0, before), done.err
    assert sorted(hub.repositories[REPO]) == sorted([".gitattributes", "checksums.json", *NAMES])
    out = tmp_path / "pulled"
    assert run_cli("pull", f"{REPO}@main", "--out", out).code == 0
    assert sorted(contents(out)) == NAMES
    assert all(contents(out)[name] == before[name] for name in NAMES if name != "README.md")
    assert before["README.md"].decode() in (out / "README.md").read_text()
    assert run_cli("info", out).code == 0
    assert sorted(left(tmp_path)) == ["pulled"]


def test_the_card_has_metrics_in_the_hubs_schema(run_cli: Cli, hub: Hub, tiny_bundle: Path, tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    evaluated = tmp_path / "evaluation"
    assert run_cli("evaluate", tiny_bundle, "--data", labelled(tmp_path / "data"), "--out", evaluated).code == 0
    assert run_cli("push", tiny_bundle, REPO, "--metrics", evaluated / "metrics.json").code == 0
    card = ModelCard(hub.repositories[REPO]["README.md"].decode())
    measured = json.loads((evaluated / "metrics.json").read_text())
    about: Any = card.data
    assert about.library_name == "reshift"
    results = {result.metric_type: result.metric_value for result in about.eval_results or ()}
    assert results["image.auc"] == measured["image"]["auc"]
    assert results["pixel.ap"] == measured["pixel"]["ap"]
    assert not [name for name in results if name.endswith("_max")]  # no oracles
    assert "# Reshift bundle: brightness" in card.text


def test_metrics_of_another_model_are_refused(run_cli: Cli, hub: Hub, tiny_bundle: Path, tmp_path: Path) -> None:
    other = tmp_path / "metrics.json"
    other.write_text(json.dumps({"dataset": "d", "model_sha256": "0"}))
    refused(run_cli("push", tiny_bundle, REPO, "--metrics", other), "metrics of another model")
    refused(run_cli("push", tiny_bundle, REPO, "--metrics", tmp_path / "none.json"), "none.json", "not a metrics.json")
    assert not hub.repositories


@pytest.mark.parametrize(("status", "words"), [(401, "log in"), (404, "check the name"), (500, "try again")])
def test_what_a_hub_refuses_is_one_line(
    run_cli: Cli, hub: Hub, tiny_bundle: Path, tmp_path: Path, status: int, words: str
) -> None:
    hub.status = status
    refused(run_cli("push", tiny_bundle, REPO), REPO, f"answered {status}", words)
    refused(run_cli("pull", REPO, "--out", tmp_path / "out"), REPO, f"answered {status}", words)
    assert left(tmp_path) == []


def test_a_wrong_token_is_one_line(run_cli: Cli, hub: Hub, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "wrong")
    line = refused(run_cli("push", tiny_bundle, REPO), "answered 401", "HF_TOKEN")
    assert "wrong" not in line


def test_damaged_and_foreign_files_are_not_kept(run_cli: Cli, hub: Hub, tiny_bundle: Path, tmp_path: Path) -> None:
    assert run_cli("push", tiny_bundle, REPO).code == 0
    good, out = dict(hub.repositories[REPO]), tmp_path / "out"
    weights = good["model.safetensors"]
    cases = {
        "SHA-256 differs": {"model.safetensors": weights[:-1] + bytes([weights[-1] ^ 1])},
        "bytes instead of": {"model.safetensors": weights[:-7]},
        "'model.pkl', which is not safetensors": {"model.pkl": b"x"},
        "'run.py', which is not safetensors": {"run.py": b"x"},
        "'../x.json', which is not": {"checksums.json": good["checksums.json"].replace(b'"README.md"', b'"../x.json"')},
        "is damaged": {"checksums.json": b"[]"},
    }
    for words, changed in cases.items():
        hub.repositories[REPO] = {**good, **changed}
        refused(run_cli("pull", REPO, "--out", out), REPO, words)
    hub.repositories[REPO], hub.cut = dict(good), "model.safetensors"
    logging.getLogger("huggingface_hub").setLevel(logging.WARNING)  # as it is where another import came first
    refused(run_cli("pull", REPO, "--out", out), REPO, "try again")
    hub.cut = ""
    hub.repositories[REPO] = {name: data for name, data in good.items() if name != "checksums.json"}
    refused(run_cli("pull", REPO, "--out", out), "has no checksums.json")
    assert left(tmp_path) == []


def test_a_plain_address_and_a_folder(run_cli: Cli, hub: Hub, tiny_bundle: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    assert run_cli("push", tiny_bundle, shared).code == 0
    assert run_cli("pull", shared, "--out", tmp_path / "a").code == 0
    hub.repositories["some/where"] = contents(shared)
    address = f"{hub.address}/some/where/resolve/main"
    assert run_cli("pull", address, "--out", tmp_path / "b").code == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    refused(run_cli("pull", address, "--out", tmp_path / "b"), "exists already")
    hub.cut = "model.safetensors"
    refused(run_cli("pull", address, "--out", tmp_path / "c"), "model.safetensors")
    hub.cut, hub.status = "", 500
    refused(run_cli("pull", address, "--out", tmp_path / "c"), "answered 500")
    refused(run_cli("push", tiny_bundle, address), "cannot be pushed to")
    (shared / "extra.py").write_text("x")
    refused(run_cli("pull", shared, "--out", tmp_path / "c"), "'extra.py'")
    shutil.rmtree(shared)
    assert sorted(left(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize(
    ("place", "words"),
    [("ftp://a/b", "only http"), ("one", "neither a folder"), ("./gone", "no such folder"), ("http://127.0.0.1:9", "downloaded")],
)
def test_places_that_are_none(run_cli: Cli, tmp_path: Path, place: str, words: str) -> None:
    refused(run_cli("pull", place, "--out", tmp_path / "out"), words)
    assert left(tmp_path) == []
