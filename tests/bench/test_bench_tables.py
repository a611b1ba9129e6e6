"""Tables of a benchmark: means and intervals, ranks, failed cells, the paper's numbers, and valid LaTeX."""

import csv
import io
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from bench_cells import broken, cell

from reshift.bench.tables import markdown_page, write_tables
from reshift.bench.tables.build import make_tables
from reshift.bench.tables.figures import write_figures
from reshift.bench.tables.formats import csv_text, escape, latex
from reshift.bench.tables.paper import find_printed, paper, printed_table
from reshift.bench.tables.summary import Table
from reshift.evaluation.metrics.table import METRICS

AUC, AP, AP_PIX, DICE = (METRICS[key] for key in ("image.auc", "image.ap", "pixel.ap", "pixel.dice"))
PAPER = Path(__file__).parents[3] / "shared" / "paper" / "dmd_paper.tex"


def named(cells: list[dict[str, Any]], key: str) -> Table:
    return next(table for table in make_tables(cells) if table.key == key)


def entries(cells: list[dict[str, Any]], key: str = "image", metric: Any = AUC, dataset: str = "lgg_flair") -> dict[str, Any]:
    return {row.title: row.entries[dataset, metric] for row in named(cells, key).rows}


def page(cells: list[dict[str, Any]]) -> str:
    return markdown_page(cells, make_tables(cells))


def test_mean_deviation_and_seeds() -> None:
    found = entries([cell("DAE", seed=s, image={"auc": v}) for s, v in enumerate((0.5, 0.6, 0.7))])["DAE"]
    assert (found.seeds, found.mean, found.std) == (3, pytest.approx(0.6), pytest.approx(0.1))
    assert "60.0 ± 10.00" in page([cell("DAE", seed=s, image={"auc": v}) for s, v in enumerate((0.5, 0.6, 0.7))])


def test_the_interval_is_the_cells_own_or_the_mean_of_the_seeds_bounds() -> None:
    bounds = [{"image": {"auc": [0.4, 0.6]}}, {"image": {"auc": [0.5, 0.9]}}]
    cells = [cell("DAE", seed=s, image={"auc": 0.55}, intervals=b) for s, b in enumerate(bounds)]
    assert entries(cells[:1])["DAE"].interval == (0.4, 0.6)
    assert entries(cells)["DAE"].interval == pytest.approx((0.45, 0.75))
    without = cell("DAE", seed=2, image={"auc": 0.55})
    assert entries([*cells, without])["DAE"].interval is None  # no interval of some of the seeds
    assert "[45.0, 75.0]" in page(cells)
    assert "[45.0, 75.0]" in latex(make_tables(cells))


def test_best_and_second_of_all_rows_whatever_their_seeds() -> None:
    values = {"a": 0.9, "b": 0.90004, "c": 0.8, "d": 0.7}  # a and b print the same
    cells = [cell(row, seed=s, image={"auc": v}) for row, v in values.items() for s in (0, 1)]
    assert {row: entry.rank for row, entry in entries(cells).items()} == {"a": 1, "b": 1, "c": 2, "d": 0}
    trivial = [*cells, cell("one seed", image={"auc": 0.99})]  # brightness knows no seed, and may win
    assert {row: entry.rank for row, entry in entries(trivial).items()} == {"a": 2, "b": 2, "c": 0, "d": 0, "one seed": 1}
    text = page(trivial)
    assert "**99.0** (n=1)" in text
    assert "<u>90.0</u>" in text


def test_a_row_alone_is_not_the_best() -> None:
    assert entries([cell("DAE", image={"auc": 0.5})])["DAE"].rank == 0


