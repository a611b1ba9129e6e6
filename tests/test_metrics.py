"""Metrics against scikit-learn or a slow loop."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, f1_score, precision_recall_curve, roc_auc_score

from reshift.errors import UserError
from reshift.metrics import (
    CELLS,
    PixelHistogram,
    PixelMetrics,
    average_precision,
    best_f1,
    curve,
    image_metrics,
    roc_auc,
)

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


# ---- pixels ------------------------------------------------------------------------------------------------------------


def _maps(kind: str) -> tuple[Floats, Bools]:
    """128 maps of 128×128 = 2.1 million pixels, a third of the images with a lesion."""
    rng = np.random.default_rng(1)
    shape = (128, 128, 128)
    lesion = np.zeros(shape, dtype=bool)
    for image in range(0, 128, 3):
        top, left, side = rng.integers(0, 100), rng.integers(0, 100), rng.integers(5, 28)
        lesion[image, top : top + side, left : left + side] = True
    noise = rng.normal(size=shape)
    if kind == "negative":
        return (noise + 1.5 * lesion - 0.5).astype(np.float32), lesion
    residual = np.abs(noise) * 0.05 + lesion * rng.uniform(0.0, 0.2, shape)
    if kind == "8-bit":
        residual = np.rint(np.clip(residual, 0.0, 1.0) * 255.0) / 255.0
    return residual.astype(np.float32), lesion


def _counted(maps: Floats, masks: Bools) -> PixelHistogram:
    histogram = PixelHistogram()
    for heatmap, mask in zip(maps, masks, strict=True):
        histogram.add(heatmap, mask)
    return histogram


def _same(a: PixelHistogram, b: PixelHistogram) -> bool:
    pairs = ((a.normal, b.normal), (a.abnormal, b.abnormal))
    return all(x.keys() == y.keys() and all(np.array_equal(x[k], y[k]) for k in x) for x, y in pairs)


@pytest.mark.parametrize("kind", ["residual", "negative", "8-bit"])
def test_pixel_ap_and_quantile_equal_a_sort_over_all_pixels(kind: str) -> None:
    maps, masks = _maps(kind)
    assert maps.size >= 2_000_000
    histogram = _counted(maps, masks)
    tp, fp, thresholds = histogram.curve()
    expected = average_precision_score(masks.ravel(), maps.ravel())
    assert average_precision(tp, fp) == pytest.approx(expected, abs=1e-12 if kind == "8-bit" else 1e-6)
    assert (tp[-1], fp[-1]) == (masks.sum(), (~masks).sum())
    assert (np.diff(thresholds) < 0).all()
    assert best_f1(tp, fp) == pytest.approx(_oracle_f1(masks.ravel(), maps.ravel()), abs=1e-5)
    for q in (0.05, 0.5, 0.95, 0.995):
        assert histogram.quantile(q) == pytest.approx(float(np.quantile(maps, q)), rel=1e-4)
    for q in (0.9999, 1.0):  # so far out neighbours lie apart, and numpy's default would put its value between them
        assert histogram.quantile(q) == pytest.approx(float(np.quantile(maps, q, method="inverted_cdf")), rel=1e-5)


def test_merging_and_order_change_nothing() -> None:
    maps, masks = _maps("residual")
    maps, masks = maps[:24], masks[:24]
    whole, first, second = _counted(maps, masks), _counted(maps[:7], masks[:7]), _counted(maps[7:], masks[7:])
    first.merge(second)
    assert _same(first, whole)
    assert _same(_counted(maps[::-1], masks[::-1]), whole)
    assert not _same(second, whole)
    second.merge(PixelHistogram())
    assert _same(second, _counted(maps[7:], masks[7:]))


def test_memory_does_not_grow_with_the_pixels() -> None:
    maps, masks = _maps("residual")
    histogram = _counted(maps, masks)
    sizes = {octave: counts.nbytes for octave, counts in histogram.normal.items()}
    for heatmap, mask in zip(maps, masks, strict=True):
        histogram.add(heatmap, mask)
    assert {octave: counts.nbytes for octave, counts in histogram.normal.items()} == sizes
    assert all(counts.dtype == np.uint32 for counts in (*histogram.normal.values(), *histogram.abnormal.values()))
    assert sum(sizes.values()) < 80 * 2**20  # octaves that never occur cost nothing


def test_a_full_counter_is_an_error_and_loses_nothing() -> None:
    histogram = PixelHistogram()
    histogram.add(np.ones((1, 1), dtype=np.float32))
    [octave] = histogram.normal
    histogram.normal[octave][histogram.normal[octave] > 0] = 2**32 - 2
    histogram.add(np.ones((1, 1), dtype=np.float32))
    assert histogram.curve()[1].tolist() == [2**32 - 1]
    other = PixelHistogram()
    other.merge(histogram)
    with pytest.raises(OverflowError, match="4,294,967,295"):
        histogram.add(np.ones((1, 1), dtype=np.float32))
    with pytest.raises(OverflowError, match="4,294,967,295"):
        histogram.merge(other)
    assert histogram.curve()[1].tolist() == [2**32 - 1]


def test_nan_and_wrong_masks_are_refused_before_anything_is_counted() -> None:
    histogram, heatmap = PixelHistogram(), np.zeros((4, 4), dtype=np.float32)
    with pytest.raises(ValueError, match="shape"):
        histogram.add(heatmap, np.zeros((2, 8), dtype=bool))
    heatmap[1, 2] = np.nan
    with pytest.raises(UserError, match="NaN"):
        histogram.add(heatmap)
    assert histogram.quantile(0.5) is None
    assert not histogram.normal


def test_zeros_are_equal_and_infinities_are_the_ends() -> None:
    histogram = PixelHistogram()
    values = np.array([[0.0, -0.0, np.inf, -np.inf, 1.0, -1.0]], dtype=np.float32)
    histogram.add(values, np.array([[True, False, True, False, False, True]]))
    tp, fp, thresholds = histogram.curve()
    assert thresholds.tolist() == [np.inf, 1.0, 0.0, pytest.approx(-1.0, rel=1e-5), -np.inf]
    assert (tp.tolist(), fp.tolist()) == ([1, 1, 2, 3, 3], [0, 1, 2, 2, 3])
    assert [histogram.quantile(q) for q in (0.01, 0.5, 1.0)] == [-np.inf, 0.0, np.inf]


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50), st.floats(0.01, 1.0))
@some
def test_quantile_splits_the_pixels_where_it_says(values: list[float], q: float) -> None:
    histogram, pixels = PixelHistogram(), np.array(values, dtype=np.float32)
    histogram.add(pixels)
    found = histogram.quantile(q)
    assert found is not None
    exact = float(np.quantile(pixels.astype(np.float64), q, method="inverted_cdf")) if np.isfinite(pixels).all() else found
    assert found == pytest.approx(exact, rel=2.0**-18, abs=2e-38)
    tiny = np.finfo(np.float32).tiny  # below this everything counts as zero
    assert (pixels > max(found, tiny if found == 0.0 else found)).mean() <= 1.0 - q + 1e-9


@pytest.mark.parametrize("level", [3, 77, 200, 255])
def test_pixels_tied_at_the_quantile_lie_not_above_it(level: int) -> None:
    """With 8-bit maps a threshold a hair below the tie would call all of the tied pixels."""
    pixels = np.zeros((100, 100), dtype=np.float32)
    pixels[:10] = np.float32(level / 255.0)  # the upper 10 %
    histogram = PixelHistogram()
    histogram.add(pixels)
    threshold = histogram.quantile(0.95)
    assert threshold is not None
    assert not (pixels > threshold).any()


def test_an_octave_has_as_many_bins_as_promised() -> None:
    histogram = PixelHistogram()
    histogram.add(np.linspace(1.0, 2.0, 4 * CELLS, endpoint=False, dtype=np.float32).reshape(1, -1))
    assert len(histogram.curve()[0]) == CELLS


# ---- Dice --------------------------------------------------------------------------------------------------------------


def test_dice_pooled_and_per_image_against_a_loop() -> None:
    maps, masks = _maps("residual")
    maps, masks = maps[:8, :32, :32], np.random.default_rng(3).random((8, 32, 32)) < 0.1
    masks[[2, 5]] = False  # two images without a lesion
    maps[:, ::4] = np.float32(0.08)  # at the threshold is not above it
    metrics = PixelMetrics(float(np.float32(0.08)))
    both = called_or_lesion = 0
    each = []
    for index, (heatmap, mask) in enumerate(zip(maps, masks, strict=True)):
        metrics.add(heatmap, None if index == 2 else mask)  # no mask and an empty one mean the same
        hits = sum(bool(h > np.float32(0.08)) and bool(m) for h, m in zip(heatmap.flat, mask.flat, strict=True))
        sizes = int((heatmap > np.float32(0.08)).sum()) + int(mask.sum())
        both, called_or_lesion = both + hits, called_or_lesion + sizes
        if mask.any():
            each.append(2 * hits / sizes)
    found = metrics.result()
    assert len(each) == 6
    assert found["dice"] == pytest.approx(2 * both / called_or_lesion)
    assert found["dice_per_image"] == pytest.approx(sum(each) / 6)
    assert found["ap"] == pytest.approx(average_precision_score(masks.ravel(), maps.ravel()), abs=1e-6)
    assert found["dice_max"] == pytest.approx(_oracle_f1(masks.ravel(), maps.ravel()), abs=1e-6)
    assert (metrics.pixels, metrics.lesion, found["threshold"]) == (masks.size, masks.sum(), float(np.float32(0.08)))


def test_no_lesions_or_no_threshold_give_none() -> None:
    healthy = PixelMetrics(0.5)
    healthy.add(np.ones((4, 4), dtype=np.float32), None)
    found = healthy.result()
    assert [found[name] for name in ("ap", "dice", "dice_max", "dice_per_image")] == [None] * 4
    uncalibrated, mask = PixelMetrics(None), np.eye(4, dtype=bool)
    uncalibrated.add(mask.astype(np.float32), mask)
    found = uncalibrated.result()
    assert (found["ap"], found["dice_max"], found["dice"], found["dice_per_image"]) == (1.0, 1.0, None, None)
    assert (uncalibrated.pixels, uncalibrated.lesion) == (16, 4)  # counted all the same
    assert PixelMetrics(0.5).result()["dice"] is None
