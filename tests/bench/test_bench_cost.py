"""The time estimate of a dry run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from bench_suites import DAE, HEAD, SWEEP, write_suite
from helpers import write_manifest
from volumes import SHAPE, save_head

from reshift.bench import compute
from reshift.bench.cells import Task
from reshift.bench.compute import machine
from reshift.bench.cost import _count_tests, _rate, _seconds, estimate
from reshift.bench.plan import group_tasks, plan
from reshift.bench.suite import load_suite
from reshift.bench.trial import Rate, measure, predict_key, repeat, straight_line, warm_median
from reshift.config import DataConfig, merge
from reshift.errors import Stopped


@pytest.fixture
def task(tmp_path: Path) -> Task:
    """Two cells that share a model: 12 images to learn from, 4 held out, 8 tests; 6 steps."""
    [found] = group_tasks(plan(load_suite(write_suite(tmp_path, HEAD, DAE, SWEEP)), None, tmp_path).specs, tmp_path)
    return found


def finished(task: Task, **change: Any) -> dict[str, Any]:
    """A finished cell of the task on this machine: 2 s a step, 0.25 s a prediction, as much beside it."""
    measured = {"train_seconds": 60.0, "steps": 30, "images_per_second": 4.0}
    record = {"metrics": {"seconds": 4.0}, "paired": {"scores": [0.5] * 8}, "machine": machine(torch.device("cpu"))}
    return {**task.cells[0].record(), **measured, **record, **change}


def test_seconds_are_added_up(task: Task) -> None:
    rate = Rate(step=100.0, start=10.0, image=0.01, source="", beside=0.002, cell=3.0)
    normals, tests = 12 + 4, 8
    predictions = normals + tests + normals + tests  # other prediction settings need their own thresholds
    assert _seconds(task, rate) == pytest.approx(6 * 100.0 + 12 * 10.0 + predictions * 0.012 + 2 * 3.0)
    slower = rate._replace(by_predict=((predict_key(task.cells[1].predict), 0.03),))
    assert _seconds(task, slower) == pytest.approx(_seconds(task, rate) + (normals + tests) * 0.02)
    compute.train_model(task, "cpu")
    assert _seconds(task, rate) == pytest.approx((tests + normals + tests) * 0.012 + 2 * 3.0)


def test_every_slice_of_a_volume_is_counted(tmp_path: Path) -> None:
    save_head(tmp_path / "one.nii.gz")
    (tmp_path / "two.nii.gz").write_bytes(b"damaged: the evaluation will say so")
    path = write_manifest(tmp_path, "one.nii.gz,,a,0,test,", "two.nii.gz,,b,1,test,")
    assert _count_tests(str(path), DataConfig(min_foreground=0.0).model_dump_json()) == SHAPE[0] - 2  # the outermost are empty


def test_finished_cells_with_the_same_settings_are_used_first(task: Task) -> None:
    cell = finished(task)
    slower = finished(task, train_seconds=120.0, images_per_second=2.0)
    others = [
        finished(task, method="vae", train_seconds=1e6),
        finished(task, trained_on="elsewhere", train_seconds=1e6),
        finished(task, machine={"cpu": "another", "gpu": None}, train_seconds=1e6),
        finished(task, config=merge(cell["config"], {"model": {"widths": [8, 8]}}), train_seconds=1e6),
    ]
    rate = _rate(task.cells, [cell, slower, slower, *others], "cpu")
    assert isinstance(rate, Rate)
    assert rate[:4] == (4.0 / 8, 0.0, 0.5, "from 3 finished cells")
    assert rate.beside == 0.0  # 0.5 s of evaluation per image are all prediction
    lines = list(estimate([task], [cell], 3, "cpu"))
    assert lines == [  # 6 steps of 2 s, and 48 images of 0.5 s
        "cost: dae, 2 cells in 1 training: about 36 s, from 1 finished cell",
        "cost: about 36 s in all, in 1 process",
    ]


def test_each_prediction_setting_has_its_own_time(task: Task) -> None:
    slow = finished(task, predict=task.cells[1].predict, images_per_second=0.1)
    rate = _rate(task.cells, [finished(task), slow], "cpu")
    assert isinstance(rate, Rate)
    assert (rate.image_of({}), rate.image_of(task.cells[1].predict)) == (0.25, 10.0)
    assert rate.image_of({"calibrate": {"pixel_quantile": 0.9}}) == 0.25  # changes a threshold only


def test_restorations_are_not_counted_as_other_work(task: Task) -> None:
    rate = _rate(task.cells, [finished(task, metrics={"seconds": 8.0, "normative": {"rqi": 0.5}})], "cpu")
    assert isinstance(rate, Rate)
    assert rate.beside == 0.5  # of 1 s per image, two predictions take 0.25 s each


def test_a_method_without_steps_is_estimated_per_image(task: Task) -> None:
    rate = _rate(task.cells, [finished(task, steps=0)], "cpu")
    assert isinstance(rate, Rate)
    assert rate[:4] == (0.0, 5.0, 0.25, "from 1 finished cell")


def test_on_a_cpu_a_step_with_fewer_images_takes_less(task: Task) -> None:
    rate = _rate(task.cells, [finished(task)], "cpu")
    assert isinstance(rate, Rate)
    assert (rate.of("any", 8), rate.of("any", 4)) == (2.0, 1.0)  # the cell had 8 images in a batch
    assert Rate(step=2.0, start=0.0, image=0.0, source="").of("any", 4) == 2.0  # on a GPU


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [([], 0.0), ([7.0], 7.0), ([9.0, 2.0], 2.0), ([9.0, 9.0, 1.0, 2.0, 8.0], 2.0), ([5.0, 5.0, 1.0, 2.0, 3.0, 30.0], 3.0)],
)
def test_the_first_half_warms_up(seconds: list[float], expected: float) -> None:
    assert warm_median(seconds) == expected


@pytest.mark.parametrize(
    ("times", "expected", "calls"),
    [
        ([5.0, 1.0, 2.0, 4.0, 2.0, 0.5], 2.0, 6),  # the first warms up
        ([8.0, 6.0, 7.0], 6.5, 3),  # no more after ten seconds
        ([11.0], 11.0, 1),
    ],
)
def test_a_slow_prediction_is_repeated_less_often(times: list[float], expected: float, calls: int) -> None:
    left = list(times)
    assert repeat(lambda: left.pop(0)) == expected
    assert len(times) - len(left) == calls


def test_two_evaluations_give_the_seconds_of_an_image_and_those_of_none() -> None:
    assert straight_line((4, 3.0), (20, 11.0)) == (0.5, 1.0)
    assert straight_line((4, 3.0), (20, 2.0)) == (0.0, 3.0)  # noise
    assert straight_line((4, 1.0), (20, 9.0)) == (0.5, 0.0)
    assert straight_line((2, 3.0), (2, 3.0)) == (0.0, 3.0)  # a set of two images


def test_without_finished_cells_some_steps_are_tried(task: Task, tmp_path: Path) -> None:
    rate = measure(task.cells, "cpu")
    assert rate.step > 0
    assert rate.image > 0
    assert rate.beside + rate.cell > 0
    assert [key for key, _ in rate.by_predict] == [predict_key(task.cells[1].predict)]
    assert rate.source == "from a few steps and predictions tried now"
    assert not (tmp_path / "models").exists()


def test_a_trial_that_takes_too_long_is_reported(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def forever(*_: object) -> Rate:
        while True:
            pass

    monkeypatch.setattr("reshift.bench.cost.MAX_SECONDS", 0.1)
    monkeypatch.setattr("reshift.bench.cost.measure", forever)
    assert "take longer than 0.1 s" in str(_rate(task.cells, [], "cpu"))


def test_the_estimate_can_be_stopped(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> Rate:
        raise Stopped("stopped")

    monkeypatch.setattr("reshift.bench.cost.measure", stopped)
    with pytest.raises(Stopped):
        _rate(task.cells, [], "cpu")
