"""Percentiles by counting equal numpy's to the bit."""

import numpy as np
import pytest
from numpy.typing import NDArray

from reshift.data.image import percentiles

WANTED = (0.0, 0.5, 25.0, 50.0, 99.5, 100.0)


@pytest.mark.parametrize("size", [(1, 1), (2, 1), (3, 5), (40, 41), (256, 256)])
@pytest.mark.parametrize("high", [1, 2, 256, 65_536])
def test_whole_numbers(size: tuple[int, int], high: int) -> None:
    for seed in range(10):
        values = np.random.default_rng(seed).integers(0, high, size).astype(np.float32)
        np.testing.assert_array_equal(percentiles(values, WANTED), np.percentile(values, WANTED))


OTHERS: list[NDArray[np.float32]] = [
    np.linspace(-3.0, 9.0, 70, dtype=np.float32),
    np.array([0.0, 0.5, 255.0], dtype=np.float32),
    np.array([0.0, 65_536.0], dtype=np.float32),
    np.array([-1.0, 4.0], dtype=np.float32),
    np.array([1.0, np.nan], dtype=np.float32),
]


@pytest.mark.parametrize("values", OTHERS, ids=str)
def test_other_values(values: NDArray[np.float32]) -> None:
    np.testing.assert_array_equal(percentiles(values, WANTED), np.percentile(values, WANTED))
