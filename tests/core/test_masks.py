"""The inference masks of Appendix A.3: a grid that covers everything."""

from itertools import pairwise

import pytest

from reshift.core.anomaly import upsample_mask
from reshift.core.masks import grid_masks, grid_starts


@pytest.mark.parametrize(("length", "side", "stride"), [(16, 4, 2), (16, 4, 3), (16, 5, 4), (7, 3, 3), (4, 4, 1), (5, 1, 1)])
def test_grid_covers_everything_and_ends_at_h_minus_side(length: int, side: int, stride: int) -> None:
    starts = grid_starts(length, side, stride)
    assert starts[0] == 0
    assert starts[-1] == length - side
    assert starts == sorted(set(starts))
    assert all(b - a <= stride for a, b in pairwise(starts))
    masks = grid_masks(length, length, side, stride)
    assert len(masks) == len(starts) ** 2
    assert bool((masks.sum(0) >= 1).all())


def test_the_default_grid_has_49_masks_of_1024_pixels() -> None:
    masks = grid_masks(16, 16, side=4, stride=2)
    assert len(masks) == 49
    assert upsample_mask(masks, 128, 128).sum((1, 2)).unique().tolist() == [1024.0]


@pytest.mark.parametrize(("side", "stride"), [(0, 1), (17, 1), (4, 0), (4, 5)])
def test_grid_refuses_gaps_and_oversized_masks(side: int, stride: int) -> None:
    with pytest.raises(ValueError, match="must lie in"):
        grid_starts(16, side, stride)
