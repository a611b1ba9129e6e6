"""Pixel metrics by bootstrap over subjects: weights against repeated images, intervals and comparisons, AUPRO against a loop."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray
from test_pixel_metrics import slow_aupro

from reshift.errors import UserError
from reshift.evaluation.metrics import bootstrap
from reshift.evaluation.metrics.bootstrap import draw_for_pixels
from reshift.evaluation.metrics.confidence import Paired, paired_pixels, pixel_intervals, pixel_samples
from reshift.evaluation.metrics.image import average_precision, best_f1
from reshift.evaluation.metrics.pixels import PixelMetrics
from reshift.evaluation.metrics.subjects import SubjectPixels, SubjectTally
from reshift.evaluation.metrics.table import select_metrics
from reshift.evaluation.results import Results, subject_pixels

Floats = NDArray[np.float64]
T = TypeVar("T")
SAMPLED = [metric.name for metric in select_metrics("pixel") if metric.samples is not None]


def _pixels(seed: int, *, bins: int = 40, subjects: int = 12, ill: int = 6, cut: int | None = 30) -> SubjectPixels:
    """Lesions score higher; the threshold lies just below bin ``cut``."""
    rng = np.random.default_rng(seed)
    normal = rng.poisson(np.linspace(20.0, 1.0, bins), (subjects, bins)).astype(np.float64)
    abnormal = rng.poisson(np.linspace(0.0, 6.0, bins), (subjects, bins)).astype(np.float64)
    abnormal[ill:] = 0.0
    values = np.arange(bins, dtype=np.float32)
    share = 3.0 * abnormal / np.maximum(abnormal.sum(axis=1, keepdims=True), 1.0)  # three lesions each
    names, none = tuple(map(str, range(subjects))), np.zeros(subjects)
    if cut is None:
        return SubjectPixels(names, values, normal, abnormal, none, none, none, share)
    overlap, called = abnormal[:, cut:].sum(axis=1), (normal + abnormal)[:, cut:].sum(axis=1)
    return SubjectPixels(names, values, normal, abnormal, overlap, called, abnormal.sum(axis=1), share)


def _present(found: T | None) -> T:
    assert found is not None
    return found


def slow_area(fpr: Floats, overlap: Floats) -> float:
    """The mean height of the curve left of 0.3, looked up at many places."""
    x = np.linspace(0.0, 0.3, 300_001)
    return float(np.trapezoid(np.interp(x, np.append(0.0, fpr), np.append(0.0, overlap)), x) / 0.3)


# ---- counts ------------------------------------------------------------------------------------------------------------


def test_weighted_pixel_metrics_are_those_of_added_counts() -> None:
    pixels = _pixels(0)
    weights = np.random.default_rng(1).integers(0, 3, (7, 12)).astype(np.uint16)
    samples = pixel_samples(pixels, weights)
    assert set(samples) == set(SAMPLED)
    assert pixels.share is not None
    for index, weight in enumerate(weights):
        again = np.repeat(np.arange(12), weight)
        tp = pixels.abnormal[again].sum(axis=0)[::-1].cumsum().astype(np.int64)
        fp = pixels.normal[again].sum(axis=0)[::-1].cumsum().astype(np.int64)
        assert samples["ap"][index] == pytest.approx(average_precision(tp, fp), abs=1e-12)
        assert samples["dice_max"][index] == pytest.approx(best_f1(tp, fp), abs=1e-12)
        assert samples["dice"][index] == pytest.approx(2 * tp[9] / (tp[9] + fp[9] + tp[-1]), abs=1e-12)  # ten bins above it
        share = pixels.share[again].sum(axis=0)[::-1].cumsum()
        assert samples["aupro"][index] == pytest.approx(slow_area(fp / fp[-1], share / share[-1]), abs=1e-6)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pixel_intervals(_pixels(0))
    monkeypatch.setattr(bootstrap, "CHUNK", 300)
    assert pixel_intervals(_pixels(0)) == whole


def test_pixel_intervals_hold_the_value_and_are_none_without_it() -> None:
    pixels = _pixels(0)
    point = pixel_samples(pixels, np.ones((1, 12), dtype=np.uint16))
    for name, interval in pixel_intervals(pixels).items():
        low, high = _present(interval)
        assert low < point[name][0] < high
    narrow = pixel_intervals(_pixels(0, subjects=120, ill=60))
    assert np.ptp(_present(narrow["ap"])) < 0.6 * np.ptp(_present(pixel_intervals(pixels)["ap"]))
    for nothing_called in (_pixels(0, cut=None), _pixels(0, cut=40)):  # without a threshold, or above all pixels
        found = pixel_intervals(nothing_called)
        assert [name for name in SAMPLED if found[name] is None] == ["dice"]
    for ill in (0, 1):
        assert set(pixel_intervals(_pixels(0, ill=ill)).values()) == {None}


def test_paired_pixels_share_their_draws() -> None:
    a, b = _pixels(0), _pixels(1)
    blurred = replace(b, normal=np.roll(b.normal, 8, axis=1), called=b.called * 2)
    gaps = np.array([1.0, 0.0, 0.0])  # two empty bins after each
    spaced = replace(
        a, normal=np.kron(a.normal, gaps), abnormal=np.kron(a.abnormal, gaps), share=np.kron(_present(a.share), gaps)
    )
    for name in SAMPLED:
        assert paired_pixels(a, a, name) == Paired(0.0, 0.0, 0.0, 1.0)
        assert paired_pixels(a, spaced, name) == Paired(0.0, 0.0, 0.0, 1.0)
        found = _present(paired_pixels(a, blurred, name, draws=500))
        assert 0 < found.low < found.difference < found.high
        assert found.p_value == pytest.approx(2 / 501)
    assert paired_pixels(a, _pixels(1, cut=None), "dice") is None
    assert np.isfinite(_present(paired_pixels(a, _pixels(1, ill=2), "ap"))).all()  # patients of one result only
    with pytest.raises(UserError, match="same subjects"):
        paired_pixels(a, replace(b, subjects=b.subjects[::-1]), "ap")


def test_a_metric_that_does_not_exist_is_named() -> None:
    with pytest.raises(UserError, match=r"'iou'.*ap, dice, aupro, dice_max"):
        paired_pixels(_pixels(0), _pixels(1), "iou")


# ---- AUPRO -------------------------------------------------------------------------------------------------------------


class Images(NamedTuple):
    """Maps, masks and each image's subject."""

    heat: NDArray[np.float32]
    masks: NDArray[np.bool_]
    owner: NDArray[np.intp]

    def counted(self) -> tuple[PixelMetrics, SubjectPixels]:
        metrics = PixelMetrics(None)
        for heatmap, mask, owner in zip(*self, strict=True):
            metrics.add(heatmap, mask, subject=f"s{owner}")
        return metrics, _present(metrics.by_subject())


