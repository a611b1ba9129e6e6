"""Thresholds, p-values and what is said about them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshift.config import CalibrateConfig
from reshift.errors import UserError
from reshift.evaluation.metrics.pixels import PixelHistogram
from reshift.inference.calibration import FEW, Calibration, Reference, reference

some = settings(deadline=None, max_examples=50)
finite = st.floats(-1e6, 1e6)
scores_with_ties = st.lists(st.one_of(st.sampled_from([0.0, 0.5, 1.0]), finite), min_size=1, max_size=40)


def _pixels(values: list[float]) -> PixelHistogram:
    histogram = PixelHistogram()
    histogram.add(np.array([values], dtype=np.float32))
    return histogram


def _reference(scores: list[float], pixels: list[float] | None = None, subjects: list[str] | None = None) -> Reference:
    names = subjects or [str(i) for i in range(len(scores))]
    found = reference(scores, names, _pixels(pixels or [0.0, 1.0]), CalibrateConfig())
    assert found is not None
    return found


def _calibration(scores: list[float], pixels: list[float] | None = None, subjects: list[str] | None = None) -> Calibration:
    held_out = _reference(scores, pixels, subjects)
    return Calibration(image_quantile=0.95, pixel_quantile=0.995, default="held-out", held_out=held_out, training=None)


@given(scores_with_ties, st.floats(0.01, 0.99))
@some
def test_with_one_image_per_subject_the_image_threshold_is_weibulls_quantile(scores: list[float], q: float) -> None:
    found = reference(scores, [str(i) for i in range(len(scores))], _pixels([1.0]), CalibrateConfig(image_quantile=q))
    assert found is not None
    assert found.image_threshold == pytest.approx(np.quantile(scores, q, method="weibull"), rel=1e-6, abs=1e-3)
    assert found.scores == tuple(sorted(scores))
    assert found.images == found.subjects == len(scores)
    assert found.owners == ()


def test_the_papers_image_threshold_is_numpys_quantile_whoever_the_images_are_of() -> None:
    scores, subjects = [float(i) for i in range(32)], [f"{i // 4}" for i in range(32)]
    found = reference(scores, subjects, _pixels([0.0, 1.0]), CalibrateConfig(), plain=True)
    assert found is not None
    assert found.image_threshold == pytest.approx(np.quantile(scores, 0.95))
    assert sum(score > found.image_threshold for score in scores) == 2  # 5 % of 32, and not the highest only


def test_the_pixel_threshold_is_numpys_quantile() -> None:
    maps = np.abs(np.random.default_rng(0).normal(size=(10, 128, 128))).astype(np.float32)
    histogram = PixelHistogram()
    for heatmap in maps:
        histogram.add(heatmap)
    found = reference([1.0, 2.0], ["a", "b"], histogram, CalibrateConfig(pixel_quantile=0.99))
    assert found is not None
    assert found.quantile_threshold == found.pixel_threshold
    assert found.pixel_share == pytest.approx(0.01, abs=1e-4)
    assert found.pixel_threshold == pytest.approx(float(np.quantile(maps, 0.99)), rel=1e-4)
    assert (maps > found.pixel_threshold).mean() == pytest.approx(0.01, abs=1e-4)


def test_nothing_to_calibrate_with_is_none() -> None:
    assert reference([], [], _pixels([1.0]), CalibrateConfig()) is None
    assert reference([1.0], ["a"], PixelHistogram(), CalibrateConfig()) is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_score_that_is_not_finite_is_refused(bad: float) -> None:
    """A NaN threshold would flag nothing, ever."""
    with pytest.raises(UserError, match="not finite"):
        reference([0.1, bad, 0.3], ["a", "b", "c"], _pixels([1.0]), CalibrateConfig())


# ---- p-values ----------------------------------------------------------------------------------------------------------


@given(scores_with_ties, st.one_of(st.sampled_from([0.0, 0.5, 1.0, -2e6, 2e6]), finite))
@some
def test_p_value_is_its_slow_definition(scores: list[float], score: float) -> None:
    slow = (1 + sum(s >= score for s in scores)) / (len(scores) + 1)
    assert _calibration(scores).p_value(score) == slow


def test_p_values_at_the_ends_and_on_ties() -> None:
    calibration = _calibration([3.0, 1.0, 2.0, 2.0])
    assert calibration.p_value(0.0) == 1.0
    assert calibration.p_value(1.0) == 1.0
    assert calibration.p_value(2.0) == 4 / 5
    assert calibration.p_value(3.0) == 2 / 5
    assert calibration.p_value(9.0) == 1 / 5  # never 0


def test_p_values_of_fresh_normals_are_uniform() -> None:
    """Over many calibrations P(p ≤ u) = ⌊u (n+1)⌋ / (n+1); 4,000 draws stay within the 0.1 % point of Kolmogorov's statistic."""
    rng, n, draws = np.random.default_rng(0), 39, 4000
    found = []
    for _ in range(draws):
        *normals, fresh = rng.gamma(2.0, size=n + 1).tolist()
        held_out = Reference(images=n, image_threshold=0.0, pixel_threshold=1.0, scores=tuple(sorted(normals)))
        calibration = Calibration(image_quantile=0.95, pixel_quantile=0.995, default="held-out", held_out=held_out, training=None)
        found.append(calibration.p_value(fresh))
    steps = np.arange(1, n + 2) / (n + 1)
    reached = np.array([(np.array(found) <= u + 1e-12).mean() for u in steps])
    assert np.abs(reached - steps).max() < 1.95 / np.sqrt(draws)


