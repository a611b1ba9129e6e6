"""Regions → findings: size, longest diameter, place and values, as records and tables hold them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.inference.findings.diameter import extreme_voxels, longest_diameter
from reshift.inference.findings.regions import Region, RegionFinder
from reshift.inference.findings.space import Space

MIN_DIAMETER = 3.0  # millimetres, or pixels without a spacing; below it a region is rather noise than a finding
MAX_FINDINGS = 100  # of a case, those with the highest peaks
FIELDS = (
    "finding", "of", "space", "unit", "volume", "area", "longest_diameter", "centroid", "box", "peak", "peak_at", "mean",
    "voxels", "slices", "peak_slice", "slice_p_value",
)  # fmt: skip

Finding = dict[str, Any]  # a value for each of FIELDS


class Found(NamedTuple):
    """The findings of a case, and their voxels."""

    findings: list[Finding]
    regions: list[Region]


def find(planes: Sequence[tuple[int, NDArray[np.float32]]], threshold: float, space: Space, min_diameter: float) -> Found | None:
    """Findings in planes of a heat-map, by rising slice; None where too much of it is above the threshold."""
    finder = RegionFinder(threshold)
    for k, heatmap in planes:
        finder.add(k, heatmap)
    return measured(finder, space, min_diameter)


def measured(
    finder: RegionFinder, space: Space, min_diameter: float, slice_of: Callable[[int], int] | None = None
) -> Found | None:
    """Findings of all planes that ``finder`` was given; ``slice_of`` takes a plane's index to that in the file."""
    regions = finder.regions()
    if regions is None:
        return None
    kept, diameters = list[Region](), list[float]()
    for region in regions:
        length = _diameter(region, space, min_diameter)
        if length >= min_diameter:
            kept.append(region)
            diameters.append(length)
    shown = kept[:MAX_FINDINGS]
    findings = [
        {"finding": i, "of": len(kept)} | _finding(region, length, space, slice_of)
        for i, (region, length) in enumerate(zip(shown, diameters, strict=False), start=1)
    ]
    return Found(findings, shown)


def _diameter(region: Region, space: Space, least: float) -> float:
    """The longest diameter; 0 where a look at the region's box shows that it is below ``least``."""
    voxels, edges = extreme_voxels(region.runs), space.affine[:3, :3]
    if float(np.ptp(voxels, axis=0) @ np.linalg.norm(edges, axis=0)) < least:
        return 0.0
    return longest_diameter(voxels, edges)


def _finding(region: Region, diameter: float, space: Space, slice_of: Callable[[int], int] | None) -> Finding:
    runs = region.runs.astype(np.float64)
    length = runs[:, 3] - runs[:, 2]
    centres = np.stack([runs[:, 0], runs[:, 1], (runs[:, 2] + runs[:, 3] - 1) / 2], axis=1)
    corners, size = space.place(extreme_voxels(region.runs)), region.voxels * space.voxel
    values: Finding = {
        "space": space.name,
        "unit": space.unit,
        "volume": _round(size) if space.volumetric else None,
        "area": None if space.volumetric else _round(size),
        "longest_diameter": _round(diameter),
        "centroid": _rounded(space.place((length @ centres / region.voxels)[None])[0]),
        "box": [_rounded(corners.min(axis=0)), _rounded(corners.max(axis=0))],
        "peak": region.peak,
        "peak_at": _rounded(space.place(np.array([region.peak_at]))[0]),
        "mean": float(np.float32(region.mean)),
        "voxels": region.voxels,
        "slices": None,
        "peak_slice": None,
        "slice_p_value": None,
    }
    if slice_of is not None:
        ends = sorted((slice_of(int(region.runs[:, 0].min())), slice_of(int(region.runs[:, 0].max()))))
        values |= {"slices": ends, "peak_slice": slice_of(region.peak_at[0])}
    return values


def _round(value: float) -> float:
    """To a thousandth of a millimetre, so that the last bits of a sum do not show."""
    return round(value, 3) + 0.0


def _rounded(values: NDArray[np.float64]) -> list[float]:
    return [_round(float(value)) for value in values]
