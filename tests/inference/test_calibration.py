"""Thresholds, p-values and what is said about them."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshift.config import CalibrateConfig
from reshift.errors import UserError
from reshift.evaluation.metrics.pixels import PixelHistogram
from reshift.inference.calibration import FEW, Calibration, Reference, false_positive_range, reference

some = settings(deadline=None, max_examples=50)
finite = st.floats(-1e6, 1e6)
scores_with_ties = st.lists(st.one_of(st.sampled_from([0.0, 0.5, 1.0]), finite), min_size=1, max_size=40)


def _pixels(values: list[float]) -> PixelHistogram:
    histogram = PixelHistogram()
    histogram.add(np.array([values], dtype=np.float32))
    return histogram


def _reference(scores: list[float], pixels: list[float] | None = None) -> Reference:
    found = reference(scores, _pixels(pixels or [0.0, 1.0]), CalibrateConfig())
    assert found is not None
    return found


def _calibration(scores: list[float], pixels: list[float] | None = None) -> Calibration:
    held_out = _reference(scores, pixels)
    return Calibration(image_quantile=0.95, pixel_quantile=0.995, default="held-out", held_out=held_out, training=None)


@given(scores_with_ties, st.floats(0.01, 0.99))
@some
def test_the_image_threshold_is_numpys_quantile(scores: list[float], q: float) -> None:
    found = reference(scores, _pixels([1.0]), CalibrateConfig(image_quantile=q))
    assert found is not None
    assert found.image_threshold == np.quantile(scores, q)
    assert found.scores == tuple(sorted(scores))
    assert found.images == len(scores)


def test_the_pixel_threshold_is_numpys_quantile() -> None:
    maps = np.abs(np.random.default_rng(0).normal(size=(10, 128, 128))).astype(np.float32)
    histogram = PixelHistogram()
    for heatmap in maps:
        histogram.add(heatmap)
    found = reference([1.0, 2.0], histogram, CalibrateConfig(pixel_quantile=0.99))
    assert found is not None
    assert found.pixel_threshold == pytest.approx(float(np.quantile(maps, 0.99)), rel=1e-4)
    assert (maps > found.pixel_threshold).mean() == pytest.approx(0.01, abs=1e-4)


def test_nothing_to_calibrate_with_is_none() -> None:
    assert reference([], _pixels([1.0]), CalibrateConfig()) is None
    assert reference([1.0], PixelHistogram(), CalibrateConfig()) is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_score_that_is_not_finite_is_refused(bad: float) -> None:
    """A NaN threshold would flag nothing, ever."""
    with pytest.raises(UserError, match="not finite"):
        reference([0.1, bad, 0.3], _pixels([1.0]), CalibrateConfig())


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


# ---- how sure the false-positive rate is ---------------------------------------------------------------------------------


def test_the_range_of_the_false_positive_rate_is_sane() -> None:
    ranges = {n: false_positive_range(n, 0.95) for n in (8, 20, 100, 1000)}
    for low, high in ranges.values():
        assert 0.0 < low < 0.05 < high < 1.0
    widths = [high - low for low, high in ranges.values()]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.03
    assert false_positive_range(20, 0.95) == ranges[20]  # the same every time


@pytest.mark.parametrize(("n", "quantile"), [(21, 0.95), (41, 0.5), (8, 0.95), (33, 0.9), (1, 0.95)])
def test_the_range_agrees_with_drawing_normals(n: int, quantile: float) -> None:
    """Draw n uniforms, take numpy's quantile, look at what lies above: whole positions (21, 41) and interpolated ones."""
    rng = np.random.default_rng(1)
    above = 1.0 - np.quantile(rng.random((100_000, n)), quantile, axis=1)
    low, high = np.quantile(above, (0.025, 0.975))
    found = false_positive_range(n, quantile)
    assert found[0] == pytest.approx(low, abs=0.006)
    assert found[1] == pytest.approx(high, abs=0.006)


def test_a_pure_order_statistic_follows_its_beta_law() -> None:
    """Of 21 values the 0.95 quantile is exactly the 20th: what lies above is Beta(2, 20), a binomial sum."""
    low, high = false_positive_range(21, 0.95)

    def at_most(x: float) -> float:  # P(Beta(2, 20) ≤ x) = P(Binomial(21, x) ≥ 2)
        return 1.0 - (1.0 - x) ** 21 - 21 * x * (1.0 - x) ** 20

    assert at_most(low) == pytest.approx(0.025, abs=0.0015)
    assert at_most(high) == pytest.approx(0.975, abs=0.0015)


def test_a_hundred_thousand_normals_need_no_matrix() -> None:
    tracemalloc.start()
    try:
        low, high = false_positive_range(100_000, 0.95)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50 * 2**20  # one row per draw would be 100,000 numbers each
    assert 0.048 < low < 0.05 < high < 0.052


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
    [few] = _calibration(many[:20]).warnings()
    low, high = false_positive_range(20, 0.95)
    assert "only 20 normals" in few
    assert f"{low:.1%}" in few
    assert f"{high:.1%}" in few
    trained = Calibration(image_quantile=0.95, pixel_quantile=0.995, default="held-out", held_out=None, training=_reference(many))
    [optimistic] = trained.warnings()
    assert "held out" in optimistic
    assert "optimistic" in optimistic
    assert trained.model_copy(update={"default": "training"}).warnings() == []  # asked for: the paper's rule


@pytest.mark.parametrize(("pixels", "scale"), [([0.0, 0.0], 1.0), ([-3.0, -2.0], 1.0), ([0.25, 0.25], 0.5)])
def test_the_heat_scale_is_positive(pixels: list[float], scale: float) -> None:
    """Maps of zeros (a method without a place) and of negative values still have a drawable scale."""
    assert _calibration([1.0], pixels).heat_scale == pytest.approx(scale, rel=1e-4)
