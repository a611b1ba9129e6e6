"""The suites that come with the package: every method, dataset and setting they name exists."""

from pathlib import Path

import pytest

from reshift.bench.printed import paper
from reshift.bench.suite import Entry, Suite, load_suite
from reshift.datasets import DATASETS
from reshift.training.run import resolve

ROOT = Path(__file__).parents[2]
NAMES = ("paper", "ablation", "sensitivity", "real")


def suite(name: str) -> Suite:
    return load_suite(ROOT / "suites" / f"{name}.toml")


def rows(name: str) -> dict[str, Entry]:
    return {entry.row: entry for entry in suite(name).entries}


@pytest.mark.parametrize("name", NAMES)
def test_every_row_resolves(name: str) -> None:
    for entry in rows(name).values():
        config = resolve(entry.method, entry.profile, [*entry.layers, {"model": dict(entry.updates)}])
        resolve(entry.method, entry.profile, [*entry.layers, entry.predict])
        assert config.method == entry.method


def test_the_paper_suite_is_the_papers() -> None:
    found = suite("paper")
    assert set(found.datasets) <= set(DATASETS)
    assert {entry.seed for entry in found.entries} == {0, 1, 2, 3, 4}
    assert {entry.method for entry in found.entries} == set(paper()["methods"])
    assert set(rows("paper")) == {row for table in ("image", "pixel") for row in paper()["tables"][table]["rows"]}
    assert found.datasets["wmh"].trained_on == "brats2021"
    assert found.normative
    assert {paper()["datasets"][name][0] for name in found.datasets} == {"BraTS2021", "BUSI", "VinDr-CXR", "ATLAS 2.0", "WMH"}


@pytest.mark.parametrize("name", ["ablation", "real"])
def test_an_ablation_switches_one_component_off(name: str) -> None:
    variants = [entry for entry in rows(name).values() if entry.group == "ablation"]
    off = [[flag for layer in entry.layers for flag, on in layer.get("model", {}).items() if on is False] for entry in variants]
    assert sorted(off) == sorted([flag] for flag in paper()["variants"])
    assert rows(name)["DMD"].group == "ours"


def test_the_sweeps_are_of_inference_where_nothing_is_trained_anew() -> None:
    found = rows("sensitivity").values()
    values: dict[str, list[float]] = {}
    for entry in found:
        assert entry.setting is not None
        values.setdefault(entry.setting["name"], []).append(entry.setting["value"])
        assert bool(entry.predict) == (entry.setting["name"] != "model.lambda_cls")
    assert values["model.t_star"] == list(range(100, 1000, 100))
    assert 0.1 in values["model.lambda_cls"]
    assert 4 in values["model.mask_side"]
    assert {entry.seed for entry in suite("sensitivity").entries} == {0, 1, 2}


def test_real_names_the_six_sets_and_tests_on_those_that_have_disease() -> None:
    found = suite("real")
    folders = {Path(data.manifest or "").parts[0] for data in found.datasets.values()}
    assert folders == {"lgg_flair", "wmh_flair", "busi", "arc_t1_stroke", "nih_cxr", "ixi_t1"}
    assert found.datasets["wmh_flair"].trained_on == "lgg_flair"
    assert "ixi_t1" not in {entry.dataset for entry in found.entries}
    assert {entry.trained_on for entry in found.entries} == {"lgg_flair", "busi", "arc_t1_stroke", "nih_cxr", "ixi_t1"}
    assert {entry.seed for entry in found.entries} == {0, 1, 2}
