"""Sweeps over lists, of several methods in one figure; and the messages about names in a suite."""

from pathlib import Path
from typing import Any

import pytest
import torch
from bench_cells import cell
from bench_suites import DAE, HEAD, write_suite
from helpers import Cli, refused

from reshift.bench.plan import plan
from reshift.bench.suite import load_suite, value_suffix
from reshift.bench.tables.build import find_sweeps, sweep_table
from reshift.bench.tables.figures import _sweeps_by_figure, sweep_figure
from reshift.errors import UserError
from reshift.evaluation.metrics.table import METRICS
from reshift.methods.diffusion.madad import MADAD, MADADSettings

CDDPM = '[[sweeps]]\nmethod = "cddpm"\nsetting = "model.t_star"\nvalues = [[100], [250, 500]]\ninference = true\n'
DICE = METRICS["pixel.dice"]


def swept(
    method: str, name: str, points: dict[Any, float], dataset: str = "brats", label: str = "", **extra: Any
) -> list[dict[str, Any]]:
    """Cells of one sweep, one seed: value → Dice."""
    values = [list(value) if isinstance(value, tuple) else value for value in points]
    return [
        cell(
            (label or method) + value_suffix(name, value), dataset, method=method, group="sensitivity", pixel={"dice": dice},
            setting={"name": name, "value": value, **extra},
        )
        for value, dice in zip(values, points.values(), strict=True)
    ]  # fmt: skip


def test_a_sweep_over_lists_is_a_row_per_list(tmp_path: Path) -> None:
    suite = load_suite(write_suite(tmp_path, HEAD, CDDPM))
    assert [entry.row for entry in suite.entries] == ["cddpm t_star=100", "cddpm t_star=250+500"]
    specs = plan(suite, None, tmp_path / "out").specs
    assert [spec.predict for spec in specs] == [{"model": {"t_star": [100]}}, {"model": {"t_star": [250, 500]}}]
    assert len({spec.model for spec in specs}) == 1  # one trained model


def test_several_methods_share_a_figure_and_the_first_ones_stable_range_is_shaded() -> None:
    shared = {"figure": "timestep", "axis": "t"}
    ours = swept("dmd", "model.t_star", {100: 0.5, 500: 0.8, 900: 0.79}, label="DMD", **shared)
    theirs = swept("cddpm", "model.t_star", {(100,): 0.3, (500,): 0.4, (900,): 0.1}, label="cDDPM", **shared)
    steps = [
        {**found, "setting": {**found["setting"], "at": 100.0 * found["setting"]["value"]}}
        for found in swept("madad", "model.start", {1: 0.2, 5: 0.3, 9: 0.4}, label="MAD-AD", **shared)
    ]
    [(name, cells)] = _sweeps_by_figure([*ours, *theirs, *steps]).items()
    figure = sweep_figure(cells, DICE)
    assert name == "timestep"
    assert figure is not None
    [ax] = figure.axes
    assert ax.get_xlabel() == "t"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["DMD", "cDDPM", "MAD-AD"]
    drawn = {tuple(map(float, line.get_xdata())) for line in ax.lines}  # type: ignore[arg-type]
    assert drawn == {(100.0, 500.0, 900.0)}  # all three methods lie on one axis
    assert "stable range of DMD" in [text.get_text() for text in ax.texts]


def test_the_range_that_is_stable_on_every_set_is_shaded() -> None:
    sets = {
        "a": {2: 0.5, 3: 0.99, 4: 1.0, 5: 0.98},
        "b": {2: 0.97, 3: 0.98, 4: 1.0, 5: 0.5},
        "c": {2: 1.0, 3: 0.1, 4: 0.1, 5: 0.1},
    }
    both = [found for name in "ab" for found in swept("dmd", "model.mask_side", sets[name], name)]
    figure, apart = sweep_figure(both, DICE), sweep_figure([*both, *swept("dmd", "model.mask_side", sets["c"], "c")], DICE)
    assert figure is not None
    assert apart is not None
    assert [patch.get_x() for patch in figure.axes[0].patches] == [3.0]  # type: ignore[attr-defined]
    assert not apart.axes[0].patches  # they share no range


def test_a_table_says_where_values_lie_on_the_axis() -> None:
    cells = swept("dmd", "model.mask_side", {2: 0.1, 4: 0.2}, axis="mask region size [pixels]")
    for found, at in zip(cells, (256, 1024), strict=True):
        found["setting"]["at"] = at
    [(sweep, mine)] = find_sweeps(cells).items()
    table = sweep_table(sweep, mine)
    assert table is not None
    assert [row.label for row in table.rows] == ["2 (256)", "4 (1024)"]
    assert "In brackets: mask region size [pixels]." in table.notes


def test_a_table_whose_values_are_their_own_places_speaks_of_no_brackets() -> None:
    [(sweep, mine)] = find_sweeps(swept("dmd", "model.t_star", {100: 0.1, 500: 0.2}, axis="diffusion timestep t")).items()
    table = sweep_table(sweep, mine)
    assert table is not None
    assert [row.label for row in table.rows] == ["100", "500"]
    assert not [note for note in table.notes if "brackets" in note]


