"""``reshift compare``: shared images only, differences with the right sign, and a page that shows every method."""

import json
import shutil
from pathlib import Path

import pytest
from browser import run_in_browser
from helpers import Cli, refused

from reshift.data.manifest import load_cases
from reshift.data.phantom import write_phantom
from reshift.evaluation.evaluate import evaluate
from reshift.inference.model import load_model
from reshift.training.run import resolve, train_run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_phantom(folder, "brain", train=24, test_normal=12, test_abnormal=12, size=64, slices=2)
    return folder


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory, data: Path) -> dict[str, Path]:
    settings = [{"data": {"size": 64}, "calibrate": {"features": "off"}}]
    return {m: train_run(resolve(m, "paper", settings), data, tmp_path_factory.mktemp(m)) for m in ("brightness", "area")}


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory, bundles: dict[str, Path], data: Path) -> list[Path]:
    tests = [case for case in load_cases(data) if case.split == "test"]
    folders = []
    for method, bundle in bundles.items():
        folders.append(tmp_path_factory.mktemp("evaluations") / method)
        evaluate(load_model(bundle, "cpu"), tests, folders[-1], "phantom")
    return folders


@pytest.fixture
def evaluations(evaluated: list[Path], tmp_path: Path) -> list[Path]:
    """Copies, which a test may change."""
    return [shutil.copytree(folder, tmp_path / folder.name) for folder in evaluated]


def test_table_page_and_tests(run_cli: Cli, evaluations: list[Path], tmp_path: Path) -> None:
    outcome = run_cli("compare", *evaluations, "--out", tmp_path / "both")
    assert outcome.code == 0, outcome.err
    table = json.loads((tmp_path / "both" / "compare.json").read_text())
    first, second = table["runs"]
    assert [first["label"], second["label"]] == ["brightness", "area"]
    assert table["images"] == 24
    difference = second["image"]["auc"]["value"] - first["image"]["auc"]["value"]
    assert second["paired"]["image"]["auc"]["difference"] == pytest.approx(difference)
    assert 0 < second["paired"]["image"]["auc"]["p_value"] <= 1
    change = second["pixel"]["ap"]["value"] - first["pixel"]["ap"]["value"]
    assert second["paired"]["pixel"]["ap"]["difference"] == pytest.approx(change, abs=5e-3)
    low, high = second["pixel"]["aupro"]["interval"]
    assert low - 1e-9 <= second["pixel"]["aupro"]["value"] <= high + 1e-9
    change = second["pixel"]["aupro"]["value"] - first["pixel"]["aupro"]["value"]
    assert second["paired"]["pixel"]["aupro"]["difference"] == pytest.approx(change, abs=5e-3)
    page = (tmp_path / "both" / "compare.html").read_text()
    assert "AUPRO</th>" in page
    assert page.count("<img ") == 4 * 24  # input, two maps and the truth of every case
    assert "http" not in page.replace("http-equiv", "")
    assert "| brightness |" in (tmp_path / "both" / "compare.md").read_text()
    assert "brightness" in outcome.out


PROBE = """
addEventListener("load", () => {  // all images are loaded; waiting for decoders would race the browser's virtual clock
  document.body.dataset.drawn = [...document.images].filter((p) => p.naturalWidth > 0).length;
  document.body.dataset.wide = document.documentElement.scrollWidth > innerWidth;
});
"""


def test_page_opens_in_a_browser(run_cli: Cli, evaluations: list[Path], tmp_path: Path) -> None:
    run_cli("compare", *evaluations, "--out", tmp_path / "both")
    dom = run_in_browser((tmp_path / "both" / "compare.html").read_text(), tmp_path, PROBE)
    assert f'data-drawn="{4 * 24}"' in dom
    assert 'data-wide="false"' in dom


def test_only_shared_images_enter_the_tests(run_cli: Cli, evaluations: list[Path], tmp_path: Path) -> None:
    cases = (evaluations[1] / "cases.jsonl").read_text().splitlines()
    (evaluations[1] / "cases.jsonl").write_text("\n".join(cases[:-3]) + "\n")
    run_cli("compare", *evaluations, "--out", tmp_path / "both")
    table = json.loads((tmp_path / "both" / "compare.json").read_text())
    assert table["images"] == 21
    assert "only the 21 shared ones" in table["warnings"][0]


def test_hostile_names_stay_text(run_cli: Cli, evaluations: list[Path], tmp_path: Path) -> None:
    hostile = '<img src=x onerror="alert(1)">'
    for folder in evaluations:
        rows = [json.loads(line) for line in (folder / "cases.jsonl").read_text().splitlines()]
        (folder / "cases.jsonl").write_text("".join(json.dumps({**row, "input": hostile + row["input"]}) + "\n" for row in rows))
        metrics = json.loads((folder / "metrics.json").read_text())
        (folder / "metrics.json").write_text(json.dumps({**metrics, "dataset": hostile, "method": f"{hostile}{folder.name}"}))
    assert run_cli("compare", *evaluations, "--out", tmp_path / "both").code == 0
    page = (tmp_path / "both" / "compare.html").read_text()
    assert "<img src=x" not in page
    assert page.count("<img alt=") == 4 * 24


def test_two_runs_of_one_method_have_their_folders_in_their_names(run_cli: Cli, evaluations: list[Path], tmp_path: Path) -> None:
    again = shutil.copytree(evaluations[0], tmp_path / "again")
    run_cli("compare", evaluations[0], again, "--out", tmp_path / "both")
    table = json.loads((tmp_path / "both" / "compare.json").read_text())
    assert [row["label"] for row in table["runs"]] == [f"brightness ({evaluations[0]})", f"brightness ({again})"]
    assert table["runs"][1]["paired"]["image"]["auc"]["p_value"] == 1.0


def test_what_cannot_be_compared_is_refused(run_cli: Cli, evaluations: list[Path], tmp_path: Path) -> None:
    refused(run_cli("compare", evaluations[0], "--out", tmp_path / "x"), "at least two")
    refused(run_cli("compare", evaluations[0], evaluations[0], "--out", tmp_path / "x"), "given twice")
    refused(run_cli("compare", evaluations[0], tmp_path, "--out", tmp_path / "x"), "not an evaluation", "reshift evaluate")
    other = shutil.copytree(evaluations[1], tmp_path / "other")
    rows = [json.loads(line) for line in (other / "cases.jsonl").read_text().splitlines()]
    (other / "cases.jsonl").write_text("".join(json.dumps({**row, "label": 1 - row["label"]}) + "\n" for row in rows))
    refused(run_cli("compare", evaluations[0], other, "--out", tmp_path / "x"), "normal in one evaluation")
    (other / "cases.jsonl").write_text("".join(json.dumps({**row, "input": f"x{row['input']}"}) + "\n" for row in rows))
    refused(run_cli("compare", evaluations[0], other, "--out", tmp_path / "x"), "no test image in common")
    (other / "cases.jsonl").write_text("not json\n")
    refused(run_cli("compare", evaluations[0], other, "--out", tmp_path / "x"), "damaged")
    assert not (tmp_path / "x").exists()
