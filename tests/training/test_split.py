"""Which normals are learned from, and which set thresholds, where a manifest has a val split."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import TINY_DMD

from reshift.config import Config
from reshift.data.cases import Case
from reshift.data.manifest import load_cases
from reshift.data.phantom import write_phantom
from reshift.training.run import resolve, train_run


def config(**changes: Any) -> Config:
    return resolve("dmd", "quick", [TINY_DMD, {"model": {"stage1_epochs": 1, "stage2_epochs": 1}}, changes])


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Ten training images and six of a val split."""
    path = write_phantom(tmp_path / "data", train=16, test_normal=0, test_abnormal=0, size=32, slices=2)
    rows = path.read_text().splitlines()
    path.write_text("\n".join([rows[0], *(row.replace(",train,", ",val,") for row in rows[1:7]), *rows[7:]]) + "\n")
    return path


def test_a_val_split_is_the_held_out_set(manifest: Path, tmp_path: Path) -> None:
    cases: list[Case] = load_cases(manifest)
    assert sum(case.split == "val" for case in cases) == 6
    bundle = train_run(config(), manifest, tmp_path / "run")
    assert json.loads((bundle / "calibration.json").read_text())["held_out"]["images"] == 6


def test_by_the_papers_rule_all_normals_are_learned_from_and_set_the_thresholds(manifest: Path, tmp_path: Path) -> None:
    paper = config(data={"holdout": 0.0}, calibrate={"reference": "training"})
    found = json.loads((train_run(paper, manifest, tmp_path / "run") / "calibration.json").read_text())
    assert (found["held_out"], found["training"]["images"]) == (None, 16)
    assert found["training"]["image_threshold"] == pytest.approx(np.quantile(found["training"]["scores"], 0.95))