def images(levels: int = 0, count: int = 12, subjects: int = 5, *, offset: float = 0.0) -> Images:
    """Two or three images per subject, the first subject without a lesion; ``levels`` makes ties."""
    rng = np.random.default_rng(levels + 1)
    owner, masks = np.arange(count) % subjects, rng.random((count, 16, 16)) < 0.2
    masks[owner == 0] = False
    values = rng.random(masks.shape) + 0.4 * masks * rng.random((count, 1, 1)) + offset
    return Images((np.rint(values * levels) / levels if levels else values).astype(np.float32), masks, owner)


@pytest.mark.parametrize(("levels", "offset"), [(4, 0.0), (50, 0.0), (8, -0.6), (0, 0.0)])
def test_aupro_of_a_draw_is_that_of_the_images_drawn(levels: int, offset: float) -> None:
    found = images(levels, offset=offset)
    _, pixels = found.counted()
    weights = draw_for_pixels([pixels], 6 if levels else 1, 3)
    for weight, value in zip(weights, pixel_samples(pixels, weights)["aupro"], strict=True):
        again = np.repeat(np.arange(len(found.owner)), weight[found.owner])
        expected = slow_aupro(found.heat[again], found.masks[again])
        assert value == pytest.approx(expected, abs=1e-10 if levels in {4, 8} else 3e-3)


