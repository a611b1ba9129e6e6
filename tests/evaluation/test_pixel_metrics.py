"""Streaming pixel metrics of whole test sets: Dice, ignored pixels, AUPRO, subjects."""

import itertools

import numpy as np
import pytest
from pixel_maps import Bools, Floats, maps
from sklearn.metrics import average_precision_score
from test_lesions import flood
from test_pixels import oracle_f1

from reshift.errors import UserError
from reshift.evaluation.metrics.image import average_precision
from reshift.evaluation.metrics.pixels import PixelMetrics, SubjectPixels
from reshift.evaluation.metrics.table import pixel_metrics


def test_dice_pooled_and_per_image_against_a_loop() -> None:
    heat, _ = maps("residual", 8)
    heat, masks = heat[:, :32, :32], np.random.default_rng(3).random((8, 32, 32)) < 0.1
    masks[[2, 5]] = False  # two images without a lesion
    heat[:, ::4] = np.float32(0.08)  # at the threshold is not above it
    metrics = PixelMetrics(float(np.float32(0.08)))
    both = called_or_lesion = 0
    each = []
    for index, (heatmap, mask) in enumerate(zip(heat, masks, strict=True)):
        metrics.add(heatmap, None if index == 2 else mask)  # no mask and an empty one mean the same
        hits = sum(bool(h > np.float32(0.08)) and bool(m) for h, m in zip(heatmap.flat, mask.flat, strict=True))
        sizes = int((heatmap > np.float32(0.08)).sum()) + int(mask.sum())
        both, called_or_lesion = both + hits, called_or_lesion + sizes
        if mask.any():
            each.append(2 * hits / sizes)
    found = pixel_metrics(metrics)
    assert len(each) == 6
    assert found["dice"] == pytest.approx(2 * both / called_or_lesion)
    assert found["dice_per_image"] == pytest.approx(sum(each) / 6)
    assert found["ap"] == pytest.approx(average_precision_score(masks.ravel(), heat.ravel()), abs=1e-4)
    assert found["dice_max"] == pytest.approx(oracle_f1(masks.ravel(), heat.ravel()), abs=1e-4)
    assert (metrics.pixels, metrics.lesion, found["threshold"]) == (masks.size, masks.sum(), float(np.float32(0.08)))


def test_no_lesions_or_no_threshold_give_none() -> None:
    healthy = PixelMetrics(0.5)
    healthy.add(np.ones((4, 4), dtype=np.float32), None)
    found = pixel_metrics(healthy)
    assert [found[name] for name in ("ap", "dice", "dice_max", "dice_per_image", "aupro")] == [None] * 5
    assert healthy.lesions() is None
    uncalibrated, mask = PixelMetrics(None), np.eye(4, dtype=bool)
    uncalibrated.add(mask.astype(np.float32), mask)
    found = pixel_metrics(uncalibrated)
    assert (found["ap"], found["dice_max"], found["aupro"], found["dice"], found["dice_per_image"]) == (1.0, 1.0, 1.0, None, None)
    assert (uncalibrated.pixels, uncalibrated.lesion) == (16, 4)  # counted all the same
    assert uncalibrated.lesions() is None
    everything = PixelMetrics(0.5)
    everything.add(np.ones((4, 4), dtype=np.float32), np.ones((4, 4), dtype=bool))
    assert [pixel_metrics(everything)[name] for name in ("ap", "dice_max", "aupro")] == [None] * 3
    empty = PixelMetrics(0.5)
    assert set(pixel_metrics(empty).values()) == {None, 0.5}
    assert empty.by_subject() is None


