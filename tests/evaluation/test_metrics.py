"""Metrics against scikit-learn or a slow loop."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, f1_score, precision_recall_curve, roc_auc_score

from reshift.errors import UserError
from reshift.evaluation.metrics.image import average_precision, best_f1, curve, roc_auc
from reshift.evaluation.metrics.table import image_metrics

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]
some = settings(deadline=None, max_examples=50)

# Few distinct scores, so that ties are the rule; both classes may be missing.
tied = st.lists(st.tuples(st.booleans(), st.sampled_from([-2.5, -0.0, 0.0, 0.25, 1.0, 7.0])), min_size=1, max_size=60)


def _split(pairs: list[tuple[bool, float]]) -> tuple[Bools, NDArray[np.float64]]:
    return np.array([p[0] for p in pairs], dtype=bool), np.array([p[1] for p in pairs])


def _oracle_f1(labels: Bools, scores: NDArray[np.floating]) -> float:
    precision, recall, _ = precision_recall_curve(labels, scores)
    return float((2 * precision * recall / np.maximum(precision + recall, 1e-12)).max())


# ---- images ------------------------------------------------------------------------------------------------------------


@given(tied)
@some
def test_image_metrics_equal_scikit_learn_with_ties(pairs: list[tuple[bool, float]]) -> None:
    labels, scores = _split(pairs)
    found = image_metrics(labels, scores, 0.25)
    if labels.all() or not labels.any():
        assert all(found[name] is None for name in ("auc", "ap", "f1", "f1_max"))
        assert (found["fpr"] is None) == bool(labels.all())
        assert (found["tpr"] is None) == (not labels.any())
        return
    called = scores > 0.25
    assert found["auc"] == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert found["ap"] == pytest.approx(average_precision_score(labels, scores), abs=1e-12)
    assert found["f1"] == pytest.approx(f1_score(labels, called, zero_division=0.0), abs=1e-12)
    assert found["fpr"] == pytest.approx(sum(c and not y for c, y in zip(called, labels, strict=True)) / (~labels).sum())
    assert found["tpr"] == pytest.approx(sum(c and y for c, y in zip(called, labels, strict=True)) / labels.sum())
    assert found["f1_max"] == pytest.approx(_oracle_f1(labels, scores), abs=1e-12)
    assert found["threshold"] == 0.25


def test_untied_scores_equal_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    labels = rng.random(3000) < 0.3
    scores = rng.normal(size=3000) + labels
    tp, fp, thresholds = curve(labels, scores)
    precision, recall, theirs = precision_recall_curve(labels, scores)
    np.testing.assert_array_equal(thresholds[::-1], theirs)
    np.testing.assert_allclose((tp / (tp + fp))[::-1], precision[:-1], rtol=1e-12)
    np.testing.assert_allclose((tp / tp[-1])[::-1], recall[:-1], rtol=1e-12)
    assert roc_auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert average_precision(tp, fp) == pytest.approx(average_precision_score(labels, scores), abs=1e-12)


def test_auc_is_the_share_of_pairs_ranked_right() -> None:
    labels = np.array([True, True, False, False, False])
    scores = np.array([2.0, 1.0, 1.0, 0.0, 3.0])
    pairs = [(a > n) + 0.5 * (a == n) for a in scores[labels] for n in scores[~labels]]
    assert roc_auc(labels, scores) == pytest.approx(np.mean(pairs))


def test_a_class_without_images_gives_none_and_not_zero() -> None:
    for label in (True, False):
        found = image_metrics(np.array([label] * 3), np.array([0.1, 0.2, 0.9]), 0.5)
        assert [found[name] for name in ("auc", "ap", "f1", "f1_max")] == [None] * 4
        known, missing = ("tpr", "fpr") if label else ("fpr", "tpr")
        assert found[known] == pytest.approx(1 / 3)
        assert found[missing] is None
    assert best_f1(np.zeros(0, np.int64), np.zeros(0, np.int64)) is None
    assert average_precision(np.zeros(0, np.int64), np.zeros(0, np.int64)) is None


def test_a_single_image() -> None:
    found = image_metrics(np.array([True]), np.array([0.7]), 0.5)
    assert found == {"auc": None, "ap": None, "f1": None, "threshold": 0.5, "fpr": None, "tpr": 1.0, "f1_max": None}


def test_constant_scores_are_chance() -> None:
    labels = np.array([True, False, False, False])
    found = image_metrics(labels, np.full(4, 3.0), 3.0)
    assert (found["auc"], found["ap"], found["fpr"], found["tpr"], found["f1"]) == (0.5, 0.25, 0.0, 0.0, 0.0)
    assert found["f1_max"] == pytest.approx(2 / 5)  # everything called


def test_without_a_threshold_nothing_is_called() -> None:
    found = image_metrics(np.array([True, False]), np.array([1.0, 0.0]), None)
    assert (found["auc"], found["ap"], found["f1_max"]) == (1.0, 1.0, 1.0)
    assert [found[name] for name in ("f1", "fpr", "tpr", "threshold")] == [None] * 4


def test_infinite_scores_rank_and_nan_is_refused() -> None:
    labels = np.array([True, False, False])
    assert roc_auc(labels, np.array([np.inf, 0.0, -np.inf])) == 1.0
    for measure in (roc_auc, curve):
        with pytest.raises(UserError, match="NaN"):
            measure(labels, np.array([1.0, np.nan, 0.0]))
