"""Weighted metrics against explicitly repeated images, intervals against known truths, DeLong against a slow double loop."""

from statistics import NormalDist, stdev
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from reshift.errors import UserError
from reshift.evaluation.metrics import bootstrap
from reshift.evaluation.metrics.bootstrap import Images, draw_for_images, owners
from reshift.evaluation.metrics.confidence import Paired, delong, image_intervals, image_samples, mean_std, paired_image
from reshift.evaluation.metrics.table import image_metrics, select_metrics

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
T = TypeVar("T")
SAMPLED = [metric.name for metric in select_metrics("image") if metric.samples is not None]


def _binormal(rng: np.random.Generator, normals: int, abnormals: int, shift: float = 1.0) -> tuple[Bools, Floats]:
    labels = np.arange(normals + abnormals) >= normals
    return labels, rng.normal(size=len(labels)) + shift * labels


def _each(labels: Bools) -> list[str]:
    """Every image its own subject."""
    return [f"s{index:04d}" for index in range(len(labels))]


def _present(found: T | None) -> T:
    assert found is not None
    return found


# ---- a weight is a repetition ------------------------------------------------------------------------------------------

# Few scores, so that ties are the rule; several images per subject, of both classes.
image = st.tuples(st.booleans(), st.sampled_from([-2.5, -0.0, 0.0, 0.25, 1.0, 7.0]), st.sampled_from("abcdef"))


@given(st.lists(image, min_size=2, max_size=40), st.integers(0, 2**32 - 1), st.sampled_from([-9.0, 0.0, 0.25, 9.0]))
@settings(deadline=None, max_examples=60)
def test_weighted_metrics_are_those_of_repeated_images(rows: list[tuple[bool, float, str]], seed: int, threshold: float) -> None:
    labels, scores = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    owner = owners(labels, [row[2] for row in rows])
    images = Images(labels, scores, threshold, owner)
    weights = draw_for_images(images, 5, seed)
    samples = image_samples(images, weights)
    for index, weight in enumerate(weights):
        again = np.repeat(np.arange(len(rows)), weight[owner])
        expected = image_metrics(labels[again], scores[again], threshold)
        assert {name for name in SAMPLED if expected[name] is not None} == set(samples)
        for name, found in samples.items():
            assert found[index] == pytest.approx(expected[name], abs=1e-12), name


def test_every_draw_has_both_classes_and_keeps_the_number_of_patients() -> None:
    labels = np.array([True, True, False, True, True, True])  # one normal image only, of a patient
    images = Images(labels, np.arange(6.0), 2.0, owners(labels, list("aabcde")))
    weights = draw_for_images(images, 500, 0)
    assert (weights.sum(axis=1) == 5).all()
    assert (weights[:, 1] > 0).all()  # "b" holds it, so a draw without "b" was drawn again
    labels = np.array([True] * 3 + [False] * 4)
    weights = draw_for_images(Images(labels, np.arange(7.0), 2.0, owners(labels, list("abcdefg"))), 500, 0)
    assert (weights[:, :3].sum(axis=1) == 3).all()
    assert (weights[:, 3:].sum(axis=1) == 4).all()
    assert (weights.min(axis=0) == 0).all()
    np.testing.assert_allclose(weights.mean(axis=0), 1.0, atol=0.15)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    labels, scores = _binormal(np.random.default_rng(0), 20, 20)
    whole = image_intervals(labels, scores, _each(labels), 0.5)
    monkeypatch.setattr(bootstrap, "CHUNK", 300)
    assert image_intervals(labels, scores, _each(labels), 0.5) == whole


# ---- intervals ---------------------------------------------------------------------------------------------------------


def test_auc_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng, truth, covered = np.random.default_rng(0), NormalDist().cdf(1.0 / 2.0**0.5), 0
    for seed in range(150):
        labels, scores = _binormal(rng, 70, 50)
        low, high = _present(image_intervals(labels, scores, _each(labels), None, draws=400, seed=seed)["auc"])
        covered += low <= truth <= high
    assert 0.90 <= covered / 150 <= 0.98