clustered = st.lists(st.tuples(st.one_of(st.sampled_from([0.0, 0.5, 1.0]), finite), st.sampled_from("abcde")), min_size=1)


@given(clustered, st.one_of(st.sampled_from([0.0, 0.5, 1.0, -2e6, 2e6]), finite))
@some
def test_p_value_of_clustered_normals_is_its_slow_definition(normals: list[tuple[float, str]], score: float) -> None:
    found = _calibration([s for s, _ in normals], subjects=[name for _, name in normals])
    own = {name: [s for s, other in normals if other == name] for _, name in normals}
    slow = (1 + sum(sum(s >= score for s in scores) / len(scores) for scores in own.values())) / (1 + len(own))
    assert found.p_value(score) == pytest.approx(slow, abs=1e-12)
    assert found.reference.subjects == len(own)


@given(clustered, st.floats(0.01, 0.5))
@some
def test_a_small_p_value_is_flagged_and_a_flagged_image_has_a_small_one(normals: list[tuple[float, str]], rate: float) -> None:
    config = CalibrateConfig(image_quantile=1.0 - rate)
    found = reference([s for s, _ in normals], [name for _, name in normals], _pixels([1.0]), config)
    assert found is not None
    for score in (*found.scores, found.image_threshold, *(np.nextafter(s, np.inf) for s in found.scores)):
        if found.p_value(score) <= rate - 1e-8:
            assert score > found.image_threshold
        if score > found.image_threshold:
            assert found.p_value(score) <= found.promised_rate + 1e-12
    assert found.promised_rate <= rate + 2.0 / (found.subjects + 1) + _ties(normals)


def _ties(normals: list[tuple[float, str]]) -> float:
    """Equal scores of several subjects cannot be told apart by any threshold."""
    subjects = {name for _, name in normals}
    most = max(len({name for s, name in normals if s == score}) for score, _ in normals)
    return most / (len(subjects) + 1) if most > 1 else 0.0


# ---- what is stored and said -------------------------------------------------------------------------------------------


def test_default_and_fall_back() -> None:
    held, trained = _reference([1.0, 2.0]), _reference([3.0, 4.0])

    def chosen(default: str, held_out: Reference | None, training: Reference | None) -> Reference:
        values = {"image_quantile": 0.95, "pixel_quantile": 0.995, "default": default}
        return Calibration.model_validate(values | {"held_out": held_out, "training": training}).reference

    assert chosen("held-out", held, trained) == held
    assert chosen("training", held, trained) == trained
    assert chosen("held-out", None, trained) == trained
    assert chosen("training", held, None) == held
    with pytest.raises(ValueError, match="without any normals"):
        chosen("held-out", None, None)


