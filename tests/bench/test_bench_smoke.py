"""A smaller ``suites/smoke.toml`` from end to end: what it writes, and that nothing is computed twice."""

import shutil
from pathlib import Path

import pytest
from bench_suites import cells_in, results_in, run_in_process, smaller_smoke, times
from helpers import Cli, assert_nothing_half_written

pytestmark = pytest.mark.usefixtures("in_process")


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A smaller smoke suite and its output folder."""
    from reshift.bench.run import Options, bench

    folder, said = tmp_path_factory.mktemp("smoke"), list[str]()
    suite = smaller_smoke(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reshift.bench.local_engine.run_local", run_in_process)
        assert bench(Options(suite, folder / "out"), said.append, said.append) == 0
    assert said[-1] == "14 of 14 cells finished"
    return suite, folder / "out"


def test_the_smoke_suite_writes_cells_models_and_tables(smoke: tuple[Path, Path]) -> None:
    _, out = smoke
    cells = cells_in(out)
    assert len(cells) == 14
    assert {cell["status"] for cell in cells.values()} == {"done"}
    assert len(list((out / "models").iterdir())) == 5  # the sweep and the other data set train none
    for name in ("tables.md", "tables.tex", "tables.csv"):
        assert "DMD" in (out / name).read_text()
    assert list((out / "figures").iterdir())
    by_row = {(cell["row"], cell["dataset"]): cell for cell in cells.values()}
    plain, swept = by_row["DMD", "brain"], by_row["DMD t_star=500", "brain"]
    assert plain["metrics"] == swept["metrics"]  # computed once
    assert (swept["group"], swept["setting"]) == ("sensitivity", {"name": "model.t_star", "value": 500})
    assert plain["paired"]["scores"] != by_row["DMD", "other_brain"]["paired"]["scores"]
    assert by_row["DMD", "other_brain"]["trained_on"] == "brain"
    assert plain["metrics"]["pixel"] != by_row["DMD t_star=100", "brain"]["metrics"]["pixel"]
    assert_nothing_half_written(out / "cells")


def test_a_second_run_does_nothing(smoke: tuple[Path, Path], run_cli: Cli) -> None:
    suite, out = smoke
    before = {**times(out / "cells"), **times(out / "models"), **times(out / "evaluations")}
    again = run_cli("bench", suite, "--out", out)
    assert again.code == 0
    assert "14 cells, 14 finished and valid, 0 to run" in again.out
    assert {**times(out / "cells"), **times(out / "models"), **times(out / "evaluations")} == before


def test_a_deleted_cell_is_run_again_without_training(smoke: tuple[Path, Path], run_cli: Cli, tmp_path: Path) -> None:
    suite, done = smoke
    out = Path(shutil.copytree(done, tmp_path / "out"))
    [lost] = (out / "cells").glob("brain-dmd-t_star-300-*.json")
    lost.unlink()
    before = times(out / "models") | times(out / "cells")
    again = run_cli("bench", suite, "--out", out)
    assert again.code == 0
    assert "13 finished and valid, 1 to run" in again.out
    assert [line.split()[1] for line in again.err.splitlines() if line.startswith("started ")] == ["brain-dmd-t_star-300-0"]
    after = times(out / "models") | times(out / "cells")
    assert {path for path in after if after[path] != before.get(path)} == {lost}
    assert results_in(out) == results_in(done)
