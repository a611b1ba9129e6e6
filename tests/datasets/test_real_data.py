"""Real volumes and images, if present: orientation and masks agree with the anatomy."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers import Cli
from PIL import Image

from reshift.data.cases import Case
from reshift.data.manifest import load_cases

RAW = Path(os.environ.get("RESHIFT_RAW", Path(__file__).parents[3] / "shared" / "raw"))


def real(pattern: str) -> Path:
    """The first file that matches; without one the test is skipped."""
    found = sorted(RAW.glob(pattern))
    if not found:
        pytest.skip(f"no {pattern} here; set RESHIFT_RAW to a folder of original downloads")
    return found[0]


def put(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, to)


def prepared(run_cli: Cli, tmp_path: Path, name: str, *options: str) -> list[Case]:
    done = run_cli("prepare", name, "--source", tmp_path / "source", "--out", tmp_path / "out", *options)
    assert done.code == 0, done.err
    return load_cases(tmp_path / "out")


def grey(case: Case) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.asarray(Image.open(case.image), dtype=np.float64)


def marked(case: Case) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    assert case.mask is not None
    return np.asarray(Image.open(case.mask), dtype=bool)


def test_a_left_sided_stroke_shows_on_the_right_and_is_darker_than_the_other_side(run_cli: Cli, tmp_path: Path) -> None:
    """The subject has aphasia, so the lesion is on the left; radiologists see the left on the right."""
    stem = tmp_path / "source/Training/R001/sub-r001s001/ses-1/anat/sub-r001s001_ses-1_space-MNI152NLin2009aSym"
    put(real("wbsub-*T1w.nii.gz"), Path(f"{stem}_T1w.nii.gz"))
    put(real("wsub-*lesion.nii.gz"), Path(f"{stem}_label-L_desc-T1lesion_mask.nii.gz"))
    cases = [case for case in prepared(run_cli, tmp_path, "atlas", "--protocol", "subjects") if case.label]
    assert len(cases) >= 5
    for case in cases:
        image, lesion = grey(case), marked(case)
        assert np.argwhere(lesion).mean(0)[1] > 63.5
        assert image[lesion].mean() < image[lesion[:, ::-1]].mean()


def test_white_matter_lesions_are_brighter_than_the_brain_around_them(run_cli: Cli, tmp_path: Path) -> None:
    put(real("wmh_*flair-stripped.nii.gz"), tmp_path / "source/test/Utrecht/1/pre/FLAIR.nii.gz")
    put(real("wmh_*gt.nii.gz"), tmp_path / "source/test/Utrecht/1/wmh.nii.gz")
    cases = [case for case in prepared(run_cli, tmp_path, "wmh") if case.label]
    assert len(cases) >= 5
    inside = np.concatenate([grey(case)[marked(case)] for case in cases])
    around = np.concatenate([grey(case)[~marked(case) & (grey(case) > 40)] for case in cases])
    assert inside.mean() > around.mean() + 20


def test_a_head_is_longer_than_wide_and_in_the_middle(run_cli: Cli, tmp_path: Path) -> None:
    put(real("IXI132-*T1.nii.gz"), tmp_path / "source/IXI132-HH-1415-T1.nii.gz")
    for case in prepared(run_cli, tmp_path, "ixi"):
        head = np.argwhere(grey(case) > 40)
        height, width = np.ptp(head, axis=0)
        assert height > 1.15 * width
        assert abs(head[:, 1].mean() - 63.5) < 6


def test_both_masks_of_a_real_image_are_merged(run_cli: Cli, tmp_path: Path) -> None:
    for kind in ("benign", "normal"):
        real(f"{kind} (*.png")
        for path in RAW.glob(f"{kind} (*.png"):
            put(path, tmp_path / "source" / kind / path.name)
    [lesion] = [marked(case) for case in prepared(run_cli, tmp_path, "busi") if case.label]
    columns = np.flatnonzero(lesion.any(0))
    assert np.diff(columns).max() > 20  # two cysts, far apart