def test_copies_of_an_image_are_no_evidence_if_the_subject_is_known() -> None:
    labels, scores = _binormal(np.random.default_rng(2), 30, 30)
    once = image_intervals(labels, scores, _each(labels), 0.5)
    labels4, scores4 = np.repeat(labels, 4), np.repeat(scores, 4)
    by_subject = image_intervals(labels4, scores4, [name for name in _each(labels) for _ in range(4)], 0.5)
    by_image = image_intervals(labels4, scores4, _each(labels4), 0.5)
    for name in SAMPLED:
        known, wide, narrow = _present(once[name]), _present(by_subject[name]), _present(by_image[name])
        assert wide == pytest.approx(known, abs=1e-12)
        ratio = (wide[1] - wide[0]) / (narrow[1] - narrow[0])
        assert 1.5 < ratio < 2.6, name  # √4, roughly


def test_rates_have_the_binomial_width_and_the_level_widens() -> None:
    labels, scores = _binormal(np.random.default_rng(3), 400, 300)
    point = image_metrics(labels, scores, 0.5)
    for level, z in ((0.95, 1.96), (0.68, 0.994)):
        found = image_intervals(labels, scores, _each(labels), 0.5, draws=2000, level=level)
        for name, n in (("fpr", 400), ("tpr", 300)):
            rate, (low, high) = _present(point[name]), _present(found[name])
            assert (high - low) / 2 == pytest.approx(z * (rate * (1 - rate) / n) ** 0.5, rel=0.12)
            assert low < rate < high


def test_the_seed_decides_and_the_order_of_the_images_does_not() -> None:
    labels, scores = _binormal(np.random.default_rng(4), 25, 25)
    names = [f"s{index // 2}" for index in range(50)]
    found = image_intervals(labels, scores, names, 0.5, draws=200)
    order = np.random.default_rng(5).permutation(50)
    assert image_intervals(labels[order], scores[order], [names[i] for i in order], 0.5, draws=200) == found
    assert image_intervals(labels, scores, names, 0.5, draws=200, seed=1) != found


def test_none_where_there_is_no_value_or_one_subject() -> None:
    labels, scores = np.array([False, False, True, True]), np.array([0.1, 0.6, 0.4, 0.9])
    found = image_intervals(labels, scores, list("abcd"), None)
    assert [name for name in SAMPLED if found[name] is None] == ["tpr", "fpr", "f1"]
    found = image_intervals(labels, scores, list("abcc"), 0.5)  # one patient
    assert [name for name in SAMPLED if found[name] is not None] == ["fpr"]
    found = image_intervals(np.ones(4, dtype=bool), scores, list("abcd"), 0.5)
    assert [name for name in SAMPLED if found[name] is not None] == ["tpr"]
    assert set(image_intervals(labels[:0], scores[:0], [], 0.5).values()) == {None}
    with pytest.raises(UserError, match="NaN"):
        image_intervals(labels, scores * np.nan, list("abcd"), 0.5)
    with pytest.raises(ValueError, match="3 subjects"):
        image_intervals(labels, scores, list("abc"), 0.5)


# ---- comparisons -------------------------------------------------------------------------------------------------------


def _slow_delong(labels: Bools, a: Floats, b: Floats) -> tuple[float, float]:
    """Difference and variance by DeLong's own definition: every abnormal image against every normal one."""
    m, n = int(labels.sum()), int((~labels).sum())
    wins = [[[(x > y) + 0.5 * (x == y) for y in s[~labels]] for x in s[labels]] for s in (a, b)]
    over, under = np.mean(wins, axis=2), np.mean(wins, axis=1)  # (2, m), (2, n)
    aucs = over.mean(axis=1)
    cov = np.zeros((2, 2))
    for r in range(2):
        for s in range(2):
            cov[r, s] = sum((over[r] - aucs[r]) * (over[s] - aucs[s])) / (m - 1) / m
            cov[r, s] += sum((under[r] - aucs[r]) * (under[s] - aucs[s])) / (n - 1) / n
    return float(aucs[0] - aucs[1]), float(cov[0, 0] + cov[1, 1] - 2 * cov[0, 1])


