"""The time estimate of a dry run."""

from pathlib import Path

import pytest
from bench_suites import DAE, HEAD, SWEEP, write_suite

from reshift.bench import compute
from reshift.bench.cells import Task
from reshift.bench.cost import _rate, _seconds, estimate
from reshift.bench.plan import group_tasks, plan
from reshift.bench.suite import load_suite
from reshift.bench.trial import Rate, measure
from reshift.errors import Stopped


@pytest.fixture
def task(tmp_path: Path) -> Task:
    """Two cells that share a model: 12 images to learn from, 4 held out, 8 tests; 6 steps."""
    [found] = group_tasks(plan(load_suite(write_suite(tmp_path, HEAD, DAE, SWEEP)), None, tmp_path).specs, tmp_path)
    return found


def test_seconds_are_added_up(task: Task) -> None:
    rate = Rate(step=100.0, start=10.0, image=0.01, source="")
    normals, tests = 12 + 4, 8
    predictions = normals + tests + normals + tests  # other prediction settings need their own thresholds
    assert _seconds(task, rate) == pytest.approx(6 * 100.0 + 12 * 10.0 + predictions * 0.01)
    compute.train_model(task, "cpu")
    assert _seconds(task, rate) == pytest.approx((tests + normals + tests) * 0.01)


def test_finished_cells_of_the_method_are_used_first(task: Task) -> None:
    cell = {"method": "dae", "train_seconds": 60.0, "steps": 30, "images_per_second": 4.0}
    slower = cell | {"train_seconds": 120.0, "images_per_second": 2.0}
    other = cell | {"method": "vae", "train_seconds": 1e6}
    rate = _rate(task.cells[0], [cell, slower, slower, other], "cpu")
    assert rate == Rate(step=4.0, start=0.0, image=0.5, source="from 3 finished cells")
    assert list(estimate([task], [cell], 3, "cpu")) == [
        "cost: dae, 2 cells in 1 trainings: about 24 s, from 1 finished cell",
        "cost: about 24 s in all, in 1 process",
    ]


def test_a_method_without_steps_is_estimated_per_image(task: Task) -> None:
    cell = {"method": "dae", "train_seconds": 60.0, "steps": 0, "images_per_second": 4.0}
    rate = _rate(task.cells[0], [cell], "cpu")
    assert rate == Rate(step=0.0, start=5.0, image=0.25, source="from 1 finished cell")


def test_without_finished_cells_some_steps_are_tried(task: Task, tmp_path: Path) -> None:
    rate = measure(task.cells[0], "cpu")
    assert rate.step > 0
    assert rate.image > 0
    assert rate.source == "from a few steps and predictions tried now"
    assert not (tmp_path / "models").exists()


def test_a_trial_that_takes_too_long_is_reported(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def forever(*_: object) -> Rate:
        while True:
            pass

    monkeypatch.setattr("reshift.bench.cost.MAX_SECONDS", 0.1)
    monkeypatch.setattr("reshift.bench.cost.measure", forever)
    assert "take longer than 0.1 s" in str(_rate(task.cells[0], [], "cpu"))


def test_the_estimate_can_be_stopped(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> Rate:
        raise Stopped("stopped")

    monkeypatch.setattr("reshift.bench.cost.measure", stopped)
    with pytest.raises(Stopped):
        _rate(task.cells[0], [], "cpu")
