"""The suites behind the documents, in miniature: a dry run goes through every cell, and a real run leaves what figures need."""

import json
from pathlib import Path

import dataset_trees as trees
import pytest
from bench_suites import cells_in, tiny_suite
from helpers import Cli

from reshift.bench.suite import load_suite
from reshift.data.phantom import write_phantom

pytestmark = pytest.mark.usefixtures("in_process")

SIZE = 32
SETS = ("lgg_flair", "wmh_flair", "busi", "arc_t1_stroke", "nih_cxr")


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder per set with its manifest, as the suites of stand-in sets expect it."""
    root = tmp_path_factory.mktemp("stand-ins")
    for seed, name in enumerate(SETS):
        write_phantom(root / name, train=8, test_normal=3, test_abnormal=3, size=SIZE, slices=1, seed=seed)
    return root


def prepare_all(run_cli: Cli, root: Path) -> Path:
    """The paper's five data sets as downloaded, in miniature, prepared by the real command."""
    sources = {
        "brats2021": trees.medianomaly_brats(root / "brats", train=10),
        "ixi-atlas": trees.atlas(trees.ixi(root / "ixi-atlas", volumes=8), volumes=6, hidden=0),
        "wmh": trees.wmh(root / "wmh", trees.WMH_TEST[:2]),
        "busi": trees.busi(root / "busi", normals=24),
        "vindr": trees.medianomaly_vindr(root / "vindr"),
    }
    for name, source in sources.items():
        found = run_cli("prepare", name, "--source", source, "--out", root / "data" / name, "--size", SIZE)
        assert found.code == 0, found.err
    return root / "data"


def dry_run(run_cli: Cli, folder: Path, name: str, data: Path) -> list[str]:
    """Dry-run a suite in miniature; it must list every cell and know the cost of each. Returns the lines about cost."""
    (folder / name).mkdir()
    suite = tiny_suite(folder / name, name)
    found = run_cli("bench", suite, "--data", data, "--out", folder / name / "out", "--dry-run", "--device", "cpu")
    assert found.code == 0, found.err
    lines = found.out.splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("to run ")] == [e.name for e in load_suite(suite).entries]
    costs = [line for line in lines if line.startswith("cost: ")]
    assert all("tried now" in line for line in costs[:-1])
    assert "unknown" not in costs[-1]
    assert not (folder / name / "out" / "models").exists()
    return costs


def test_dry_runs_of_the_paper_go_through_every_cell_of_its_five_sets(run_cli: Cli, tmp_path: Path) -> None:
    data = prepare_all(run_cli, tmp_path)
    costs = {name: dry_run(run_cli, tmp_path, name, data) for name in ("paper", "ablation", "sensitivity")}
    assert len(costs["paper"]) == 14 + 1  # one per method, literal DMD, and the sum
    assert len(costs["ablation"]) == 7 + 1


@pytest.mark.parametrize("name", ["claims", "competitors"])
def test_dry_runs_on_stand_ins_go_through_every_cell(run_cli: Cli, stand_ins: Path, tmp_path: Path, name: str) -> None:
    assert len(dry_run(run_cli, tmp_path, name, stand_ins)) > 10


def test_claims_in_miniature(run_cli: Cli, stand_ins: Path, tmp_path: Path) -> None:
    suite, out = tiny_suite(tmp_path, "claims"), tmp_path / "out"
    found = run_cli("bench", suite, "--data", stand_ins, "--out", out, "--only", "lgg_flair-[dw]*-0", "--keep-maps", "2")
    assert found.code == 0, found.err
    cells = {str(cell["row"]): cell for cell in cells_in(out).values()}
    plain, joint, held = cells["DMD"], cells["w/o pre-training"], cells["DMD, 20% held out"]
    assert plain["updates"] == {"autoencoder": 1, "restoration": 1}
    assert joint["updates"] == {"joint": 2}
    assert set(plain["thresholds"]) == {"training"}  # it has learned from all normals
    assert set(held["thresholds"]) == {"training", "held-out"}
    assert plain["thresholds"]["training"]["f1"] == pytest.approx(plain["metrics"]["image"]["f1"], rel=1e-5)
    assert plain["thresholds"]["training"]["dice"] == pytest.approx(plain["metrics"]["pixel"]["dice"], rel=1e-5)
    assert set(plain["training"]["test"]) == {"code_usage", "code_perplexity", "reconstruction_error"}
    assert cells["DMD, literal"]["config"]["train"]["amp"] == "off"
    assert plain["map_scores"]["mean"]["auc"] is not None
    drawn = {path.stem for path in (out / "figures").glob("*.png")}
    assert {"sensitivity-timestep-dice", "sensitivity-dmd-model.mask_side-dice", "qualitative"} <= drawn
    assert {"pixel-histogram-lgg_flair", "tsne-dmd"} <= drawn
    page = (out / "tables.md").read_text()
    assert "## Thresholds by both rules" in page
    assert "## State of the autoencoder" in page
    kept = list((out / "evaluations" / plain["key"] / "arrays").iterdir())
    assert len(kept) == 2


def test_competitors_in_miniature(run_cli: Cli, stand_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RESHIFT_CACHE")  # stages are shared in the folder of the suite
    suite, out = tiny_suite(tmp_path, "competitors"), tmp_path / "out"
    found = run_cli("bench", suite, "--data", stand_ins, "--out", out, "--only", "busi-[dv]*")
    assert found.code == 0, found.err
    cells = {str(cell["row"]): cell for cell in cells_in(out).values()}
    assert set(cells) == {"VAE", "DAE", "DAE, levelled", "DDPM", "DDPM, every 5th step", "Dif-fuse"}
    assert json.dumps(cells["DDPM, every 5th step"]["predict"]) == '{"model": {"stride": 125}}'
    cached = [path for path in out.glob("models/*/log.jsonl") if '"cached"' in path.read_text()]
    assert len(cached) == 1  # Dif-fuse takes the network of DDPM
    page = (out / "tables.md").read_text()
    assert "## Image scores made of heat-maps" in page
    assert "Dif-fuse† " in page
    assert "† diffuse† is a stand-in" in page
