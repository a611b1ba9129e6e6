"""Connected components against a flood fill, and lesions found."""

import numpy as np
import pytest
from numpy.typing import NDArray

from reshift.evaluation.metrics.lesions import LesionTally, components

Bools = NDArray[np.bool_]


def flood(mask: Bools) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Rows and columns of each 8-connected region, pixel by pixel."""
    left, regions = {(int(y), int(x)) for y, x in np.argwhere(mask)}, []
    while left:
        region, edge = list[tuple[int, int]](), [left.pop()]
        while edge:
            y, x = edge.pop()
            region.append((y, x))
            near = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & left
            left -= near
            edge += near
        rows, columns = zip(*region, strict=True)
        regions.append((np.array(rows), np.array(columns)))
    return regions


@pytest.mark.parametrize("density", [0.0, 0.05, 0.2, 0.35, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("shape", [(1, 1), (1, 30), (30, 1), (23, 31), (60, 60)])
def test_components_equal_a_flood_fill(shape: tuple[int, int], density: float) -> None:
    mask = np.random.default_rng(int(100 * density)).random(shape) < density
    labels, n = components(mask)
    regions = flood(mask)
    assert n == len(regions) == labels.max(initial=0)
    assert ((labels > 0) == mask).all()
    seen = [set(labels[region].tolist()) for region in regions]
    assert all(len(found) == 1 for found in seen)
    assert len(set.union(set(), *seen)) == n


def test_long_winding_regions_are_one() -> None:
    """Worst for a union of runs: a spiral, and a comb whose teeth meet only in the last row."""
    spiral = np.zeros((65, 65), dtype=bool)
    y = x = 32
    for turn in range(30):
        for dy, dx in ((0, 1), (1, 0), (0, -1), (-1, 0))[2 * turn % 4 : 2 * turn % 4 + 2]:
            for _ in range(2 * turn + 2 if turn < 15 else 0):
                y, x = y + dy, x + dx
                spiral[y, x] = True
    comb = np.zeros((512, 512), dtype=bool)
    comb[:, ::2] = comb[-1] = True
    assert components(comb)[1] == 1
    assert components(comb[:-1])[1] == 256
    assert components(spiral)[1] == len(flood(spiral))


def test_empty_mask() -> None:
    labels, n = components(np.zeros((0, 5), dtype=bool))
    assert (labels.shape, n) == ((0, 5), 0)


def test_lesions_found_by_size_against_a_loop() -> None:
    rng = np.random.default_rng(0)
    tally, expected = LesionTally(0.5), dict.fromkeys((1, 10, 50, 200, 800), (0, 0))
    for _ in range(12):
        mask = np.zeros((96, 96), dtype=bool)
        for side in (1, 2, 3, 5, 9, 20, 30):
            y, x = rng.integers(0, 64, 2)
            mask[y : y + side, x : x + side] = True
        heatmap = (rng.random(mask.shape) * rng.choice([0.52, 0.55, 0.6])).astype(np.float32)
        tally.add(heatmap, mask)
        for region in flood(mask):
            size, hits = len(region[0]), int((heatmap[region] > 0.5).sum())
            start = max(s for s in expected if s <= size)
            n, detected = expected[start]
            expected[start] = (n + 1, detected + (10 * hits >= size))
    found = tally.summary()
    assert found is not None
    assert {row["from"]: (row["n"], row["detected"]) for row in found["by_size"]} == expected
    assert [row["to"] for row in found["by_size"]] == [9, 49, 199, 799, None]
    n, detected = (sum(pair[i] for pair in expected.values()) for i in (0, 1))
    assert (found["n"], found["detected"], found["rate"]) == (n, detected, detected / n)
    assert 0 < detected < n


@pytest.mark.parametrize("size", [10, 30, 70, 190, 1370])  # 0.1 * 70 > 7 in floating point
def test_a_tenth_of_the_pixels_finds_a_lesion(size: int) -> None:
    for called, detected in ((0, 0), (size // 10 - 1, 0), (size // 10, 1)):
        heatmap, mask = np.zeros((1, size), dtype=np.float32), np.ones((1, size), dtype=bool)
        heatmap[0, :called] = 1.0
        tally = LesionTally(0.5)
        tally.add(heatmap, mask)
        found = tally.summary()
        assert found is not None
        assert found["detected"] == detected
        assert sorted(str(row["rate"]) for row in found["by_size"]) == [str(float(detected)), *["None"] * 4]


def test_none_without_lesions_or_threshold() -> None:
    image, mask = np.ones((3, 3), dtype=np.float32), np.eye(3, dtype=bool)
    tally = LesionTally(0.5)
    tally.add(image, np.zeros((3, 3), dtype=bool))
    assert tally.summary() is None
    tally = LesionTally(None)
    tally.add(image, mask)
    assert tally.summary() is None
