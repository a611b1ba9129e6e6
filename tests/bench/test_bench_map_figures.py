"""Figures of kept heat-maps: a row or data set that they do not show has a tile or a line that says so."""

from pathlib import Path
from typing import Any

import pytest
from bench_cells import cell
from evaluations import folder

from reshift.bench.suite import Figures
from reshift.bench.tables.map_figures import MAX_PANELS, MAX_ROWS, map_figures

pytest.importorskip("matplotlib")


def evaluated(root: Path, row: str, dataset: str, **how: Any) -> dict[str, Any]:
    """A finished cell with the evaluation that ``--keep-maps`` leaves."""
    found = cell(row, dataset, image={"auc": 0.5})
    folder(root, found["key"], **{"normal": 2, "abnormal": 3, "features": False, **how})
    return found


def bare(row: str, dataset: str) -> dict[str, Any]:
    """A finished cell without maps."""
    return cell(row, dataset, image={"auc": 0.5})


def titles(figure: Any) -> list[str]:
    return [ax.get_title() for ax in figure.axes if ax.get_title()]


def test_a_row_that_one_set_lacks_is_drawn_for_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [evaluated(tmp_path, "AE", "a"), evaluated(tmp_path, "VAE", "a"), bare("AE", "b"), evaluated(tmp_path, "VAE", "b")]
    figure = map_figures(cells, tmp_path, Figures(cases=1))["qualitative"]
    assert titles(figure) == ["input", "AE", "VAE", "truth"]
    empty = [[text.get_text() for text in ax.texts] for ax in figure.axes[:8]]
    assert empty == [[], [], [], [], [], ["no map"], [], []]
    assert capsys.readouterr().err.splitlines() == ["left out of the figures of heat-maps of b: AE (no maps were kept)"]


def test_sets_without_a_common_row_share_a_figure(tmp_path: Path) -> None:
    cells = [evaluated(tmp_path, "AE", "a"), bare("VAE", "a"), bare("AE", "b"), evaluated(tmp_path, "VAE", "b")]
    assert titles(map_figures(cells, tmp_path, Figures(cases=1))["qualitative"]) == ["input", "AE", "VAE", "truth"]


def test_a_set_without_any_map_or_without_a_common_image_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [evaluated(tmp_path, "AE", "a"), bare("AE", "b"), evaluated(tmp_path, "AE", "c", abnormal=0)]
    assert set(map_figures(cells, tmp_path, Figures())) == {"qualitative", "pixel-histogram-a"}
    assert capsys.readouterr().err.splitlines() == [
        "left out of the figures of heat-maps of b: AE (no maps were kept)",
        "left out of figure qualitative: c (no abnormal image has a map of every row)",
        "no figure pixel-histogram-c: no evaluation has lesion masks, so there are no abnormal pixels to show",
    ]


def test_rows_and_sets_beyond_the_room_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"row {i}" for i in range(MAX_ROWS + 2)]
    figures = map_figures([evaluated(tmp_path, row, "a") for row in rows], tmp_path, Figures(cases=1))
    assert titles(figures["qualitative"]) == ["input", *rows[2:], "truth"]
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("left out of the figures of heat-maps: row 0, row 1 (8 rows at most;")
    sets = [f"s{i}" for i in range(MAX_PANELS + 1)]
    cells = [{**evaluated(tmp_path, "DMD", name, features=True), "group": "ours"} for name in sets]
    cells.append({**evaluated(tmp_path, "DMD", "plain"), "group": "ours"})
    assert len(map_figures(cells, tmp_path, Figures(cases=1))["tsne-dmd"].axes) == MAX_PANELS
    assert capsys.readouterr().err.splitlines() == [
        "left out of figure tsne-dmd: plain (no image features)",
        "left out of figure tsne-dmd: s5 (5 data sets at most; [figures] may choose others)",
    ]


def test_without_kept_maps_nothing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert map_figures([bare("AE", "a")], tmp_path, Figures()) == {}
    assert capsys.readouterr().err == ""