def test_ignored_pixels_count_for_no_metric() -> None:
    rng = np.random.default_rng(0)
    heat, masks, ignore = rng.random((6, 16, 16), dtype=np.float32), rng.random((6, 16, 16)) < 0.2, np.zeros((16, 16), bool)
    ignore[:, 5:9] = True
    cut, marked = PixelMetrics(0.7), PixelMetrics(0.7)
    for heatmap, mask in zip(heat, masks, strict=True):
        for part in (slice(0, 5), slice(9, 16)):  # the ignored columns part the lesions: two images are the same
            cut.add(heatmap[:, part], mask[:, part], subject="a")
        marked.add(np.where(ignore, np.nan, heatmap), mask | ignore, ignore=ignore, subject="a")
    a, b = pixel_metrics(cut), pixel_metrics(marked)
    del a["dice_per_image"], b["dice_per_image"]
    assert a == pytest.approx(b, abs=1e-12)
    assert cut.lesions() == marked.lesions()
    assert (cut.pixels, cut.lesion, cut.called, cut.overlap) == (marked.pixels, marked.lesion, marked.called, marked.overlap)
    one, other = cut.by_subject(), marked.by_subject()
    assert one is not None
    assert other is not None
    for name in ("values", "normal", "abnormal", "overlap", "called", "lesion"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_nan_and_wrong_shapes_are_refused_before_anything_is_counted() -> None:
    metrics, heatmap, mask = PixelMetrics(0.5), np.zeros((4, 4), dtype=np.float32), np.eye(4, dtype=bool)
    for wrong in ({"mask": mask[:2]}, {"mask": None, "ignore": mask[:2]}):
        with pytest.raises(ValueError, match="shape"):
            metrics.add(heatmap, **wrong)
    heatmap[1, 1] = np.nan
    with pytest.raises(UserError, match="NaN"):
        metrics.add(heatmap, mask)
    assert (metrics.pixels, metrics.lesion, metrics.lesions(), metrics.by_subject()) == (0, 0, None, None)


# ---- AUPRO -------------------------------------------------------------------------------------------------------------


def slow_aupro(heat: Floats, masks: Bools) -> float:
    """One threshold after the other; straight lines between the points, as in a ROC curve."""
    regions = [heatmap[where] for heatmap, mask in zip(heat, masks, strict=True) for where in flood(mask)]
    points = [(0.0, 0.0)]
    for t in np.unique(heat)[::-1]:
        fpr = float((heat[~masks] >= t).mean())
        points.append((fpr, float(np.mean([(region >= t).mean() for region in regions]))))
    area = 0.0
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        end = min(x1, 0.3)
        if x0 < end:
            at_end = y0 + (y1 - y0) * (end - x0) / (x1 - x0)
            area += (end - x0) * (y0 + at_end) / 2
    return area / 0.3


@pytest.mark.parametrize("levels", [4, 50, 0])
@pytest.mark.parametrize("shift", [0.0, -0.6])
def test_aupro_equals_a_slow_loop(levels: int, shift: float) -> None:
    rng = np.random.default_rng(levels)
    masks = rng.random((4, 14, 14)) < 0.25
    masks[0] = False
    values = rng.random(masks.shape) + 0.2 * masks + shift
    heat = (np.rint(values * levels) / levels if levels else values).astype(np.float32)
    metrics = PixelMetrics(None)
    for heatmap, mask in zip(heat, masks, strict=True):
        metrics.add(heatmap, mask)
    assert metrics.aupro() == pytest.approx(slow_aupro(heat, masks), abs=1e-10 if levels else 1e-4)


def test_aupro_of_chance_is_the_area_under_the_diagonal() -> None:
    metrics, mask = PixelMetrics(None), np.zeros((8, 8), dtype=bool)
    mask[2:4, 2:4] = True
    metrics.add(np.full((8, 8), 0.3, dtype=np.float32), mask)
    assert metrics.aupro() == pytest.approx(0.15)


# ---- subjects ----------------------------------------------------------------------------------------------------------


def _by_subject(
    heat: Floats, masks: Bools, names: list[str], threshold: float | None = 0.1
) -> tuple[PixelMetrics, SubjectPixels]:
    metrics = PixelMetrics(threshold)
    for heatmap, mask, name in zip(heat, masks, names, strict=True):
        metrics.add(heatmap, mask, subject=name)
    found = metrics.by_subject()
    assert found is not None
    return metrics, found


def test_subjects_add_up_to_the_whole() -> None:
    heat, masks = maps("residual", 48)
    names = [f"p{index % 5 if index > 20 else index // 7}" for index in range(48)]  # in a row at first, then mixed
    metrics, found = _by_subject(heat, masks, names)
    assert found.subjects == ("p0", "p1", "p2", "p3", "p4")
    values, normal, abnormal = metrics.histogram.counts()
    np.testing.assert_array_equal(found.values, values)
    np.testing.assert_array_equal(found.normal.sum(axis=0), normal)
    np.testing.assert_array_equal(found.abnormal.sum(axis=0), abnormal)
    assert len(values) <= 4096
    for row, name in enumerate(found.subjects):
        mine = np.array([n == name for n in names])
        called = heat[mine] > np.float32(0.1)
        expected = ((called & masks[mine]).sum(), called.sum(), masks[mine].sum())
        assert (found.overlap[row], found.called[row], found.lesion[row]) == expected
        assert (found.normal[row].sum(), found.abnormal[row].sum()) == ((~masks[mine]).sum(), masks[mine].sum())
    tp, fp = abnormal[::-1].cumsum(), normal[::-1].cumsum()
    assert average_precision(tp, fp) == pytest.approx(average_precision_score(masks.ravel(), heat.ravel()), abs=2e-3)
    again = metrics.by_subject()  # reading takes nothing away
    assert again is not None
    np.testing.assert_array_equal(again.normal, found.normal)


def test_values_over_many_magnitudes_are_joined() -> None:
    rng = np.random.default_rng(0)
    heat = (10.0 ** rng.uniform(-35, 35, (4, 128, 128)) * rng.choice([-1.0, 1.0], (4, 128, 128))).astype(np.float32)
    masks = rng.random(heat.shape) < 0.1
    _, found = _by_subject(heat, masks, ["a", "b", "a", "b"], None)
    assert 1024 < len(found.values) <= 4096
    assert (np.diff(found.values) > 0).all()
    at = np.searchsorted(found.values, heat[::2].ravel(), side="right") - 1
    np.testing.assert_array_equal(found.normal[0], np.bincount(at[~masks[::2].ravel()], minlength=len(found.values)))
    assert not found.called.any()
    assert found.lesion.sum() == masks.sum()


def test_images_without_a_subject() -> None:
    metrics, heatmap = PixelMetrics(0.5), np.ones((2, 2), dtype=np.float32)
    metrics.add(heatmap, None)
    assert metrics.by_subject() is None
    metrics.add(heatmap, None, subject="a")
    found = metrics.by_subject()
    assert found is not None
    assert (found.subjects, found.normal.tolist(), found.called.tolist()) == (("", "a"), [[4.0], [4.0]], [4.0, 4.0])