@pytest.mark.parametrize("decimals", [0, 1, 9])  # fewer decimals, more ties
def test_delong_equals_a_loop_over_all_pairs(decimals: int) -> None:
    rng = np.random.default_rng(decimals)
    labels, a = _binormal(rng, 23, 17)
    a, b = a.round(decimals), (0.5 * a + rng.normal(size=40)).round(decimals)
    found, (difference, variance) = _present(delong(labels, a, b)), _slow_delong(labels, a, b)
    reach = 1.959964 * variance**0.5
    assert found.difference == pytest.approx(difference, abs=1e-12)
    assert (found.low, found.high) == pytest.approx((difference - reach, difference + reach))
    assert found.p_value == pytest.approx(2 * NormalDist().cdf(-abs(difference) / variance**0.5))
    other = delong(labels, b, a)
    assert other == pytest.approx((-found.difference, -found.high, -found.low, found.p_value))


def test_delong_p_values_are_uniform_where_nothing_differs() -> None:
    rng, p_values = np.random.default_rng(7), []
    for _ in range(400):
        labels, shared = _binormal(rng, 60, 60)
        p_values.append(_present(delong(labels, shared + rng.normal(size=120), shared + rng.normal(size=120))).p_value)
    distance = np.abs(np.sort(p_values) - (np.arange(400) + 0.5) / 400).max()
    assert distance < 1.63 / 20  # Kolmogorov-Smirnov at 1 %
    assert 0.02 <= np.mean(np.array(p_values) < 0.05) <= 0.09


def test_delong_at_the_ends() -> None:
    labels, scores = _binormal(np.random.default_rng(8), 40, 40)
    assert delong(labels, scores, scores) == Paired(0.0, 0.0, 0.0, 1.0)
    assert delong(labels, scores, np.exp(scores)) == Paired(0.0, 0.0, 0.0, 1.0)  # the same order
    difference, low, high, p_value = _present(delong(labels, scores + 2 * labels, scores))
    assert p_value < 1e-4
    assert 0 < low < difference < high
    perfect = labels.astype(np.float64)
    assert delong(labels, perfect, -perfect) is None  # 1 against 0 without any spread
    assert delong(labels[:41], scores[:41], scores[:41] ** 2) is None  # one abnormal image
    assert delong(labels[:40], scores[:40], scores[:40] ** 2) is None


def test_paired_bootstrap_agrees_with_delong() -> None:
    rng = np.random.default_rng(9)
    labels, a = _binormal(rng, 150, 150)
    b = a + 0.8 * rng.normal(size=300)
    theirs = _present(delong(labels, a, b))
    ours = _present(paired_image(labels, a, b, _each(labels), 0.5, 0.5, "auc", draws=2000))
    assert ours.difference == pytest.approx(theirs.difference, abs=1e-12)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.15 * (theirs.high - theirs.low))


@pytest.mark.parametrize("name", SAMPLED)
def test_paired_images_share_their_draws(name: str) -> None:
    labels, scores = _binormal(np.random.default_rng(10), 60, 60)
    names = _each(labels)
    assert paired_image(labels, scores, scores, names, 0.5, 0.5, name) == Paired(0.0, 0.0, 0.0, 1.0)
    worse = np.where(labels, scores - 1.0, scores + 0.5)
    found = _present(paired_image(labels, scores, worse, names, 0.5, 0.5, name, draws=500))
    flipped = paired_image(labels, worse, scores, names, 0.5, 0.5, name, draws=500)
    assert flipped == pytest.approx((-found.difference, -found.high, -found.low, found.p_value))
    assert (found.difference < 0) == (name == "fpr")
    assert found.p_value == pytest.approx(2 / 501)  # no draw says otherwise
    assert (paired_image(labels, scores, worse, names, 0.5, None, name) is None) == (name in {"f1", "fpr", "tpr"})


def test_a_metric_that_does_not_exist_is_named() -> None:
    with pytest.raises(UserError, match=r"'dice'.*auc"):
        paired_image(np.array([True, False]), np.zeros(2), np.ones(2), ["a", "b"], 0.5, 0.5, "dice")


def test_mean_and_deviation_over_seeds() -> None:
    assert mean_std([0.5, 0.75, None, 1.0]) == pytest.approx((0.75, stdev([0.5, 0.75, 1.0])))
    assert mean_std([None, 0.5]) == (0.5, None)
    assert mean_std([None, None]) is mean_std([]) is None
