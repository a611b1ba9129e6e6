"""The benchmark scripts measure what they say: the paper's method, and torch's kernels only for as long as they are wanted."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import agreement
import curves
import gpu
import hands
import recipe
import speed
from measure import Bench, Table
from reshift import methods
from reshift.methods.dmd.method import DMD
from reshift.nets import kernels
from reshift.system.workers import VARIABLE

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"unet_widths": [16, 16, 16]}


def test_training_and_inference_are_those_of_dmd() -> None:
    seconds = speed.train(CPU, 0, blocks=2, block=1)
    assert len(seconds) == 2
    assert min(seconds) > 0.0
    for model in (speed.model(CPU, **SMALL), gpu.dmd(CPU, **SMALL)):
        assert isinstance(model.detector, DMD)


def test_our_own_kernels_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "ENABLED", True)
    with agreement.torch_kernels():
        assert not kernels.ENABLED
    assert kernels.ENABLED


def test_growth_has_a_row_per_value_and_an_exponent(capsys: pytest.CaptureFixture[str]) -> None:
    table, done = Table(), list[int]()
    gpu._grow(Bench(table, CPU, True), "masks", [1, 2], lambda value: lambda: done.append(value))
    assert set(done) == {1, 2}
    rows = capsys.readouterr().out.splitlines()
    assert sum("masks = " in row for row in rows) == 4  # seconds and memory of each
    assert "exponent" in rows[-1]


def test_streams_take_every_image_and_memory_is_measured_with_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counted = list[int]()
    monkeypatch.setattr(gpu, "dmd", lambda _device: None)
    monkeypatch.setattr(gpu, "run", lambda _model, pixels: counted.append(len(pixels)))
    gpu.streams(Bench(Table(), CPU, True))
    assert counted[-2:] == [1, 4]
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[3].rstrip(":") for row in rows[1:5]] == ["1", "1", "4", "4"]
    assert "exponent" in rows[-1]


def test_every_method_gets_pictures_of_its_own_size(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ("ae", "brightness")  # 64 and 128 pixels
    monkeypatch.setattr(methods, "METHODS", {name: methods.METHODS[name] for name in wanted})
    gpu.every_method(Bench(Table(), CPU, True))
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[1].rstrip(",") for row in rows[-2:]] == list(wanted)


def test_seconds_of_a_stage_are_those_since_the_stage_before(tmp_path: Path) -> None:
    times = [("autoencoder", 1.5), ("autoencoder", 4.0), ("restoration", 4.25), ("restoration", 9.0)]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"stage": stage, "seconds": seconds}) + "\n" for stage, seconds in times))
    assert recipe.seconds_by_stage(log) == {"autoencoder": 4.0, "restoration": 5.0}


def test_curves_are_read_from_a_log_and_drawn(tmp_path: Path) -> None:
    lines = [{"stage": "autoencoder", "step": 0, "loss": 2.0}, {"stage": "autoencoder", "step": 5, "loss": 1.0},
             {"stage": "restoration", "step": 0, "loss": 9.0, "diffusion": 0.5}]  # fmt: skip
    found = curves.read([json.dumps(line) for line in lines])
    assert found == {"autoencoder": [(0, 2.0), (5, 1.0)], "restoration": [(0, 0.5)]}
    assert curves.draw(dict.fromkeys(curves.WAYS, found), tmp_path / "curves").stat().st_size > 1000


def test_layers_in_half_precision_are_near_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "BATCH", 2)
    table = Table()
    agreement.agreement(Bench(table, CPU, True))
    *layers, ours, theirs = table.rows
    assert len(layers) == 2 * len(agreement.LAYERS)
    assert all(0.0 < row.value < 0.03 for row in layers)
    assert ours.value == theirs.value < 0.001  # codes chosen otherwise than in float64
    exact = [torch.tensor([1.0, -4.0]), torch.tensor([2.0])]
    assert agreement.worst([torch.tensor([1.0, -3.0]), torch.tensor([2.0])], exact) == pytest.approx(0.2)


def test_scoring_is_measured_from_file_to_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (VARIABLE, "RESHIFT_CACHE", "RESHIFT_PREPARED_GB"):
        monkeypatch.setenv(name, "")  # put back afterwards
    arguments = (
        "--pictures",
        "48",
        "--size",
        "64",
        "--helpers",
        "0",
        "1",
        "--device",
        "cpu",
        "--out",
        str(tmp_path / "rows.json"),
    )
    monkeypatch.setattr("sys.argv", ["hands.py", *arguments])
    hands.main()
    assert "1 processes: wall time" in capsys.readouterr().out
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["unit"] for row in rows] == ["images/s", "ms CPU an image"] * (1 + 2 * 4)  # the network; scored twice, read twice
    assert all(row["value"] > 0.0 for row in rows)
