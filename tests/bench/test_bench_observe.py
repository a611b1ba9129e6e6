"""What cells keep beside their metrics, its tables, and how shared stages are scheduled and counted."""

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_cells import cell
from bench_suites import HEAD, write_suite

from reshift.bench.cells import Task
from reshift.bench.cost import _seconds, shared_stages
from reshift.bench.local_engine import next_task
from reshift.bench.observe import MapScores, Rules, even_cases
from reshift.bench.plan import group_tasks, plan
from reshift.bench.suite import load_suite
from reshift.bench.tables.cell_metrics import extra_tables
from reshift.bench.trial import Rate, _CutChains
from reshift.data.cases import Case
from reshift.inference.stream import Sample

FAMILY = "".join(
    f'[[rows]]\nmethod = "{name}"\nupdates = {{ epochs = 4 }}\nset = {{ model = {{ widths = [16, 32] }} }}\n'
    for name in ("ddpm", "autoddpm", "anoddpm")
)


def sample(label: int, score: float, heat: Any, mask: Any = None, ignore: Any = None) -> Sample[Case]:
    case = Case("a.png", Path("a.png"), None, "s", label, "test", "")
    return Sample(case, score=score, heatmap=np.asarray(heat, np.float32), mask=mask, ignore=ignore)


class Reference:
    """Thresholds, as a calibration has them."""

    def __init__(self, image: float, pixel: float) -> None:
        self.image_threshold, self.pixel_threshold = image, pixel


class Both:
    training, held_out = Reference(0.2, 0.5), Reference(0.6, 0.8)


def test_both_rules_by_hand() -> None:
    rules = Rules(Both())  # type: ignore[arg-type]
    lesion = np.array([[True, True], [False, False]])
    ignored = np.array([[False, False], [False, True]])
    rules.add(sample(1, 0.9, [[0.9, 0.6], [0.7, 0.9]], lesion, ignored))
    rules.add(sample(1, 0.5, [[0.9, 0.9], [0.9, 0.9]]))  # no mask: says nothing about pixels
    rules.add(sample(0, 0.4, [[0.1, 0.1], [0.1, 0.6]]))
    found = rules.result()
    assert found["training"]["dice"] == pytest.approx(
        2 * 2 / (4 + 2), rel=1e-5
    )  # three called in the first, one in the normal image
    assert found["held-out"]["dice"] == pytest.approx(2 * 1 / (1 + 2), rel=1e-5)
    assert (found["training"]["fpr"], found["held-out"]["fpr"]) == (1.0, 0.0)
    assert (found["training"]["tpr"], found["held-out"]["tpr"]) == (1.0, 0.5)


def test_the_highest_pixels_find_what_a_mean_does_not() -> None:
    scores = MapScores()
    spot = np.zeros((10, 10), np.float32)
    spot[3, 3:5] = 1.0  # two pixels: 2 %
    scores.add(sample(1, 0.0, spot))
    scores.add(sample(0, 0.0, np.full((10, 10), 0.1)))
    assert (scores.result()["mean"]["auc"], scores.result()["top"]["auc"]) == (0.0, 1.0)


def test_kept_cases_depend_on_the_list_alone() -> None:
    cases = [Case(f"{i}.png", Path(f"{i}.png"), Path("m.png") if i % 2 else None, "s", i % 2, "test", "") for i in range(20)]
    kept = even_cases(cases, 3)
    assert kept == {cases[i].name for i in (1, 9, 19)}
    assert even_cases(cases, 0) == set()
    assert len(even_cases(cases, 100)) == 10


def test_extra_tables_of_cells() -> None:
    extra: dict[str, Any] = {
        "thresholds": {"training": {"f1": 0.5, "fpr": 0.1, "tpr": 0.4, "dice": None}},
        "map_scores": {"mean": {"auc": 0.6, "ap": 0.7}, "top": {"auc": 0.8, "ap": 0.9}},
        "training": {"training": {"code_usage": 0.25, "code_perplexity": 12.0, "reconstruction_error": 0.05}, "test": {}},
        "steps": 105_606,
    }
    made = {table.key: table for table in extra_tables([cell("DMD", image={"auc": 0.7}, **extra), cell("old")])}
    assert [metric.caption for metric in made["thresholds"].metrics][:2] == ["F1, training normals", "FPR, training normals"]
    assert [row.label for row in made["training"].rows] == ["DMD"]
    values = {column[1].caption: entry.mean for column, entry in made["training"].rows[0].entries.items()}
    assert values == {"updates": 105_606, "codes in use [%]": 0.25, "perplexity": 12.0, "error, training": 0.05}
    assert [metric.caption for metric in made["scores"].metrics][2] == "AUC, highest 2 %"
    assert extra_tables([cell("old")]) == []


@pytest.fixture
def family(tmp_path: Path) -> list[Task]:
    """Three trainings; the first two share their network."""
    return group_tasks(plan(load_suite(write_suite(tmp_path, HEAD, FAMILY)), None, tmp_path).specs, tmp_path)


def test_a_shared_stage_is_counted_once(family: list[Task]) -> None:
    keys = [shared_stages(task.cells[0]) for task in family]
    assert keys[0] == keys[1] != keys[2]
    rate, trained = Rate(step=100.0, start=0.0, image=0.0, source=""), set[str]()
    assert [_seconds(task, rate, trained) for task in family] == [400.0, 0.0, 400.0]


def test_who_needs_a_stage_that_another_trains_waits(family: list[Task]) -> None:
    tasks = [task._replace(stages=tuple(shared_stages(task.cells[0]))) for task in family]
    waiting = deque(tasks[1:])
    assert next_task(waiting, tasks[:1]) is tasks[2]
    assert next_task(waiting, tasks[:1]) is None
    (tasks[0].folder / "bundle").mkdir(parents=True)
    (tasks[0].folder / "bundle" / "config.json").write_text("{}")  # now it is trained
    assert next_task(waiting, tasks[:1]) is tasks[1]
    assert not waiting


def test_a_long_chain_is_cut_and_its_time_added(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.0, 13.0, 18.0])  # steps of 2, 1 and 5 seconds
    monkeypatch.setattr("reshift.bench.trial.time.perf_counter", lambda: next(clock))
    chains = _CutChains()
    assert list(chains(list(range(250)), "step")) == [0, 1, 2, 3, 249]
    assert chains.left_out == 245 * 2.0
    assert list(chains([1, 2, 3, 4, 5], "step")) == [1, 2, 3, 4, 5]
