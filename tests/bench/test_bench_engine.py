"""The local engine: if a worker dies, one cell fails and the others are computed."""

from pathlib import Path

import pytest
from bench_suites import HEAD, cells_in, results_in, write_suite
from helpers import Cli

from reshift.bench.local_engine import devices, max_threads
from reshift.errors import UserError

MORTAL = """
import os, signal
from typing import ClassVar
from reshift.config import Frozen
from reshift.methods.trivial import Brightness

class MortalSettings(Frozen):
    deadly: bool = False
    gain: float = 1.0

class Mortal(Brightness):
    Settings: ClassVar[type[Frozen]] = MortalSettings

    def forward(self, x):
        if self.settings.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)
"""
ROWS = """
[[rows]]
label = "first"
method = "mortal:Mortal"
[[rows]]
label = "deadly"
method = "mortal:Mortal"
predict = { model = { deadly = true } }
[[rows]]
label = "last"
method = "mortal:Mortal"
predict = { model = { gain = 2.0 } }
"""


@pytest.fixture
def mortal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A suite with a method that kills its process in one of three cells that share a model."""
    (tmp_path / "mortal.py").write_text(MORTAL)
    monkeypatch.setenv("RESHIFT_METHODS", "mortal:Mortal")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    return write_suite(tmp_path, HEAD, ROWS)


def test_a_worker_that_dies_loses_only_its_current_cell(mortal: Path, tmp_path: Path, run_cli: Cli) -> None:
    out = tmp_path / "out"
    found = run_cli("bench", mortal, "--out", out, "--device", "cpu")
    assert found.code == 3
    cells = {cell["row"]: cell for cell in cells_in(out).values()}
    assert {row: cell["status"] for row, cell in cells.items()} == {"first": "done", "deadly": "failed", "last": "done"}
    assert cells["deadly"]["error"] == "its worker was ended by SIGKILL (out of memory?); see logs/worker-0.log"
    assert cells["first"]["method"] == "mortal:Mortal"
    before = results_in(out)
    assert run_cli("bench", mortal, "--out", out, "--device", "cpu", "--only", "*-last-*").code == 0
    assert results_in(out) == before


def test_the_device_of_each_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices(0, "cpu") == ["cpu"]
    assert devices(3, "cpu") == ["cpu"] * 3
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert devices(0, "auto") == ["cuda:0", "cuda:1"]
    assert devices(3, "cuda") == ["cuda:0", "cuda:1", "cuda:0"]
    assert devices(2, "cuda:1") == ["cuda:1", "cuda:1"]
    with pytest.raises(UserError, match="cuda:2"):
        devices(0, "cuda:2")


def test_the_user_can_limit_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    for given, allowed in (("", 8), ("4", 4), ("64", 8), ("0", 8), ("many", 8)):
        monkeypatch.setenv("OMP_NUM_THREADS", given)
        assert max_threads() == allowed
