"""The findings of one scored case."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reshift.data.volume import Volume
from reshift.inference.findings.measure import Found, find, measured
from reshift.inference.findings.regions import RegionFinder
from reshift.inference.findings.space import image_space, volume_space


def volume_findings(
    volume: Volume, heatmaps: NDArray[np.float32], p_values: Mapping[int, float | None], threshold: float, min_diameter: float
) -> Found | None:
    """Findings in ``(S, H, W)``, canonical; ``p_values`` has every slice that was scored."""
    finder = RegionFinder(threshold)
    for k in sorted(p_values):
        finder.add(k, heatmaps[k])
    found = measured(finder, volume_space(volume), min_diameter, volume.native_index)
    for finding, region in zip(found.findings, found.regions, strict=True) if found else ():
        known = [p for k in np.unique(region.runs[:, 0]).tolist() if (p := p_values[k]) is not None]
        finding["slice_p_value"] = min(known, default=None)
    return found


def image_findings(path: Path, heatmap: NDArray[np.float32], threshold: float, min_diameter: float) -> Found | None:
    """Findings in the heat-map ``(H, W)`` of the image file ``path``."""
    if not (heatmap > threshold).any():  # most images, and their headers need not be read
        return Found([], [])
    return find([(0, heatmap)], threshold, image_space(path), min_diameter)
