"""Evaluations that differ in one setting are a sweep, and are drawn as one; others are refused."""

from pathlib import Path
from typing import Any

import pytest
from evaluations import folder, write
from helpers import Cli

from reshift.errors import UserError
from reshift.evaluation.results import Results
from reshift.reports.figures.sweep import find_sweep, stable_range


def run(seed: int = 0, auc: float | None = 0.5, ap: float | None = 0.2, **settings: Any) -> Results:
    metrics = {"method": "dmd", "dataset": "d", "seed": seed, "settings": {"t_star": 500, "masking": True, **settings}}
    return Results(Path(f"{seed}"), {**metrics, "image": {"auc": auc}, "pixel": {"ap": ap}}, [])


def test_the_setting_that_varies_is_found_seeds_aside() -> None:
    runs = [run(seed, auc=t / 1000 + seed / 100, t_star=t) for t in (900, 100, 500) for seed in (0, 1)]
    found = find_sweep(runs)
    assert found.setting == "t_star"
    assert found.curves["AUC"] == [(100.0, [0.1, 0.11]), (500.0, [0.5, 0.51]), (900.0, [0.9, 0.91])]
    assert [x for x, _ in found.curves["AP_pix"]] == [100.0, 500.0, 900.0]


def test_nested_settings_and_missing_metrics() -> None:
    runs = [run(ap=None, dmd={"lambda_cls": value}) for value in (0.1, 1.0, 10.0)]
    found = find_sweep(runs)
    assert found.setting == "dmd.lambda_cls"
    assert set(found.curves) == {"AUC"}


@pytest.mark.parametrize(("runs", "message"), [
    ([run(), run(1)], "they differ in none"),
    ([run(t_star=1), run(t_star=2, x=3), run(t_star=3)], "they differ in t_star, x"),
    ([run(t_star=1), run(t_star=2)], "at least 3 different numbers of t_star, not 1, 2"),
    ([run(masking=True), run(masking=False), run(masking=True)], "numbers of masking"),
])  # fmt: skip
def test_other_evaluations_are_refused(runs: list[Results], message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_sweep(runs)


def test_the_stable_range_is_around_the_best_value() -> None:
    curve = [(1.0, [0.99]), (2.0, [0.5]), (3.0, [0.96, 0.98]), (4.0, [1.0]), (5.0, [0.951]), (6.0, [0.94])]
    assert stable_range(curve) == ((3.0, 5.0), 4.0)
    assert stable_range([(1.0, [0.1]), (2.0, [])]) == ((1.0, 1.0), 1.0)


def test_from_the_command_line(run_cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folders = []
    for floor in (0.05, 0.1, 0.2):
        found = folder(tmp_path / str(floor), "area", normal=6, abnormal=6, features=False)
        image, pixel = {**found.metrics["image"], "auc": 0.5 + floor}, {**found.metrics["pixel"], "ap": floor}
        metrics = {**found.metrics, "image": image, "pixel": pixel, "settings": {"floor": floor}}
        folders.append(write(found.folder, metrics, found.cases).folder)
    done = run_cli("figures", *folders, "--out", tmp_path / "figures")
    assert str(tmp_path / "figures" / "sensitivity.png") in done.out.splitlines()