def test_a_failed_cell_is_seen_and_is_no_zero() -> None:
    cells = [cell("DAE", image={"auc": 0.6}), broken("VAE"), cell("AE", image={"auc": 0.5}), broken("AE", seed=1)]
    found = entries(cells)
    assert (found["VAE"].mean, found["VAE"].failed) == (None, 1)
    assert (found["AE"].mean, found["AE"].seeds, found["AE"].failed) == (0.5, 1, 1)
    text, tex = page(cells), latex(make_tables(cells))
    assert "| VAE | **failed** |" in text.replace("| VAE |  |", "| VAE |")
    assert "1 failed)" in text
    assert "| lgg_flair | VAE | 0 | out of memory \\| at step 3 |" in text
    assert r"\emph{failed}" in tex
    rows = list(csv.DictReader(io.StringIO(csv_text(make_tables(cells)))))
    assert [row["mean"] for row in rows if row["row"] == "VAE"] == [""] * len([row for row in rows if row["row"] == "VAE"])


def test_what_cannot_be_measured_is_a_dash_and_what_was_not_run_is_empty() -> None:
    cells = [cell("DAE", image={"auc": 0.6}), cell("area", image={"auc": None}), cell("VAE", "busi", image={"auc": 0.5})]
    table = named(cells, "image")
    assert (table.rows[1].entries["lgg_flair", AUC].done, table.rows[2].entries["lgg_flair", AUC].done) == (1, 0)
    lines = page(cells).splitlines()
    assert "| area | – |  |" in lines
    assert "| VAE |  | 50.0 |" in lines


def test_a_finished_cell_stands_before_a_failed_one_and_a_later_before_an_earlier() -> None:
    old, new = cell("DAE", image={"auc": 0.1}), cell("DAE", image={"auc": 0.2}, date="2026-02-01")
    for order in ([old, new, broken("DAE", date="2026-03-01")], [broken("DAE", date="2026-03-01"), new, old]):
        assert entries(order)["DAE"].mean == 0.2


def test_rows_and_datasets_keep_the_order_of_the_suite() -> None:
    table = named([cell(row, name, image={"auc": 0.5}) for row in ("z", "a", "m") for name in ("y", "b")], "image")
    assert [row.label for row in table.rows] == ["z", "a", "m"]
    assert table.datasets == ("y", "b")


def test_a_stand_in_has_its_mark_and_its_caveat() -> None:
    cells = [cell("Dif-fuse", caveat="it is a stand-in", image={"auc": 0.5}), cell("AE", image={"auc": 0.4})]
    assert list(entries(cells)) == ["Dif-fuse†", "AE"]
    assert "- † it is a stand-in" in page(cells)
    assert r"Dif-fuse\textdagger{}" in latex(make_tables(cells))


def test_pixel_metrics_leave_out_a_set_without_masks() -> None:
    cells = [cell("DAE", pixel={"ap": 0.3, "dice": 0.2}), cell("DAE", "nih_cxr", image={"auc": 0.5}, pixel={"ap": None})]
    assert named(cells, "pixel").datasets == ("lgg_flair",)
    assert named(cells, "pixel").metrics == (AP_PIX, DICE)


def test_normative_and_cost_tables() -> None:
    cells = [cell("DAE", normative={"rqi": 0.5, "ahi_features": None, "caci": 0.25}, image={"auc": 0.5})]
    assert [metric.caption for metric in named(cells, "normative").metrics] == ["RQI", "CACI"]
    assert "0.25" in page(cells)
    assert "Measured on 2 a processor." in page(cells)
    assert not any(table.key == "normative" for table in make_tables([cell("DAE", image={"auc": 0.5})]))


def test_a_method_with_cells_of_several_versions_of_the_code_is_named() -> None:
    first = cell("DAE", image={"auc": 0.5})
    assert "versions of the code" not in page([first, cell("AE", method="ae", image={"auc": 0.5}, code="its own")])
    assert "mixed in: dae;" in page([first, cell("DAE", seed=1, image={"auc": 0.5}, code="other")])


# ---- ablation and sensitivity --------------------------------------------------------------------------------------


def ablation() -> list[dict[str, Any]]:
    full = [cell("DMD", seed=s, method="dmd", group="ours", image={"auc": 0.8}, pixel={"ap": 0.5}) for s in (0, 1)]
    off = {"model": {"classifier": False}}
    image = {"auc": 0.6, "ap": 0.5}
    return [*full, *(cell("w/o classifier", seed=s, method="dmd", group="ablation", config=off, image=image) for s in (0, 1))]