@pytest.mark.parametrize("levels", [0, 4])
def test_aupro_of_every_subject_once_is_the_one_printed(levels: int) -> None:
    metrics, pixels = images(levels, 20).counted()
    once = pixel_samples(pixels, np.ones((1, 5), dtype=np.uint16))["aupro"][0]
    printed = _present(metrics.aupro())
    assert once == pytest.approx(printed, abs=1e-10 if levels else 2e-3)
    low, high = _present(pixel_intervals(pixels)["aupro"])
    assert low < printed < high
    assert np.rint(_present(pixels.share).sum()) == metrics.tally.n.sum()


def test_large_lesions_weigh_as_much_as_small_ones() -> None:
    """One subject's ten small lesions are missed, another's huge one is found: the pixels say 1, the lesions 1 in 11."""
    metrics, heat, small, large = (
        PixelMetrics(None),
        np.zeros((2, 40, 40), np.float32),
        np.zeros((40, 40), bool),
        np.zeros((40, 40), bool),
    )
    small[::4, 0], large[5:35, 5:35] = True, True
    heat[1][large] = 1.0
    heat[0][~small] = 0.5
    metrics.add(heat[0], small, subject="missed")
    metrics.add(heat[1], large, subject="found")
    pixels = _present(metrics.by_subject())
    samples = pixel_samples(pixels, np.array([[1, 1], [1, 3], [0, 1]], dtype=np.uint16))["aupro"]
    assert samples == pytest.approx([1 / 11, 3 / 13, 1.0], abs=1e-9)


def test_no_aupro_without_two_patients_or_normal_pixels() -> None:
    everything = PixelMetrics(None)
    for name in "ab":
        everything.add(np.ones((4, 4), dtype=np.float32), np.ones((4, 4), dtype=bool), subject=name)
    assert pixel_intervals(_present(everything.by_subject()))["aupro"] is None
    found = images()
    for patients in (0, 1):
        found.masks[found.owner >= 1 + patients] = False
        found.masks[found.owner == 1, 0, 0] = patients == 1
        assert pixel_intervals(found.counted()[1])["aupro"] is None


def test_older_results_without_lesion_shares_still_load(tmp_path: Path) -> None:
    _, pixels = images().counted()
    stored = {name: getattr(pixels, name) for name in ("subjects", "values", "normal", "abnormal", "overlap", "called", "lesion")}
    np.savez(tmp_path / "subjects.npz", **stored)
    older = _present(subject_pixels(Results(tmp_path, {}, [])))
    assert older.share is None
    intervals = pixel_intervals(older)
    assert intervals["aupro"] is None
    assert intervals["ap"] == pixel_intervals(pixels)["ap"]
    assert paired_pixels(older, pixels, "aupro") is None
    assert paired_pixels(pixels, pixels, "aupro") == Paired(0.0, 0.0, 0.0, 1.0)


def test_subjects_counted_in_two_parts_are_those_of_one() -> None:
    found = images(0, 20)
    whole, first, second = found.counted()[1], PixelMetrics(None), PixelMetrics(None)
    for i, (heatmap, mask, owner) in enumerate(zip(*found, strict=True)):
        (first if i < 8 else second).add(heatmap, mask, subject=f"s{owner}")
    tally = SubjectTally()
    tally.merge(first.subjects)
    tally.merge(second.subjects)
    merged = _present(tally.result())
    assert merged.subjects == whole.subjects
    for name in ("values", "normal", "abnormal", "overlap", "called", "lesion"):
        np.testing.assert_array_equal(getattr(merged, name), getattr(whole, name))
    np.testing.assert_allclose(_present(merged.share), _present(whole.share), atol=1e-12)
