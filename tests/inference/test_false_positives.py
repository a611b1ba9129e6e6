"""Statistics keep their promise: thousands of calibrations by synthetic normals, whose true rates are known."""

import json
import runpy
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reshift.inference.beta import beta_cdf, beta_quantile
from reshift.inference.false_positives import (
    SubjectShares,
    image_threshold,
    own_share,
    rate_range,
    share_range,
    weight_above,
)

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "false_positives.py"
CALIBRATIONS = 2000
NOISE = 3 * (0.05 * 0.95 / CALIBRATIONS) ** 0.5  # three standard deviations of a share of 5 % over the calibrations


@pytest.fixture(scope="module")
def simulated() -> list[dict[str, Any]]:
    """What ``benchmarks/false_positives.py --quick --json`` prints."""
    before, printed = sys.argv, list[str]()
    sys.argv = [str(SCRIPT), "--quick", "--json", "--calibrations", str(CALIBRATIONS)]
    try:
        main = runpy.run_path(str(SCRIPT))["main"]
        main.__globals__["print"] = printed.append
        main()
    finally:
        sys.argv = before
    rows: list[dict[str, Any]] = json.loads(printed[0])
    return rows


def test_the_rate_of_images_lies_where_it_is_stated(simulated: list[dict[str, Any]]) -> None:
    rows = [row for row in simulated if "alike" in row]
    assert {row["images"] for row in rows} > {1}
    for row in rows:
        assert row["held"] >= 0.95 - NOISE, row
        assert 0.03 < row["rate"] < 0.05 + NOISE, row
        assert row["p ≤ 0.05"] <= 0.05 + NOISE, row
        assert row["flagged"] == pytest.approx(row["rate"], abs=NOISE), row
        if row["images"] == 1:  # then nothing is estimated, and the range is not too wide either
            assert row["held"] <= 0.95 + NOISE, row
            assert row["rate"] == pytest.approx(0.05, abs=0.004), row


def test_the_share_of_pixels_lies_where_it_is_stated(simulated: list[dict[str, Any]]) -> None:
    rows = [row for row in simulated if "by_subject" in row]
    assert rows
    for row in rows:
        assert row["held"] >= 0.9, row
        assert row["low"] < 0.05 < row["high"] < 0.15, row


# ---- one image per subject: everything is known exactly --------------------------------------------------------------------


def one_each(n: int) -> np.ndarray[Any, np.dtype[np.intp]]:
    return np.arange(n)


@pytest.mark.parametrize(("n", "rate"), [(21, 0.05), (39, 0.05), (24, 0.05), (33, 0.1), (8, 0.05)])
def test_the_range_agrees_with_drawing_normals(n: int, rate: float) -> None:
    """Draw n uniforms, set the threshold, look at what lies above: whole positions (39) and interpolated ones."""
    drawn = np.sort(np.random.default_rng(1).random((4000, n)), axis=1)
    above = 1.0 - np.array([image_threshold(row, one_each(n), rate) for row in drawn])
    assert above.mean() == pytest.approx(max(rate, 1.0 / (n + 1)), abs=0.003)
    weight = weight_above(drawn[0], one_each(n), image_threshold(drawn[0], one_each(n), rate))
    assert weight == pytest.approx(max(0.0, rate * (n + 1) - 1.0), abs=1e-9)
    low, high = rate_range(weight, 1.0, n, n)
    held = float(((low <= above) & (above <= high)).mean())
    assert held > 0.95 - 0.012
    if n in (8, 39):  # no interpolation, which makes the rate vary less than the range allows for
        assert held < 0.95 + 0.012


