"""Stages that end where the loss on held-out normals no longer falls."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Cli, refused
from safetensors.torch import load_file

from reshift.bench.compute import count_updates
from reshift.config import merge
from reshift.inference.bundle import build, load_bundle
from reshift.training.flat import HELD_OUT_LOSS, HeldOut, Lowest, can_end_early
from reshift.training.run import resolve, train_run

SETTINGS: dict[str, dict[str, Any]] = {
    "data": {"size": 32, "holdout": 0.25}, "calibrate": {"features": "off"}, "model": {"epochs": 12, "widths": [8, 8, 8, 8]},
    "train": {"batch": 4, "cache": "off", "checkpoint_seconds": 0.0, "schedule": "constant"},
}  # fmt: skip


def train(data: Path, run: Path, *, method: str = "dae", resume: bool = False, **settings: Any) -> Path:
    train_run(resolve(method, "quick", [merge(SETTINGS, {"train": settings})]), data, run, resume=resume)
    return run


def weights(run: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(run / "bundle" / "model.safetensors")
    return found


def looks(run: Path) -> list[tuple[int, float]]:
    """After how many updates the held-out loss was looked at, and what it was."""
    lines = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return [(line["step"] + 1, line[HELD_OUT_LOSS]) for line in lines if HELD_OUT_LOSS in line]


def updates(run: Path) -> dict[str, int]:
    made: dict[str, int] = json.loads((run / "bundle" / "config.json").read_text())["training"]["updates"]
    return made


def test_a_fall_by_less_than_a_hundredth_is_none() -> None:
    lowest = Lowest().or_now(2.0, 10)
    assert lowest == Lowest(2.0, 10)
    assert lowest.or_now(1.985, 20) == lowest
    assert lowest.or_now(float("nan"), 20) == lowest
    assert lowest.or_now(1.9, 20) == Lowest(1.9, 20)
    assert Lowest(-1.0, 10).or_now(-1.005, 20) == Lowest(-1.0, 10)
    assert Lowest(-1.0, 10).or_now(-1.1, 20) == Lowest(-1.1, 20)


def test_a_stage_that_learns_nothing_more_ends_and_the_bundle_says_when(folder_of_images: Path, tmp_path: Path) -> None:
    run = train(folder_of_images, tmp_path / "run", patience=8, lr=1e-12)
    assert [updates for updates, _ in looks(run)] == [2, 4, 6, 8, 10]  # lowest after 2, and nothing lower for 8
    assert updates(run) == {"denoiser": 10}
    bundle = load_bundle(run / "bundle")
    assert count_updates(bundle.detector, int(bundle.facts["images"]), 4)["denoiser"] > 10
    losses = [loss for _, loss in looks(run)]
    assert losses == pytest.approx(losses[:1] * 5, rel=1e-4)  # the same noise in every look


def test_looking_changes_nothing_that_is_learned(folder_of_images: Path, tmp_path: Path) -> None:
    watched = train(folder_of_images, tmp_path / "watched", patience=1000, lr=1e-2)
    alone = train(folder_of_images, tmp_path / "alone", lr=1e-2)
    assert updates(watched) == updates(alone)
    assert all(torch.equal(weights(watched)[name], value) for name, value in weights(alone).items())
    assert not looks(alone)


def test_an_interrupted_run_ends_where_it_would_have(
    folder_of_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(folder_of_images, tmp_path / "whole", patience=8, lr=1e-4)
    look, left = HeldOut.loss, [3]

    def killed(*args: Any) -> torch.Tensor:
        left[0] -= 1
        if not left[0]:
            raise RuntimeError("killed")
        return look(*args)

    with monkeypatch.context() as patched:
        patched.setattr(HeldOut, "loss", killed)
        with pytest.raises(RuntimeError, match="killed"):
            train(folder_of_images, tmp_path / "run", patience=8, lr=1e-4)
    run = train(folder_of_images, tmp_path / "run", patience=8, lr=1e-4, resume=True)
    assert (looks(run), updates(run)) == (looks(whole), updates(whole))
    assert all(torch.equal(weights(run)[name], value) for name, value in weights(whole).items())


def test_a_stage_from_the_cache_tells_its_updates(folder_of_images: Path, tmp_path: Path) -> None:
    cached: dict[str, Any] = {"cache": str(tmp_path / "cache"), "patience": 8, "lr": 1e-12}
    train(folder_of_images, tmp_path / "a", **cached)
    second = train(folder_of_images, tmp_path / "b", **cached)
    assert not looks(second)
    assert updates(second) == {"denoiser": 10}
    patient = train(folder_of_images, tmp_path / "c", **cached | {"patience": 12})
    assert updates(patient) == {"denoiser": 15}  # another stage: looked at after 3, 6, 9, …


def test_without_held_out_normals_or_with_a_cosine_it_is_refused(run_cli: Cli, folder_of_images: Path, tmp_path: Path) -> None:
    tiny = [f"--set={table}.{name}={value}" for table, values in SETTINGS.items() for name, value in values.items()]
    patient = ("train", "--data", folder_of_images, "--out", tmp_path / "run", "--method", "dae", *tiny, "--set=train.patience=8")
    refused(run_cli(*patient, "--set=data.holdout=0"), "train.patience", "data.holdout")
    refused(run_cli(*patient, "--set=train.schedule=cosine"), "train.patience", "constant")


def test_a_contest_of_two_networks_never_ends_early() -> None:
    stages = build(resolve("fanogan", "quick", [])).stages()
    assert [can_end_early(stage) for stage in stages] == [False, True]
