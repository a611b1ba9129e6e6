"""A sweep among evaluations is found, drawn and, where it is none, refused."""

from pathlib import Path
from typing import Any

import pytest
from helpers import Cli

from reshift.data.phantom import write_phantom
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


def test_nested_settings_and_missing_figures() -> None:
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
def test_what_is_no_sweep(runs: list[Results], message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_sweep(runs)


def test_the_stable_range_is_what_comes_near_the_best_beside_it() -> None:
    curve = [(1.0, [0.99]), (2.0, [0.5]), (3.0, [0.96, 0.98]), (4.0, [1.0]), (5.0, [0.951]), (6.0, [0.94])]
    assert stable_range(curve) == ((3.0, 5.0), 4.0)
    assert stable_range([(1.0, [0.1]), (2.0, [])]) == ((1.0, 1.0), 1.0)


def test_from_the_command_line(run_cli: Cli, tmp_path: Path) -> None:
    data = write_phantom(tmp_path / "data", train=12, test_normal=6, test_abnormal=6, size=32)
    folders = []
    for floor in (0.05, 0.1, 0.2):
        base = tmp_path / str(floor)
        settings = ("--method", "area", "--set", "data.size=32", "--set", f"model.floor={floor}")
        assert run_cli("train", "--data", data, "--out", base, *settings, "--set", "calibrate.features=off").code == 0
        assert run_cli("evaluate", base / "bundle", "--data", data, "--out", base / "evaluation").code == 0
        folders.append(base / "evaluation")
    done = run_cli("figures", *folders, "--out", tmp_path / "figures")
    assert str(tmp_path / "figures" / "sensitivity.png") in done.out.splitlines()
    assert "no figure sensitivity" in run_cli("figures", *folders[:1] * 3, "--out", tmp_path / "again").out
