"""Real scans, where there are any: set RESHIFT_DATA to a folder of sets with a manifest.csv each."""

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
SETS = sorted(path.parent for path in DATA.glob("*/manifest.csv"))
needs_scans = pytest.mark.skipif(not SETS, reason="no real scans here; RESHIFT_DATA names a folder of sets")


@needs_scans
@pytest.mark.parametrize("folder", SETS, ids=lambda p: p.name)
def test_every_set_loads_and_its_masks_lie_on_its_images(folder: Path) -> None:
    cases = load_cases(folder)
    with_masks = [case for case in cases if case.mask is not None][:10]
    for case in [*cases[:10], *with_masks]:
        prepared = prepare(read_image(case.image), DataConfig())
        assert prepared.pixels.shape == (1, 128, 128)
        assert np.abs(prepared.pixels).max() <= 1.0
        if case.mask is not None:
            assert prepare_mask(read_mask(case.mask), prepared.geometry, 128).any()


@needs_scans
def test_brightness_goes_the_whole_way_on_breast_ultrasound(run_cli: Cli, tmp_path: Path) -> None:
    folder = DATA / "busi"
    if not folder.exists():
        pytest.skip("the set 'busi' is not among the real scans")
    assert run_cli("train", "--method", "brightness", "--data", folder, "--out", tmp_path / "run").code == 0
    assert run_cli("evaluate", tmp_path / "run" / "bundle", "--data", folder, "--out", tmp_path / "out").code == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["image"]["auc"] == pytest.approx(0.659, abs=0.001)  # nothing is learned, so this never changes
    assert metrics["pixel"]["ap"] == pytest.approx(0.0785, abs=0.0005)
