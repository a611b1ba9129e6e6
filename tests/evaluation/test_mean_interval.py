"""Intervals of means by subject, against explicit resampling."""

import numpy as np
import pytest

from reshift.evaluation.metrics.bootstrap import mean_interval


def test_mean_interval_is_that_of_resampled_subjects() -> None:
    rng = np.random.default_rng(1)
    subjects = [f"s{i // 3}" for i in range(60)]
    values = rng.random(60)
    found = mean_interval(values.tolist(), [1.0] * 60, subjects, draws=4000)
    per_subject = values.reshape(20, 3).mean(1)
    slow = [per_subject[rng.integers(0, 20, 20)].mean() for _ in range(4000)]
    assert found == pytest.approx(tuple(np.quantile(slow, (0.025, 0.975))), abs=0.01)


def test_a_rate_weighs_subjects_by_their_lesions() -> None:
    low, high = mean_interval([9.0, 0.0], [9.0, 1.0], ["a", "b"], draws=2000) or (0.0, 0.0)
    assert (low, high) == (0.0, 1.0)  # draws of one subject only give 0 or 1; a plain mean of rates could not exceed either
    assert mean_interval([1.0, 1.0], [1.0, 1.0], ["a", "b"]) == (1.0, 1.0)


def test_one_subject_has_no_interval() -> None:
    assert mean_interval([1.0, 0.0], [1.0, 1.0], ["a", "a"]) is None
    assert mean_interval([1.0, 0.0], [1.0, 0.0], ["a", "b"]) is None  # b has no lesion to find