def test_json_round_trip_keeps_every_bit() -> None:
    scores = np.random.default_rng(0).normal(size=50).tolist()
    before = _calibration(scores, [0.1, 0.2, 1 / 3])
    after = Calibration.model_validate_json(before.model_dump_json())
    assert after == before
    assert after.p_value(scores[7]) == before.p_value(scores[7])
    assert after.heat_scale == before.heat_scale


def test_warnings_say_what_matters() -> None:
    many = [float(i) for i in range(FEW)]
    assert _calibration(many).warnings() == []
    calibration = _calibration(many[:20])
    [few] = calibration.warnings()
    low, high = calibration.reference.false_positive_range(0.05)
    assert f"only 20 normals: the true false-positive rate may lie anywhere between {low:.1%} and {high:.1%}" in few
    assert "promised" not in few
    trained = Calibration(image_quantile=0.95, pixel_quantile=0.995, default="held-out", held_out=None, training=_reference(many))
    [optimistic] = trained.warnings()
    assert "held out" in optimistic
    assert "optimistic" in optimistic
    assert trained.model_copy(update={"default": "training"}).warnings() == []  # asked for: the paper's rule


def test_too_few_subjects_for_the_promise() -> None:
    [line] = _calibration([float(i) for i in range(18)]).warnings()
    assert "5% cannot be promised, but 5.3% can" in line  # one in nineteen
    assert "cannot" not in _calibration([float(i) for i in range(19)]).warnings()[0]
    alike = _calibration([float(i // 10) for i in range(80)], subjects=[str(i // 10) for i in range(80)])
    [line] = alike.warnings()  # eighty images that say no more than eight
    assert "only 80 normals of 8 subjects" in line
    assert "5% cannot be promised, but 11.1% can" in line
    assert alike.reference.image_threshold == 7.0


def test_subjects_are_stored_as_numbers() -> None:
    before = _calibration([3.0, 1.0, 2.0, 5.0], subjects=["zoe", "adam", "zoe", "adam"])
    assert before.reference.owners == (0, 1, 1, 0)
    assert Calibration.model_validate_json(before.model_dump_json()) == before
    assert "zoe" not in before.model_dump_json()


@pytest.mark.parametrize("owners", [(0, 1), (0, 2, 2), (-1, 0, 1), (1, 1, 1)])
def test_wrong_subjects_are_refused(owners: tuple[int, ...]) -> None:
    values = _reference([1.0, 2.0, 3.0]).model_dump() | {"owners": owners}
    with pytest.raises(ValueError, match="owners"):
        Reference.model_validate(values)


def test_a_method_may_bring_its_own_pixel_threshold() -> None:
    found = reference([1.0], ["a"], _pixels([0.0, 1.0, 2.0, 3.0]), CalibrateConfig(), pixel_threshold=1.5)
    assert found is not None
    assert (found.pixel_threshold, found.quantile_threshold, found.pixel_share) == (1.5, 3.0, 0.5)
    calibration = Calibration(image_quantile=0.95, pixel_quantile=0.995, default="held-out", held_out=found, training=None)
    assert (calibration.quantile_threshold, calibration.heat_scale) == (3.0, 3.0)


def test_a_calibration_of_an_earlier_version_says_what_it_said() -> None:
    old = {"images": 4, "image_threshold": 2.85, "pixel_threshold": 1.0, "scores": [1.0, 2.0, 2.0, 3.0]}
    values = {"image_quantile": 0.95, "pixel_quantile": 0.995, "default": "held-out", "held_out": old, "training": None}
    calibration = Calibration.model_validate(values)
    assert [calibration.p_value(s) for s in (0.0, 2.0, 3.0, 9.0)] == [1.0, 4 / 5, 2 / 5, 1 / 5]
    assert (calibration.quantile_threshold, calibration.reference.subjects) == (1.0, 4)


@pytest.mark.parametrize(("pixels", "scale"), [([0.0, 0.0], 1.0), ([-3.0, -2.0], 1.0), ([0.25, 0.25], 0.5)])
def test_the_heat_scale_is_positive(pixels: list[float], scale: float) -> None:
    """Maps of zeros (a method without a place) and of negative values still have a drawable scale."""
    assert _calibration([1.0], pixels).heat_scale == pytest.approx(scale, rel=1e-4)
