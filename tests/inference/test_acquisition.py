"""The acquisition check: quiet on images of the same kind, loud on others, and not fooled by a lesion."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers import Cli, read_records, save
from numpy.typing import NDArray

import reshift
from reshift.config import DataConfig
from reshift.data.image import Image
from reshift.data.phantom import draw
from reshift.data.prepare import prepare
from reshift.inference.acquisition import Acquisition, check_acquisition, describe, fit_acquisition, run_warning
from reshift.training.run import resolve, train_run

Pixels = NDArray[np.float32]


def phantom(subject: int, kind: str = "brain", *, abnormal: bool = False) -> Pixels:
    stored = draw(kind, subject, 0, abnormal=abnormal).pixels[:, :, None].astype(np.float32)
    return prepare(Image(stored, 8, Path("phantom")), DataConfig()).pixels


def descriptors(subjects: range, change: Callable[[Pixels], Pixels] = lambda p: p, **options: object) -> NDArray[np.float64]:
    return np.array([describe(change(phantom(s, **options))) for s in subjects])  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def known() -> Acquisition:
    found = fit_acquisition(descriptors(range(80)), descriptors(range(80, 110)))
    assert found is not None
    return found


def odd_share(known: Acquisition, rows: NDArray[np.float64]) -> float:
    return float(np.mean([known.p_value(row) <= 0.05 for row in rows]))


def warning(known: Acquisition, rows: NDArray[np.float64]) -> str:
    return run_warning([check_acquisition(known, row, None).differs for row in rows]) or ""


def test_images_of_the_same_kind_pass(known: Acquisition) -> None:
    fresh = descriptors(range(200, 260))
    assert odd_share(known, fresh) < 0.2
    assert not any(known.unlike(row) for row in fresh)
    assert not warning(known, fresh)


def test_a_lesion_is_not_another_scanner(known: Acquisition) -> None:
    assert not warning(known, np.array([describe(phantom(s, abnormal=True)) for s in range(200, 260)]))


@pytest.mark.parametrize(
    "change",
    [
        lambda p: -p,
        lambda p: np.clip(p + np.random.default_rng(0).normal(0, 0.15, p.shape), -1, 1).astype(np.float32),
        lambda p: (((p + 1) / 2) ** 0.3 * 2 - 1).astype(np.float32),
    ],
    ids=["inverted", "noisy", "gamma"],
)
def test_another_acquisition_is_told(known: Acquisition, change: Callable[[Pixels], Pixels]) -> None:
    rows = descriptors(range(200, 230), change)
    assert odd_share(known, rows) > 0.8
    assert "unlike the training images" in warning(known, rows)


@pytest.mark.parametrize("kind", ["ultrasound", "chest"])
def test_another_body_part_is_surely_unlike(known: Acquisition, kind: str) -> None:
    rows = np.array([describe(phantom(s, kind)) for s in range(20)])
    assert np.mean([known.unlike(row) for row in rows]) > 0.8


def test_p_values_are_never_zero_and_few_normals_still_decide() -> None:
    few = fit_acquisition(descriptors(range(20)), descriptors(range(20, 24)))
    assert few is not None
    assert few.p_value(descriptors(range(1), lambda p: -p)[0]) == pytest.approx(1 / 5)
    chest = np.array([describe(phantom(0, "chest"))])
    assert few.unlike(chest[0])
    assert "1 of 1 images are unlike" in warning(few, chest)


def test_too_few_images_give_no_reference() -> None:
    assert fit_acquisition(descriptors(range(3)), descriptors(range(3, 5))) is None


def test_constant_descriptors_do_not_divide_by_zero() -> None:
    same = np.ones((10, 11))
    found = fit_acquisition(same, same[:0])
    assert found is not None
    assert np.isfinite(found.distance(same[0]))


def test_scores_say_when_a_run_is_of_another_kind(run_cli: Cli, tmp_path: Path) -> None:
    for folder, kind, count in (("train", "brain", 40), ("same", "brain", 6), ("other", "chest", 6)):
        for i in range(count):
            number = i if folder == "train" else 500 + i
            save(draw(kind, number, 0, abnormal=False).pixels, tmp_path / folder / f"{i}.png")
    bundle = train_run(resolve("brightness", "paper", [{"calibrate": {"features": "off"}}]), tmp_path / "train", tmp_path / "run")
    same = run_cli("score", bundle, tmp_path / "same", "--out", tmp_path / "a")
    other = run_cli("score", bundle, tmp_path / "other", "--out", tmp_path / "b")
    assert (same.code, other.code) == (0, 0)
    assert "unlike the training images" not in same.err
    assert "6 of 6 images are unlike the training images in grey values" in other.err
    assert "image features" not in other.err
    records = read_records(tmp_path / "b")
    assert all(record["unlike"] and record["differs"] == ["grey"] and record["shift_features"] is None for record in records)
    [result] = reshift.load(bundle, device="cpu").predict(tmp_path / "other" / "0.png")
    assert result.unlike
    assert result.shift is not None
