"""The benchmark scripts measure what they say: the paper's method, and torch's own norms only for as long as they are wanted."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import gpu
import speed
from measure import Bench, Table
from reshift import methods
from reshift.methods.dmd import DMD
from reshift.nets import groupnorm, norm_pool

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"unet_widths": [16, 16, 16]}


def test_training_and_inference_are_those_of_dmd() -> None:
    seconds = speed.train(CPU, 0, blocks=2, block=1)
    assert len(seconds) == 2
    assert min(seconds) > 0.0
    for model in (speed.model(CPU, **SMALL), gpu.dmd(CPU, **SMALL)):
        assert isinstance(model.detector, DMD)


def test_torch_s_own_norms_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groupnorm, "FUSED", True)
    monkeypatch.setattr(norm_pool, "FUSED", True)
    with gpu.torch_norms():
        assert not groupnorm.FUSED
        assert not norm_pool.FUSED
    assert groupnorm.FUSED
    assert norm_pool.FUSED


def test_growth_has_a_row_per_value_and_an_exponent(capsys: pytest.CaptureFixture[str]) -> None:
    table, done = Table(), list[int]()
    gpu._grow(Bench(table, CPU, True), "masks", [1, 2], lambda value: lambda: done.append(value))
    assert set(done) == {1, 2}
    rows = capsys.readouterr().out.splitlines()
    assert sum("masks = " in row for row in rows) == 4  # seconds and memory of each
    assert "exponent" in rows[-1]


def test_every_method_gets_pictures_of_its_own_size(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ("ae", "brightness")  # 64 and 128 pixels
    monkeypatch.setattr(methods, "METHODS", {name: methods.METHODS[name] for name in wanted})
    gpu.every_method(Bench(Table(), CPU, True))
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[1].rstrip(",") for row in rows[-2:]] == list(wanted)
