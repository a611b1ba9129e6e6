"""Pixel metrics against scikit-learn or a slow loop."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pixel_maps import Bools, Floats, maps
from sklearn.metrics import average_precision_score, precision_recall_curve

from reshift.errors import UserError
from reshift.evaluation.metrics.image import average_precision, best_f1
from reshift.evaluation.metrics.pixels import FAST, FINE, MAX_COUNT, PixelHistogram

some = settings(deadline=None, max_examples=50)


def oracle_f1(labels: Bools, scores: NDArray[np.floating]) -> float:
    precision, recall, _ = precision_recall_curve(labels, scores)
    return float((2 * precision * recall / np.maximum(precision + recall, 1e-12)).max())


def counted(heatmaps: Floats, masks: Bools, drop: int = FINE) -> PixelHistogram:
    histogram = PixelHistogram(drop)
    for heatmap, mask in zip(heatmaps, masks, strict=True):
        histogram.add(heatmap, mask)
    return histogram


def same(a: PixelHistogram, b: PixelHistogram) -> bool:
    at = a.filled()
    pairs = ((a.total, b.total), (a.abnormal, b.abnormal), (a.state, b.state))
    return np.array_equal(at, b.filled()) and a.pixels == b.pixels and all(np.array_equal(x[at], y[at]) for x, y in pairs)


# ---- histogram ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["residual", "squeezed", "signed", "8-bit", "constant"])
def test_ap_equals_a_sort_over_all_pixels(kind: str) -> None:
    heat, masks = maps(kind)
    ap, f1 = average_precision_score(masks.ravel(), heat.ravel()), oracle_f1(masks.ravel(), heat.ravel())
    tied = kind in ("8-bit", "constant")
    for drop in (FINE, FAST):
        histogram = counted(heat, masks, drop)
        tp, fp, thresholds = histogram.curve()
        assert histogram.average_precision() == pytest.approx(ap, abs=1e-12 if tied else 1e-6)
        assert (tp[-1], fp[-1]) == (masks.sum(), (~masks).sum())
        assert (np.diff(thresholds) < 0).all()
        assert best_f1(tp, fp) == pytest.approx(f1, abs=1e-12 if tied else 1e-4)


def test_without_the_mixing_rule_the_bins_would_be_too_coarse() -> None:
    heat, masks = maps("squeezed")
    histogram = counted(heat, masks, FAST)
    tp, fp, _ = histogram.curve()
    expected = average_precision_score(masks.ravel(), heat.ravel())
    assert abs((average_precision(tp, fp) or 0.0) - expected) > 1e-5


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([-2.5, -0.0, 0.0, 0.25, 0.25001, 1.0, 7.0])), min_size=1, max_size=60))
@some
def test_ap_with_ties_equals_scikit_learn_and_needs_both_classes(pairs: list[tuple[bool, float]]) -> None:
    labels, values = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs], dtype=np.float32)
    found = PixelHistogram()
    found.add(values, labels)
    if labels.all() or not labels.any():
        assert found.average_precision() is None
    else:
        assert found.average_precision() == pytest.approx(average_precision_score(labels, values), abs=1e-12)


@pytest.mark.parametrize("kind", ["residual", "squeezed", "signed", "8-bit", "constant"])
def test_quantiles_equal_those_of_a_sort(kind: str) -> None:
    heat, masks = maps(kind)
    histogram = counted(heat, masks)
    for q in (0.05, 0.5, 0.95, 0.995, 0.9999, 1.0):
        exact = float(np.quantile(heat, q, method="inverted_cdf"))
        assert histogram.quantile(q) == pytest.approx(exact, rel=0.0 if kind in ("8-bit", "constant") else 1e-5)


@pytest.mark.parametrize("kind", ["residual", "8-bit"])
def test_merging_and_order_change_nothing(kind: str) -> None:
    heat, masks = maps(kind, 24)
    whole, first, second = counted(heat, masks), counted(heat[:7], masks[:7]), counted(heat[7:], masks[7:])
    first.merge(second)
    assert same(first, whole)
    assert same(counted(heat[::-1], masks[::-1]), whole)
    assert first.average_precision() == whole.average_precision()
    assert not same(second, whole)
    second.merge(PixelHistogram())
    assert same(second, counted(heat[7:], masks[7:]))
    with pytest.raises(ValueError, match="merged"):
        whole.merge(PixelHistogram(FAST))


def test_blocks_and_layouts_change_nothing() -> None:
    heat, masks = maps("residual", 8)
    whole = PixelHistogram()
    whole.add(heat, masks)  # 131,072 pixels: two blocks
    assert same(whole, counted(heat, masks))
    turned = PixelHistogram()
    turned.add(heat.T.astype(np.float64), masks.T)
    assert same(turned, whole)


def test_a_full_counter_is_an_error_and_loses_nothing() -> None:
    histogram, one = PixelHistogram(), np.ones((1, 1), dtype=np.float32)
    histogram.add(one)
    histogram.total[histogram.filled()] = histogram.pixels = MAX_COUNT - 1
    histogram.add(one)
    assert histogram.curve()[1].tolist() == [MAX_COUNT]
    other = PixelHistogram()
    other.merge(histogram)
    with pytest.raises(OverflowError, match="4,294,967,295"):
        histogram.add(one)
    with pytest.raises(OverflowError, match="4,294,967,295"):
        histogram.merge(other)
    histogram.add(2.0 * one)  # another counter has room
    assert histogram.curve()[1].tolist() == [1, MAX_COUNT + 1]


def test_nan_and_wrong_masks_are_refused_before_anything_is_counted() -> None:
    histogram, heatmap = PixelHistogram(), np.zeros((4, 4), dtype=np.float32)
    with pytest.raises(ValueError, match="shape"):
        histogram.add(heatmap, np.zeros((2, 8), dtype=bool))
    heatmap[1, 2] = np.nan
    with pytest.raises(UserError, match="NaN"):
        histogram.add(heatmap)
    histogram.add(heatmap[:0])
    assert histogram.quantile(0.5) is None
    assert histogram.average_precision() is None
    assert not len(histogram.filled())
    assert not histogram.pixels
    assert [len(part) for part in histogram.counts()] == [0, 0, 0]


def test_zeros_are_equal_and_infinities_are_the_ends() -> None:
    histogram = PixelHistogram()
    values = np.array([[0.0, -0.0, np.inf, -np.inf, 1.0, -1.0]], dtype=np.float32)
    histogram.add(values, np.array([[True, False, True, False, False, True]]))
    tp, fp, thresholds = histogram.curve()
    assert thresholds.tolist() == [np.inf, 1.0, 0.0, -1.0, -np.inf]
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
    assert found == pytest.approx(exact, rel=1e-5, abs=2e-38)
    tiny = np.finfo(np.float32).tiny  # below this everything counts as zero
    assert (pixels > max(found, tiny if found == 0.0 else found)).mean() <= 1.0 - q + 1e-9


@pytest.mark.parametrize("level", [3, 77, 200, 255])
@pytest.mark.parametrize("neighbour", [False, True])
def test_pixels_tied_at_the_quantile_lie_not_above_it(level: int, *, neighbour: bool) -> None:
    """With 8-bit maps a threshold a hair below the tie would call all of the tied pixels."""
    pixels = np.zeros((100, 100), dtype=np.float32)
    pixels[:10] = np.float32(level / 255.0)  # the upper 10 %
    if neighbour:  # another value in the same bin or the one below
        pixels[10, 0] = np.nextafter(pixels[0, 0], np.float32(0.0))
    histogram = PixelHistogram()
    histogram.add(pixels)
    threshold = histogram.quantile(0.95)
    assert threshold is not None
    assert not (pixels > threshold).any()


def test_counts_for_saving() -> None:
    heat, masks = maps("signed", 12)
    values, normal, abnormal = counted(heat, masks).counts()
    assert (np.diff(values) > 0).all()
    assert len(values) < 5000
    at = np.searchsorted(values, heat.ravel(), side="right") - 1
    np.testing.assert_array_equal(normal, np.bincount(at[~masks.ravel()], minlength=len(values)))
    np.testing.assert_array_equal(abnormal, np.bincount(at[masks.ravel()], minlength=len(values)))
    assert normal.dtype == abnormal.dtype == np.int64
