"""Real data sets, if present: set RESHIFT_DATA to a folder of data sets with a manifest.csv each."""

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
from helpers import Cli

from reshift.config import DataConfig
from reshift.data.manifest import load_cases
from reshift.data.prepare import prepare, prepare_mask
from reshift.data.read import read_image, read_mask

DATA = Path(os.environ.get("RESHIFT_DATA", Path(__file__).parents[3] / "shared" / "data"))
FOLDERS = sorted(path.parent for path in DATA.glob("*/manifest.csv"))


@pytest.mark.skipif(not FOLDERS, reason="no real data here; set RESHIFT_DATA to a folder of data sets")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
def test_every_data_set_loads_and_its_masks_fit_its_images(folder: Path) -> None:
    cases = load_cases(folder)
    with_masks = [case for case in cases if case.mask is not None][:10]
    for case in [*cases[:10], *with_masks]:
        prepared = prepare(read_image(case.image), DataConfig())
        assert prepared.pixels.shape == (1, 128, 128)
        assert np.abs(prepared.pixels).max() <= 1.0
        if case.mask is not None:
            assert prepare_mask(read_mask(case.mask), prepared.geometry, 128).any()


@pytest.mark.skipif(not (DATA / "busi").exists(), reason="no data set 'busi' here; set RESHIFT_DATA to a folder that has it")
def test_train_and_evaluate_on_breast_ultrasound(run_cli: Cli, tmp_path: Path) -> None:
    with (DATA / "busi" / "manifest.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    normal, abnormal = ([row for row in rows if row["label"] == label] for label in ("0", "1"))
    chosen = normal + abnormal[::8]
    manifest = tmp_path / "manifest.csv"
    with manifest.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        for row in chosen:
            files = {name: str(DATA / "busi" / row[name]) for name in ("image", "mask", "ignore") if row.get(name)}
            writer.writerow({**row, **files})
    quick = ("--set", "calibrate.features=off")
    assert run_cli("train", "--method", "brightness", "--data", manifest, "--out", tmp_path / "run", *quick).code == 0
    assert run_cli("evaluate", tmp_path / "run" / "bundle", "--data", manifest, "--out", tmp_path / "out").code == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["n"]["abnormal"] == len(abnormal[::8])
    assert metrics["image"]["auc"] == pytest.approx(0.617, abs=0.001)  # nothing is trained, so this never changes
    assert metrics["pixel"]["ap"] == pytest.approx(0.0451, abs=0.0005)