def sweep(*values: Any) -> list[dict[str, Any]]:
    return [
        cell(
            f"dmd t_star={value}", seed=seed, method="dmd", group="sensitivity", pixel={"dice": 0.1 * i, "ap": 0.2},
            setting={"name": "model.t_star", "value": value},
        )
        for i, value in enumerate(values)
        for seed in (0, 1)
    ]  # fmt: skip


def test_the_ablation_has_its_own_table_with_the_full_method_last() -> None:
    made = make_tables(ablation())
    assert [table.key for table in made] == ["ablation", "cost"]  # one row alone makes no main table beside it
    assert [row.label for row in made[0].rows] == ["w/o classifier", "DMD"]
    found = find_printed("ablation", made[0].rows[0], ("lgg_flair", AP))
    assert found is not None
    assert found.mean == pytest.approx(0.897)


def test_a_sweep_is_a_table_in_the_order_of_its_values() -> None:
    table = make_tables(sweep(900, 100, 500))[0]
    assert [row.label for row in table.rows] == ["100", "500", "900"]
    assert table.head == "model.t_star"
    assert any("500–600" in note for note in table.notes)
    assert [row.label for row in make_tables(sweep("unit", "none"))[0].rows] == ["unit", "none"]


def test_figures_of_ablations_and_sweeps(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written = {path.name for path in write_figures([*ablation(), *sweep(100, 500, 900)], tmp_path)}
    assert written == {
        "ablation-dmd.png", "sensitivity-dmd-model.t_star-dice.png", "sensitivity-dmd-model.t_star-ap_pix.png",
    }  # fmt: skip
    assert (tmp_path / "ablation-dmd.pdf").stat().st_size > 1000
    assert write_figures(sweep("unit", "none", "other"), tmp_path / "none") == []


def test_without_matplotlib_there_are_tables_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_tables(ablation(), tmp_path)
    assert capsys.readouterr().err.splitlines() == ["no figures: figures need matplotlib: pip install 'reshift[report]'"]
    assert {path.name for path in tmp_path.iterdir()} == {"tables.md", "tables.tex", "tables.csv"}


def test_no_cells_make_an_empty_page(tmp_path: Path) -> None:
    write_tables([], tmp_path)
    assert (tmp_path / "tables.md").read_text().startswith("# Benchmark: no cells")


# ---- what the paper prints -----------------------------------------------------------------------------------------


def test_printed_numbers_have_columns_of_their_own_and_change_nothing() -> None:
    cells = [cell("DAE", image={"auc": 0.6}), cell("Mine", method="reshift", image={"auc": 0.5})]
    text = page(cells)
    assert "| DAE | 1 | **60.0** | *85.1 ± 0.23* |" in text  # the paper's 85.1 is not ranked
    assert "| Mine | 1 | <u>50.0</u> |  |" in text
    assert "other data: TCGA-LGG FLAIR slices stand in for BraTS2021" in text
    beside = printed_table(named(cells, "image"))
    assert beside is not None
    assert (beside.datasets, [row.label for row in beside.rows]) == (("BraTS2021",), ["DAE"])
    row = next(csv.DictReader(io.StringIO(csv_text(make_tables(cells)))))
    assert (row["mean"], row["printed_mean"], row["printed_dataset"]) == ("0.6", "0.851", "BraTS2021")


def test_a_set_the_paper_does_not_have_gets_no_printed_column() -> None:
    assert "printed: AUC" not in page([cell("DAE", "phantom", image={"auc": 0.6}), cell("AE", "phantom", image={"auc": 0.5})])


def _tex_rows(text: str, label: str) -> list[list[str]]:
    """The cells of every row between the head and the foot of the paper's table."""
    end = text.index(f"\\label{{{label}}}")
    body = text[text.rindex("\\begin{tabular}", 0, end) : end].partition("\\midrule")[2].partition("\\bottomrule")[0]
    body = re.sub(r"\\cite\{[^}]*\}|\\midrule|\\rowcolor\{[^}]*\}", "", body)
    return [[part.strip() for part in row.split("&")] for row in body.split("\\\\") if "&" in row]


@pytest.mark.parametrize("name", ["image", "pixel", "ablation", "normative", "data"])
def test_every_printed_number_is_the_papers(name: str) -> None:
    if not PAPER.exists():
        pytest.skip(f"the paper's source is not at {PAPER}")
    table = paper()["data"] if name == "data" else paper()["tables"][name]
    rows = _tex_rows(PAPER.read_text(encoding="utf-8"), table["label"])
    assert len(rows) == len(table["rows"])
    for (title, *cells), (known, numbers) in zip(rows, table["rows"].items(), strict=True):
        assert re.sub(r"\W|_|text|bf", "", title) == re.sub(r"\W|_|text|bf", "", known)
        assert len(cells) == len(numbers) == len(table["columns"])
        for text, number in zip(cells, numbers, strict=True):
            flat = [number] if isinstance(number, str) else [value for value in number if value is not None]
            said = [text] if name == "data" else [float(part) for part in re.findall(r"\d+\.\d+", text)]
            assert said == flat, (title, text)


def test_printed_numbers_are_what_a_reader_sees_in_the_paper() -> None:
    found = {name: table["rows"]["DMD"] for name, table in paper()["tables"].items()}
    assert found["image"][0] == [87.2, 0.25]
    assert found["pixel"][-1] == [72.4, 1.3]
    assert found["normative"][-1] == [0.48, None]
    assert found["ablation"][0] == [94.3, None]


# ---- LaTeX ---------------------------------------------------------------------------------------------------------


def columns_of(row: str) -> int:
    spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", row)]
    return len(re.findall(r"(?<!\\)&", row)) + 1 + sum(n - 1 for n in spans)


def test_latex_is_whole(tmp_path: Path) -> None:
    known = {"image": {"auc": 0.5, "ap": 0.4, "f1": 0.3}, "intervals": {"image": {"auc": [0.4, 0.6]}}}
    names = [(row, data) for row in ("A_b & c%", "DAE", "w/o {x}") for data in ("busi", "lgg_flair", "nih_cxr", "o_4")]
    cells = [cell(row, data, seed, **known) for row, data in names for seed in (0, 1)]
    write_tables([*cells, broken("VAE", "busi"), *ablation(), *sweep(1, 2, 3)], tmp_path)
    text = (tmp_path / "tables.tex").read_text()
    opened = re.findall(r"\\(begin|end)\{([\w*]+)\}", text)
    stack: list[str] = []
    for kind, name in opened:
        if kind == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert not stack
    assert len(opened) >= 4 * 8
    for tabular in re.findall(r"\\begin\{tabular\}\{(.*?)\}\n(.*?)\\end\{tabular\}", text, re.DOTALL):
        width = len(re.findall("[lcr]", tabular[0].replace("@{}", "")))
        rows = [line for line in tabular[1].splitlines() if line.endswith(r"\\")]
        assert len(rows) >= 3
        assert {columns_of(row) for row in rows} == {width}
    bare = re.sub(r"\\[{}\\]", "", text)
    assert bare.count("{") == bare.count("}")
    assert len(re.findall(r"(?<!\\)\$", text)) % 2 == 0
    labels = re.findall(r"\\label\{(.*?)\}", text)
    assert len(set(labels)) == len(labels)


def test_latex_escapes_what_would_break_it() -> None:
    assert escape("a_b & 5 % {x} λ") == r"a\_b \& 5 \% \{x\} $\lambda$"


def test_the_same_cells_give_the_same_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_tables([*ablation(), cell("DAE", image={"auc": 0.5})], tmp_path / name)
    for path in sorted((tmp_path / "a").rglob("*.*")):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes(), path
    assert math.isclose(float(next(csv.DictReader((tmp_path / "a" / "tables.csv").open()))["mean"]), 0.8)
