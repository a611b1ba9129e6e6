"""The findings of an evaluation as a table: what would have been reported, and whether it lies on a lesion."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.data.cases import Case
from reshift.data.prepare import Geometry, restore
from reshift.data.read import open_volume
from reshift.inference.calibration import Calibration
from reshift.inference.findings.case import image_findings
from reshift.inference.findings.measure import MIN_DIAMETER, Finding, Found, measured
from reshift.inference.findings.regions import Region, RegionFinder
from reshift.inference.findings.space import volume_space
from reshift.inference.stream import Sample
from reshift.reports.tables import ReportTable

ROWS = 50  # those with the highest peaks


class Plane(NamedTuple):
    """What is kept of an image until the findings of its volume are known."""

    case: Case
    p_value: float
    mask: NDArray[np.bool_] | None  # on the network's grid
    geometry: Geometry


class FindingTable:
    """Collects findings while an evaluation predicts; slices of a volume follow each other."""

    def __init__(self, calibration: Calibration | None) -> None:
        self.calibration = calibration
        self.rows: list[tuple[float, tuple[str, ...]]] = []  # with the peak
        self.count = 0
        self._finder: RegionFinder | None = None  # of the volume at hand
        self._planes: dict[int, Plane] = {}

    def add(self, item: Sample[Case]) -> None:
        """The next predicted image."""
        if self.calibration is None:
            return
        case, threshold = item.case, self.calibration.reference.pixel_threshold
        plane = Plane(case, self.calibration.p_value(item.score), item.mask, item.prepared.geometry)
        if self._planes and (case.slice is None or next(iter(self._planes.values())).case.image != case.image):
            self._finish()
        heatmap = restore(item.heatmap, item.prepared.geometry)
        if case.slice is None:
            self._keep(image_findings(case.image, heatmap, threshold, MIN_DIAMETER), {0: plane})
            return
        if self._finder is None:
            self._finder = RegionFinder(threshold)
        self._finder.add(case.slice, heatmap)
        self._planes[case.slice] = plane

    def table(self) -> ReportTable:
        """What was found, the highest peaks first."""
        if self._planes:
            self._finish()
        some = f"the {len(self.rows)} with the highest peaks of {self.count}" if self.count > len(self.rows) else "all"
        return ReportTable(
            "Findings",
            f"Connected regions above the calibrated pixel threshold with a diameter of at least {MIN_DIAMETER:g} mm "
            f"(pixels, where a file has no spacing), {some}. The p-value is that of the image, or of the slice with the peak.",
            ("Image", "Finding", "Size", "Diameter", "Centroid", "Peak", "Mean", "p-value", "On a lesion"),
            [row for _, row in self.rows],
        )

    def _finish(self) -> None:
        volume = open_volume(next(iter(self._planes.values())).case.image)  # still open: its slices were just read
        assert self._finder is not None
        self._keep(measured(self._finder, volume_space(volume), MIN_DIAMETER), self._planes)
        self._finder, self._planes = None, {}

    def _keep(self, found: Found | None, planes: dict[int, Plane]) -> None:
        if found is None or not found.findings:
            return
        self.count += found.findings[0]["of"]
        for finding, region in zip(found.findings, found.regions, strict=True):
            if len(self.rows) < ROWS or finding["peak"] > self.rows[-1][0]:
                self.rows = sorted([*self.rows, (finding["peak"], _row(finding, region, planes))], key=lambda row: -row[0])[:ROWS]


def _row(finding: Finding, region: Region, planes: dict[int, Plane]) -> tuple[str, ...]:
    plane, unit = planes[region.peak_at[0]], "mm" if finding["unit"] == "mm" else "px"
    size = f"{finding['volume']:.4g} mm³" if finding["volume"] is not None else f"{finding['area']:.4g} {unit}²"
    known = [one for one in planes.values() if one.mask is not None or one.case.label == 0]
    on = "yes" if _on_lesion(region, planes) else "no" if len(known) == len(planes) else "–"
    place = ", ".join(f"{value:.1f}" for value in finding["centroid"])
    return (
        plane.case.name, f"{finding['finding']} of {finding['of']}", size, f"{finding['longest_diameter']:.4g} {unit}",
        f"{place} ({finding['space']})", f"{finding['peak']:.4g}", f"{finding['mean']:.4g}", f"{plane.p_value:.3g}", on,
    )  # fmt: skip


def _on_lesion(region: Region, planes: dict[int, Plane]) -> bool:
    """Whether any voxel of a region lies on a lesion, on the network's grid."""
    for k, row, start, end in region.runs.tolist():
        mask, at = planes[k].mask, planes[k].geometry
        if mask is not None:
            r = int((row - at.top + 0.5) * mask.shape[0] / at.rows)
            first, last = (int((column - at.left + 0.5) * mask.shape[1] / at.columns) for column in (start, end - 1))
            if mask[r, first : last + 1].any():
                return True
    return False