def test_a_hundred_thousand_normals_need_no_matrix() -> None:
    tracemalloc.start()
    try:
        low, high = rate_range(0.05 * 100_001 - 1.0, 1.0, 100_000, 100_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20
    assert 0.048 < float(low) < 0.05 < float(high) < 0.052


def test_the_beta_distribution() -> None:
    x = np.array([0.0, 0.01, 0.05, 0.3, 1.0])
    np.testing.assert_allclose(beta_cdf(x, 1.0, 1.0), x, atol=1e-12)
    np.testing.assert_allclose(beta_cdf(x, 2, 20), 1 - (1 - x) ** 21 - 21 * x * (1 - x) ** 20, atol=1e-12)
    drawn = np.random.default_rng(0).beta(3.5, 40.25, 200_000)
    for share in (0.025, 0.5, 0.975):
        assert beta_quantile(share, 3.5, 40.25) == pytest.approx(np.quantile(drawn, share), rel=0.01)
        assert beta_cdf(beta_quantile(share, 3.5, 40.25), 3.5, 40.25) == pytest.approx(share, abs=1e-9)


# ---- subjects with several images ------------------------------------------------------------------------------------------


def test_what_an_image_stands_for() -> None:
    rng = np.random.default_rng(0)
    alike, unlike = np.repeat(np.arange(40), 10), np.tile(np.arange(40), 10)
    assert own_share(one_each(5), 0.05) == 1.0
    assert own_share(np.zeros(5, np.intp), 0.05) == 1.0  # one subject
    assert own_share(alike, 0.05) > 0.95  # ten neighbours in rank each
    assert own_share(unlike, 0.05) == pytest.approx(0.1)
    assert own_share(rng.permutation(unlike), 0.05) < 0.15


def test_images_of_one_score_count_as_one() -> None:
    """Each subject's image given ten times over: no more is known, and the threshold stays where it was."""
    scores = np.sort(np.random.default_rng(0).normal(size=60))
    once = image_threshold(scores, one_each(60), 0.05)
    assert image_threshold(np.repeat(scores, 10), np.repeat(one_each(60), 10), 0.05) == pytest.approx(once, abs=0.15)


def test_a_subject_with_many_images_does_not_decide() -> None:
    rng = np.random.default_rng(0)
    scores, owners = rng.normal(size=300), np.arange(300)
    many, theirs = np.append(scores, rng.normal(9.0, 0.1, 3000)), np.append(owners, np.full(3000, 300))
    order = np.argsort(many)
    plain = image_threshold(np.sort(scores), one_each(300), 0.05)
    assert image_threshold(many[order], theirs[order], 0.05) == pytest.approx(plain, abs=0.3)


# ---- pixels ------------------------------------------------------------------------------------------------------------------


def test_shares_are_counted_by_subject() -> None:
    rng = np.random.default_rng(0)
    maps = {f"s{i}": np.abs(rng.normal(0.0, 1.0 + i / 10, (3, 32, 32))).astype(np.float32) for i in range(12)}
    first, second = SubjectShares(), SubjectShares()
    for number, (name, images) in enumerate(maps.items()):
        for image in images:
            (first if number % 2 else second).add(name, image)
    first.merge(second)
    everything = np.stack(list(maps.values()))
    above = (everything > 2.0).sum((1, 2, 3)).astype(float)
    found = first.range(2.0, float((everything > 2.0).mean()))
    wanted = share_range(above, np.full(12, 3 * 32.0 * 32.0), float((everything > 2.0).mean()))
    assert found is not None
    assert wanted is not None
    assert sorted(found) == pytest.approx(sorted(wanted), rel=0.15)  # bins are a relative 2^-7 wide, subjects in another order


def test_too_few_subjects_say_nothing_about_pixels() -> None:
    few, many = np.arange(9.0), np.arange(30.0)
    assert share_range(few, np.full(9, 100.0), 0.04) is None
    assert share_range(np.zeros(30), np.full(30, 100.0), 0.0) is None
    assert share_range(np.full(30, 5.0), np.full(30, 100.0), 0.05) is None  # no two differ
    low, high = share_range(many, np.full(30, 1000.0), 0.0145) or (0.0, 0.0)
    assert 0.0 < low < 0.0145 < high
