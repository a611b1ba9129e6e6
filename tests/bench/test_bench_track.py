"""Tracking with TensorBoard and MLflow: every finite metric of a cell, no cell twice, one line if an extra is missing."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from bench_cells import broken, cell

from reshift.bench.track import scalars, tracking
from reshift.errors import UserError

METRICS: dict[str, Any] = {
    "image": {"auc": 0.9, "ap": None, "threshold": float("inf")},
    "pixel": {"ap": 0.25},
    "normative": {"rqi": 0.5, "features": "a network"},
}


def test_scalars_are_the_finite_numbers() -> None:
    found = scalars(cell("DAE", **METRICS))
    assert found == {
        "image/auc": 0.9, "pixel/ap": 0.25, "normative/rqi": 0.5, "cost/train_seconds": 10.0, "cost/images_per_second": 50.0,
    }  # fmt: skip
    assert scalars(broken("DAE")) == {}


def test_tensorboard_shows_a_curve_over_seeds(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with tracking(["tensorboard"], tmp_path) as track:
        for seed, auc in enumerate((0.5, 0.75)):
            track(cell("w/o x", "busi", seed, image={"auc": auc}))
        track(broken("w/o x", "busi", 2))
    board = accumulator.EventAccumulator(str(tmp_path / "tensorboard" / "busi" / "w-o-x")).Reload()
    assert [(event.step, event.value) for event in board.Scalars("image/auc")] == [(0, 0.5), (1, 0.75)]


@pytest.mark.parametrize(
    ("kind", "module", "extra"), [("tensorboard", "torch.utils.tensorboard", "log"), ("mlflow", "mlflow.tracking", "mlflow")]
)
def test_a_missing_extra_is_one_line(kind: Any, module: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"pip install 'reshift\[{extra}\]'$"), tracking([kind], tmp_path):
        pass


class FakeClient:
    """The part of MLflow's client that tracking uses; all clients share their data, as with a server."""

    runs: dict[str, dict[str, Any]] = {}  # noqa: RUF012
    made: list[str] = []  # noqa: RUF012
    broken = False

    def __init__(self, tracking_uri: str) -> None:
        if tracking_uri.startswith("nowhere"):
            raise RuntimeError("no such server\nand a long story")
        self.where = tracking_uri

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id=name) if name in self.made else None

    def create_experiment(self, name: str) -> str:
        self.made.append(name)
        return name

    def search_runs(self, _: list[str], wanted: str, max_results: int) -> list[Any]:
        return [run for run in self.runs.values() if f"'{run['tag']}'" in wanted][:max_results]

    def create_run(self, _: str, tags: dict[str, str], run_name: str) -> Any:
        if self.broken:
            raise ConnectionError("gone\nfor good")
        self.runs[run_name] = {"tag": tags["reshift.key"], "metrics": {}, "params": {}, "ended": False}
        return SimpleNamespace(info=SimpleNamespace(run_id=run_name))

    def log_param(self, run: str, name: str, value: str) -> None:
        self.runs[run]["params"][name] = value

    def log_metric(self, run: str, name: str, value: float) -> None:
        self.runs[run]["metrics"][name] = value

    def set_terminated(self, run: str) -> None:
        self.runs[run]["ended"] = True


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    module = ModuleType("mlflow.tracking")
    module.MlflowClient = FakeClient  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow.tracking", module)
    monkeypatch.setitem(sys.modules, "mlflow", ModuleType("mlflow"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(FakeClient, "runs", {})
    monkeypatch.setattr(FakeClient, "made", [])
    return FakeClient


def test_mlflow_has_one_run_per_cell(client: type[FakeClient], tmp_path: Path) -> None:
    swept = cell("t=5", seed=1, setting={"name": "model.t_star", "value": 5}, **METRICS)
    for _ in range(2):
        with tracking(["mlflow"], tmp_path) as track:
            track(swept)
            track(broken("DAE"))
    assert client.made == ["reshift test"]
    (run,) = client.runs.values()
    assert run["metrics"] == scalars(swept)
    assert (run["params"]["seed"], run["params"]["model.t_star"], run["ended"]) == ("1", "5", True)


def test_a_server_that_cannot_be_reached_is_one_line(
    client: type[FakeClient], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://x")
    with pytest.raises(UserError, match=r"^MLflow cannot use nowhere://x: RuntimeError: no such server; set "):
        tracking(["mlflow"], tmp_path).__enter__()
    assert client.runs == {}


def test_a_server_that_stops_answering_ends_tracking_and_nothing_else(
    client: type[FakeClient], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "broken", True)
    with tracking(["mlflow"], tmp_path) as track:
        for seed in range(3):
            track(cell("DAE", seed=seed, **METRICS))
    assert capsys.readouterr().err == "warning: tracking stopped: ConnectionError: gone\n"


def test_mlflow_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    pytest.importorskip("sqlalchemy", reason="mlflow without its database")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for _ in range(2):
        with tracking(["mlflow"], tmp_path) as track:
            track(cell("DAE", **METRICS))
    tracked: Any = sys.modules["mlflow.tracking"].MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = tracked.search_runs([tracked.get_experiment_by_name("reshift test").experiment_id])
    assert run.data.metrics == scalars(cell("DAE", **METRICS))
