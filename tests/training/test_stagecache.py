"""Stages that are trained once and shared."""

import json
import shutil
from errno import ENOSPC
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from helpers import Cli, refused
from safetensors import safe_open
from safetensors.torch import load_file

from reshift.config import TrainConfig
from reshift.system.cache import VARIABLE, cache_folder
from reshift.system.files import writing
from reshift.training.run import resolve, train_run
from reshift.training.step import learning_rate

SETTINGS: dict[str, dict[str, Any]] = {
    "data": {"size": 32}, "train": {"batch": 4}, "calibrate": {"features": "off"},
    "model": {"epochs": 2, "widths": [8, 8], "t_star": 4, "timesteps": 8},
}  # fmt: skip
TINY = [f"--set={table}.{name}={value}" for table, values in SETTINGS.items() for name, value in values.items()]
REPAINT = ("--set", "model.repaint_from=2", "--set", "model.resamplings=2")


class First(NamedTuple):
    """The run of a method, and the cache that has its trained stage."""

    run: Path
    cache: Path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, folder_of_images: Path) -> First:
    """DDPM trained with a cache; read only."""
    first = First(tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("cache"))
    train_run(resolve("ddpm", "paper", [SETTINGS, {"train": {"cache": str(first.cache)}}]), folder_of_images, first.run)
    return first


@pytest.fixture
def cache(tmp_path: Path, trained: First) -> tuple[str, str]:
    """A cache with DDPM's stage, as an option."""
    shutil.copytree(trained.cache, tmp_path / "cache")
    return ("--set", f"train.cache={tmp_path / 'cache'}")


def weights(run: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(run / "bundle" / "model.safetensors")
    return found


def test_a_second_method_takes_the_network_of_the_first(
    run_cli: Cli, folder_of_images: Path, tmp_path: Path, trained: First, cache: tuple[str, str]
) -> None:
    data = ("--data", folder_of_images)
    assert run_cli("train", *data, "--out", tmp_path / "b", "--method", "autoddpm", *TINY, *REPAINT, *cache).code == 0
    assert run_cli("train", *data, "--out", tmp_path / "c", "--method", "ddpm", *TINY, "--set", "train.cache=off").code == 0
    first, second, alone = (weights(run) for run in (trained.run, tmp_path / "b", tmp_path / "c"))
    assert all(torch.equal(first[name], second[name]) and torch.equal(first[name], alone[name]) for name in alone)
    assert len(list((tmp_path / "cache").iterdir())) == 1
    lines = [json.loads(line) for line in (tmp_path / "b" / "log.jsonl").read_text().splitlines()]
    assert [set(line) for line in lines] == [{"stage", "cached", "seconds"}]
    (kept,) = (tmp_path / "cache").iterdir()
    with safe_open(kept, framework="pt") as file:
        then = json.loads(file.metadata()["about"])["seconds"]
    now = json.loads((tmp_path / "b" / "bundle" / "config.json").read_text())["training"]["seconds"]
    assert now >= round(then, 1)  # the seconds that training took, in whichever run


@pytest.mark.parametrize("change", ["seed", "epochs", "noise", "lr", "data"])
def test_what_decides_the_weights_is_trained_anew(
    run_cli: Cli, folder_of_images: Path, tmp_path: Path, cache: tuple[str, str], change: str
) -> None:
    data = folder_of_images
    if change == "data":
        data = tmp_path / "fewer"
        data.mkdir()
        for path in sorted(folder_of_images.iterdir())[1:]:
            (data / path.name).write_bytes(path.read_bytes())
    more = {"seed": ("--seed", 1), "epochs": ("--set", "model.epochs=3"), "lr": ("--set", "train.lr=1e-3")}.get(change, ())
    method = "anoddpm" if change == "noise" else "ddpm"
    assert run_cli("train", "--data", data, "--out", tmp_path / "b", "--method", method, *TINY, *more, *cache).code == 0
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_stage_of_another_config_or_a_damaged_one_is_refused(
    run_cli: Cli, folder_of_images: Path, tmp_path: Path, cache: tuple[str, str]
) -> None:
    first = ("train", "--data", folder_of_images, "--method", "ddpm", *TINY, *cache)
    assert run_cli(*first, "--out", tmp_path / "b", "--set", "train.lr=1e-3").code == 0
    one, two = sorted((tmp_path / "cache").iterdir(), key=lambda p: p.stat().st_mtime_ns)
    one.write_bytes(two.read_bytes())
    refused(run_cli(*first, "--out", tmp_path / "c"), one, "another config", "train.lr", "delete it")
    one.write_bytes(two.read_bytes()[:100])
    refused(run_cli(*first, "--out", tmp_path / "d"), one, "damaged", "delete it")


def test_a_cache_that_cannot_be_written_costs_no_training(
    run_cli: Cli, folder_of_images: Path, tmp_path: Path, trained: First
) -> None:
    (tmp_path / "file").touch()
    where = ("--set", f"train.cache={tmp_path / 'file' / 'cache'}")
    train = ("train", "--data", folder_of_images, "--method", "ddpm", *TINY)
    with pytest.warns(UserWarning, match=r"file/cache: the trained stage cannot be kept there \(Not a directory\)"):
        assert run_cli(*train, "--out", tmp_path / "a", *where).code == 0
    first, second = weights(tmp_path / "a"), weights(trained.run)
    assert all(torch.equal(first[name], second[name]) for name in second)


def test_a_full_disk_of_the_cache_costs_no_training(
    run_cli: Cli, folder_of_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ("--set", f"train.cache={tmp_path / 'cache'}")

    def full(path: Path, _data: bytes) -> None:
        with writing(path):
            raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr("reshift.training.stage_cache.atomic_bytes", full)
    with pytest.warns(UserWarning, match=r"cache: the trained stage cannot be kept there \(No space left on device\)"):
        done = run_cli("train", "--data", folder_of_images, "--out", tmp_path / "a", "--method", "ddpm", *TINY, *cache)
    assert done.code == 0
    assert run_cli("info", tmp_path / "a" / "bundle").code == 0


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert cache_folder("auto") == tmp_path
    assert cache_folder("off") is None
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder("auto") == tmp_path / ".cache" / "reshift"


def test_the_learning_rate_warms_up_and_falls() -> None:
    config = TrainConfig(lr=2.0, schedule="cosine", warmup=0.1)
    rates = [learning_rate(config, 100, step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.2 * (i + 1) for i in range(10)])
    assert rates[10] == 2.0
    assert rates[55] == pytest.approx(1.0)
    assert rates == sorted(rates[:11]) + sorted(rates[11:], reverse=True)
    assert 0.0 < rates[-1] < 0.002
    assert {learning_rate(TrainConfig(lr=3.0), 7, step) for step in range(7)} == {3.0}
