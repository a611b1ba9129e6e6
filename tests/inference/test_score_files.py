"""Which files ``reshift score`` writes: overlays of whom they are wanted of, and again what a power cut left empty."""

from pathlib import Path

import numpy as np
import pytest
from helpers import Cli, noise, read_records, refused, save
from volumes import canonical_affine, head, save_nifti, stored

from reshift.system.workers import VARIABLE

PLAIN = ((2, 1, 0), (False, False, False))  # how a volume is stored


@pytest.fixture
def one_is_bright(tmp_path: Path) -> Path:
    """Three pictures, of which the second is flagged by a model that goes by brightness."""
    for i in range(3):
        picture = noise(i)
        picture[:] = picture // 8 + (220 if i == 1 else 0)
        save(picture, tmp_path / "in" / f"{i}.png")
    return tmp_path / "in"


@pytest.mark.parametrize("helpers", ["0", "2"])
@pytest.mark.parametrize(("wanted", "expected"), [("all", [0, 1, 2]), ("flagged", [1]), ("none", [])])
def test_overlays_of_whom_they_are_wanted(
    run_cli: Cli, tiny_bundle: Path, one_is_bright: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    helpers: str, wanted: str, expected: list[int],
) -> None:  # fmt: skip
    monkeypatch.setenv(VARIABLE, helpers)
    out = tmp_path / "out"
    assert run_cli("score", tiny_bundle, one_is_bright, "--out", out, "--overlays", wanted).code == 0
    assert [record["flag"] for record in read_records(out)] == [False, True, False]
    assert len(list((out / "maps").rglob("*.npy"))) == 3
    assert sorted(path.name for path in (out / "overlays").rglob("*.png")) == [f"{i}.png" for i in expected]


@pytest.mark.parametrize(("wanted", "shown"), [("all", [True, True]), ("flagged", [False, True]), ("none", [False, False])])
def test_a_volume_is_flagged_by_any_slice(
    run_cli: Cli, tiny_bundle: Path, tmp_path: Path, wanted: str, shown: list[bool]
) -> None:
    dim = head().astype(np.float32)
    bright = dim.copy()
    bright[len(bright) // 2] = bright.max()
    dim *= 0.05
    dim[:, :2, :2] = bright.max()  # or its own range would make it as bright
    (tmp_path / "in").mkdir()
    for name, voxels in (("a", dim), ("b", bright)):
        save_nifti(tmp_path / "in" / f"{name}.nii.gz", *stored(voxels, PLAIN, canonical_affine()))
    out = tmp_path / "out"
    assert run_cli("score", tiny_bundle, tmp_path / "in", "--out", out, "--overlays", wanted).code == 0
    records = read_records(out)
    flagged = [any(r["flag"] for r in records if r["input"].endswith(f"{name}.nii.gz")) for name in "ab"]
    assert flagged == [False, True]
    assert [(out / "overlays" / "in" / f"{name}.png").exists() for name in "ab"] == shown


def test_another_word_is_refused(run_cli: Cli, tiny_bundle: Path, one_is_bright: Path, tmp_path: Path) -> None:
    done = run_cli("score", tiny_bundle, one_is_bright, "--out", tmp_path / "out", "--overlays", "some")
    assert "overlays 'some' is not known; use all, flagged or none" in refused(done)
    assert not (tmp_path / "out").exists()


def test_a_map_left_empty_is_made_again(run_cli: Cli, tiny_bundle: Path, one_is_bright: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run_cli("score", tiny_bundle, one_is_bright, "--out", out).code == 0
    first, second, third = sorted((out / "maps").rglob("*.npy"))
    expected = second.read_bytes()
    second.write_bytes(b"")  # as after a power cut
    third.unlink()  # somebody did not need it: no reason to score it again
    assert run_cli("score", tiny_bundle, one_is_bright, "--out", out).code == 0
    assert sorted((out / "maps").rglob("*.npy")) == [first, second]
    assert second.read_bytes() == expected
    assert [Path(record["input"]).name for record in read_records(out)] == ["0.png", "1.png", "2.png"]
