"""Where the consensus of slices is on by itself, and where slice positions come from."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from helpers import noise, save, write_manifest
from test_consensus import ORIENTATION, grey, pictures
from volumes import canonical_affine, head, save_nifti, stored

from reshift.config import DataConfig
from reshift.data.cases import Case, expand_volumes
from reshift.data.manifest import load_cases
from reshift.errors import UserError
from reshift.inference.consensus import auto_sigma
from reshift.inference.model import load_model
from reshift.training.run import resolve
from reshift.training.stacks import choose_sigma, neighbours_look_alike


def stack(subject: str, positions: Sequence[float | None]) -> list[Case]:
    places = enumerate(positions)
    return [Case(f"{subject}{i}", Path(f"{subject}{i}"), None, subject, 0, "train", "", position=at) for i, at in places]


def test_consensus_is_on_where_slices_have_neighbours() -> None:
    assert auto_sigma(stack("a", [3, 1, 2, 9])) == 1.0
    assert auto_sigma([*stack("a", [1, 2]), *stack("b", [7, 30])]) == 1.0  # half of them
    assert auto_sigma([*stack("a", [1, 2]), *stack("b", [7, 30, 60])]) == 0.0
    assert auto_sigma(stack("a", [0, 12, 24, 36])) == 0.0
    assert auto_sigma([*stack("a", [1]), *stack("b", [2])]) == 0.0  # of other people
    assert auto_sigma(stack("a", [None, None, None])) == 0.0


@pytest.mark.parametrize(("spacing", "sigma"), [(3.0, 1.0), (7.5, 0.0)])
def test_consensus_is_on_for_volumes_with_thin_slices(tmp_path: Path, spacing: float, sigma: float) -> None:
    array = head()
    affine = canonical_affine(array.shape, (spacing, 2.0, 2.0))
    save_nifti(tmp_path / "a.nii", *stored(array, ORIENTATION, affine))
    data = DataConfig()
    cases = expand_volumes([Case("a.nii", tmp_path / "a.nii", None, "a", 0, "train", "")], data)
    assert auto_sigma(cases) == sigma


def test_training_decides_and_the_bundle_says_so(tmp_path: Path, tiny_bundle: Path) -> None:
    assert resolve("reshift", "quick", []).data.consensus == "auto"
    assert load_model(tiny_bundle, "cpu").bundle.config.data.consensus == 0.0  # a method that cannot
    data = pictures(tmp_path)
    assert load_model(grey(data, tmp_path / "run"), "cpu").bundle.config.data.consensus == 0.0  # every third slice
    rows = [f"{i}.png,{'ab'[i // 6]},train,{i}" for i in range(12)]
    write_manifest(tmp_path, *rows, header="image,subject,split,position")
    assert load_model(grey(data, tmp_path / "near"), "cpu").bundle.config.data.consensus == 1.0


def test_positions_in_file_names(tmp_path: Path) -> None:
    for name in ("TCGA_1_007.png", "TCGA_1_008.png", "plain.png"):
        save(noise(1), tmp_path / name)
    rows = ["TCGA_1_007.png,s,train,", "TCGA_1_008.png,s,train,20", "plain.png,s,train,"]
    data = write_manifest(tmp_path, *rows, header="image,subject,split,position")
    positions = [
        [case.position for case in expand_volumes(load_cases(data), DataConfig.model_validate({"position": rule}))]
        for rule in ("column", "name", "auto")
    ]
    assert positions == [[None, 20.0, None], [7.0, 20.0, None], [None, 20.0, None]]  # auto: there is a column
    save(noise(1), tmp_path / "again_007.png")
    write_manifest(tmp_path, *rows, "again_007.png,s,train,", header="image,subject,split,position")
    with pytest.raises(UserError, match=r"TCGA_1_007\.png and again_007\.png of subject 's' both have the slice number 7"):
        expand_volumes(load_cases(data), DataConfig(position="name"))
    rows = ["TCGA_1_007.png,s,train", "TCGA_1_008.png,t,train", "again_007.png,s,train"]
    write_manifest(tmp_path, *rows, header="image,subject,split")
    assert [case.position for case in expand_volumes(load_cases(data), DataConfig())] == [None, 8.0, None]  # s: doubtful


def test_numbers_in_names_count_where_neighbours_look_alike(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    first, last = rng.uniform(0, 255, (2, 32, 32))
    for k in range(8):  # a slow change through the slices of "a"; every visit of "b" looks different
        slowly = first + (last - first) * k / 7.0
        for subject, pixels in (("a", slowly), ("b", rng.uniform(0, 255, (32, 32)))):
            save(pixels.astype(np.uint8), tmp_path / f"{subject}_{k:03}.png")
    cases = {
        subject: [Case(f"{k}", tmp_path / f"{subject}_{k:03}.png", None, subject, 0, "train", "") for k in range(8)]
        for subject in "ab"
    }
    data = DataConfig(size=32)
    slices, visits = (expand_volumes(cases[subject], data) for subject in "ab")
    assert auto_sigma(slices) == auto_sigma(visits) == 1.0
    assert not neighbours_look_alike(slices, data)  # seven pairs are too few to tell
    slices, visits = ([case._replace(subject=f"{i}") for i in range(2) for case in part] for part in (slices, visits))
    assert choose_sigma(slices, cases["a"], data) == 1.0
    assert choose_sigma(visits, cases["b"], data) == 0.0
    assert choose_sigma(visits, visits, data) == 1.0  # a manifest's positions are believed
    assert choose_sigma(visits, cases["b"], data.model_copy(update={"position": "name"})) == 1.0
