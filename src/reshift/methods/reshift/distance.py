"""Witness: the distance of an image's patches to remembered patches of normals. The memory has one bank per fold."""

import torch
from torch import Tensor

from reshift.nets.patches import nearest


def distance_to_banks(rows: Tensor, banks: Tensor, without: int | None) -> Tensor:
    """Distance ``(n,)`` of ``rows (n, d)`` to the nearest patch of ``banks (folds, m, d)``, fold ``without`` left out.

    For a new image ``without`` is None: the mean over every fold left out in turn. So a new image is compared with as many
    patches as the normals that set the thresholds.
    """
    each = torch.stack([nearest(rows, bank)[0][:, 0] for bank in banks])  # (folds, n)
    if len(banks) == 1:
        return each[0]
    left_out = range(len(banks)) if without is None else [without]
    return torch.stack([torch.cat([each[:k], each[k + 1 :]]).amin(0) for k in left_out]).mean(0)