def test_two_sweeps_of_one_method_and_setting_are_no_seeds_of_each_other() -> None:
    points = {100: 0.9, 500: 0.8, 900: 0.7}
    ours, literal = (swept("dmd", "model.t_star", points, label=label) for label in ("DMD", "DMD, literal"))
    tables = [sweep_table(sweep, mine) for sweep, mine in find_sweeps([*ours, *literal]).items()]
    assert [(table.key, table.title) for table in tables if table] == [
        ("sensitivity-dmd-model.t_star", "Sensitivity of DMD to model.t_star"),
        ("sensitivity-dmd-literal-model.t_star", "Sensitivity of DMD, literal to model.t_star"),
    ]
    assert {entry.seeds for table in tables if table for row in table.rows for entry in row.entries.values()} == {1}
    assert list(_sweeps_by_figure([*ours, *literal])) == ["dmd-model.t_star", "dmd-literal-model.t_star"]


def test_sweeps_of_one_label_in_one_figure_have_curves_of_their_own() -> None:
    steps = swept("dmd", "model.t_star", {2: 0.9, 4: 0.8, 6: 0.7}, label="DMD", figure="both")
    sides = swept("dmd", "model.mask_side", {2: 0.1, 4: 0.2, 6: 0.3}, label="DMD", figure="both")
    [cells] = _sweeps_by_figure([*steps, *sides]).values()
    figure = sweep_figure(cells, DICE)
    assert figure is not None
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named == ["DMD (dmd, model.t_star)", "DMD (dmd, model.mask_side)"]


def test_mad_ad_may_begin_its_correction_at_an_earlier_step() -> None:
    asked = list[int]()

    class Denoiser(torch.nn.Module):
        def forward(self, z: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            asked.append(int(t[0]))
            return z, torch.ones_like(z[:, :1])

    small = MADADSettings(start=3, autoencoder_width=8, widths=(16,), blocks=1)
    model = MADAD(small, 32, 1)
    model.denoiser = Denoiser()  # type: ignore[assignment]
    model.correct(torch.zeros(1, 4, 4, 4))
    assert asked == [3, 2, 1]
    with pytest.raises(ValueError, match="start 11 exceeds timesteps 10"):
        MADADSettings(start=11)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CDDPM.replace("inference", "at = [1]\ninference"), "'at' has 1 places for 2 values"),
        (DAE + '[figures]\nrows = ["dea"]\n', "figures: unknown row 'dea'; did you mean 'dae'?"),
        (DAE + '[figures]\ndatasets = ["brian"]\n', "figures: unknown data set 'brian'; did you mean 'brain'?"),
        (DAE + "[figures]\nrow = []\n", "'figures.row'; did you mean 'figures.rows'?"),
        (CDDPM.replace("t_star", "t_stra"), "unknown setting 'model.t_stra'; did you mean 'model.t_star'?"),
        (DAE.replace("{ epochs", "{ epoch"), "row 'dae': unknown setting 'model.epoch'; did you mean 'model.epochs'?"),
        (DAE + "profile = 'papr'\n", "row 'dae': unknown profile 'papr'; did you mean 'paper'?"),
        (DAE.replace("{ model =", "{ modle ="), "unknown setting 'modle'; did you mean 'model'?"),
    ],
)
def test_a_wrong_name_is_one_line_with_the_nearest_even_without_the_data(
    tmp_path: Path, run_cli: Cli, text: str, words: str
) -> None:
    elsewhere = HEAD.split("[datasets.brain]", maxsplit=1)[0] + '[datasets.brain]\nmanifest = "gone/manifest.csv"\n'
    suite = write_suite(tmp_path, elsewhere, text)
    line = refused(run_cli("bench", suite, "--out", tmp_path / "out", "--data", tmp_path, "--dry-run"), words)
    assert str(suite) in line


def test_a_misspelt_folder_of_data_gets_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "brats2021").mkdir()
    elsewhere = HEAD.split("[datasets.brain]", maxsplit=1)[0] + '[datasets.brain]\nmanifest = "brats201/manifest.csv"\n'
    [blocked] = plan(load_suite(write_suite(tmp_path, elsewhere, DAE)), tmp_path, tmp_path / "out").blocked
    assert blocked.why.endswith("; did you mean 'brats2021'?")


def test_both_rules_add_a_held_out_cell_per_row(tmp_path: Path) -> None:
    suite = load_suite(write_suite(tmp_path, "both_rules = 0.25\nseeds = [3, 4]", HEAD, DAE, CDDPM))
    added = [entry for entry in suite.entries if entry.group == "thresholds"]
    assert [(entry.row, entry.seed) for entry in added] == [("dae, 25% held out", 3)]
    assert added[0].layers[1]["data"] == {"holdout": 0.25}
    with pytest.raises(UserError, match="both_rules"):
        load_suite(write_suite(tmp_path, "both_rules = 2", HEAD, DAE))
