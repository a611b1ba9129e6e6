"""The geometry of DICOM slices: order by position along the normal, an exact affine, and refusal of anything but one stack.

DICOM coordinates grow towards the patient's left, posterior and head (LPS), our affines towards right, anterior and head (RAS).
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.data.dicom.header import DAMAGED, Header
from reshift.errors import UserError

PER_FRAME, SHARED = "PerFrameFunctionalGroupsSequence", "SharedFunctionalGroupsSequence"
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
SAME_DIRECTION = 1e-3  # between direction cosines
SAME_POSITION = 1e-3  # millimetres
MAX_UNEVEN = 0.05  # share of the slice distance; a larger difference is reported
MAX_TILT = 0.5  # degrees between the normal and the line through the slices; a larger tilt is reported
# Tags that may differ between two slices at one position, the likeliest first.
DISTINGUISHING_TAGS = (
    "TemporalPositionIdentifier",
    "TemporalPositionIndex",
    "EchoTime",
    "EchoNumbers",
    "DiffusionBValue",
    "InversionTime",
    "TriggerTime",
    "ImageType",
    "AcquisitionNumber",
    "ConvolutionKernel",
    "FrameReferenceTime",
)
DISTINGUISHING_FRAME_TAGS = (
    ("FrameContentSequence", "TemporalPositionIndex"),
    ("FrameContentSequence", "StackID"),
    ("MREchoSequence", "EffectiveEchoTime"),
    ("MRDiffusionSequence", "DiffusionBValue"),
)


class Plane(NamedTuple):
    """One frame: its file and its position."""

    header: Header
    frame: int  # within the file
    position: NDArray[np.float64]  # (3,) LPS millimetres of the centre of the first pixel
    along_row: NDArray[np.float64]  # (3,) unit vector of growing column index
    along_column: NDArray[np.float64]  # (3,) unit vector of growing row index
    spacing: tuple[float, float]  # millimetres from row to row and from column to column
    thickness: float

    @property
    def path(self) -> Path:
        """The file of the frame."""
        return self.header.path

    @property
    def normal(self) -> NDArray[np.float64]:
        """Unit vector along which the slices are ordered."""
        return np.cross(self.along_row, self.along_column)

    @property
    def depth(self) -> float:
        """Position along the normal in millimetres."""
        return float(self.position @ self.normal)


class Stack(NamedTuple):
    """Planes in the order of their positions."""

    planes: tuple[Plane, ...]
    affine: NDArray[np.float64]  # (4, 4): (slice, row, column) index → RAS+ millimetres
    notes: tuple[str, ...]


def functional_group(header: Header, frame: int, name: str) -> Header:
    """An enhanced file's functional group of one frame, or of all frames; of other files, the header itself."""
    for groups, at in ((PER_FRAME, frame), (SHARED, 0)):
        if (item := header.item(groups, at)) and (found := item.item(name, 0)):
            return found
    return header


def plane(header: Header, frame: int = 0) -> Plane:
    """Position, orientation and spacing of one frame; all three are required."""
    position = _required(functional_group(header, frame, "PlanePositionSequence"), "ImagePositionPatient", 3)
    cosines = _required(functional_group(header, frame, "PlaneOrientationSequence"), "ImageOrientationPatient", 6)
    measures = functional_group(header, frame, "PixelMeasuresSequence")
    rows, columns = _required(measures, "PixelSpacing", 2)
    if min(rows, columns) <= 0:
        raise UserError(f"{header.path}: its PixelSpacing is not above zero; {DAMAGED}")
    along_row, along_column = cosines[:3], cosines[3:]
    axes = np.stack([along_row, along_column])
    if np.abs(axes @ axes.T - np.eye(2)).max() > 1e-2:
        raise UserError(f"{header.path}: its ImageOrientationPatient is not two unit vectors at a right angle; {DAMAGED}")
    along_row = along_row / np.linalg.norm(along_row)
    along_column = along_column - (along_column @ along_row) * along_row
    thickness = measures.number("SpacingBetweenSlices") or measures.number("SliceThickness") or 1.0
    return Plane(
        header, frame, position, along_row, along_column / np.linalg.norm(along_column), (float(rows), float(columns)), thickness
    )


def _required(header: Header, tag: str, count: int) -> NDArray[np.float64]:
    found = header.numbers(tag, count)
    if not found:
        raise UserError(
            f"{header.path}: has no {tag}, so its position in a volume is unknown; score its files one by one as images"
        )
    return np.array(found)


def stack_planes(planes: Sequence[Plane], source: Path) -> Stack:
    """Order the planes and check that they are one stack; what is unusual but usable becomes a note."""
    planes, notes = _without_localisers(planes, source)
    _refuse_mixed(planes, source)
    planes = sorted(planes, key=lambda p: p.depth)
    _refuse_same_position(planes)
    first, last, count = planes[0], planes[-1], len(planes)
    steps = np.diff([p.depth for p in planes])
    step = first.normal * abs(first.thickness)
    if count > 1:
        notes += _gaps(planes, steps)
        step = (last.position - first.position) / (count - 1)
        notes += _tilt(planes, step, source)
    lps = np.eye(4)  # PS3.3 C.7.6.2.1.1, its columns in the order of our axes
    lps[:3] = np.stack([step, first.along_column * first.spacing[0], first.along_row * first.spacing[1], first.position], axis=1)
    return Stack(tuple(planes), LPS_TO_RAS @ lps, tuple(notes))


def _without_localisers(planes: Sequence[Plane], source: Path) -> tuple[list[Plane], list[str]]:
    kept = [p for p in planes if "LOCALIZER" not in p.header.words("ImageType")]
    if not kept:
        raise UserError(f"{source}: holds localiser images only (ImageType); give the folder of the series itself")
    left = len(planes) - len(kept)
    return kept, [f"{source}: {left} localiser image{'s'[: left > 1]} left out (ImageType)"] if left else []


def _refuse_mixed(planes: Sequence[Plane], source: Path) -> None:
    first = planes[0]
    rotated = [p for p in planes if _direction_difference(first, p) > SAME_DIRECTION]
    if rotated:
        some = f"{len(planes) - len(rotated)} slices like {first.path.name} and {len(rotated)} like {rotated[0].path.name}"
        raise UserError(f"{source}: holds slices of different ImageOrientationPatient ({some}); keep one orientation per folder")
    scaled = [p for p in planes if not np.allclose(p.spacing, first.spacing, rtol=1e-3)]
    if scaled:
        both = f"{first.path.name} and {scaled[0].path.name}"
        raise UserError(f"{source}: holds slices of different PixelSpacing ({both}); keep one per folder")


def _direction_difference(one: Plane, other: Plane) -> float:
    return float(max(np.abs(one.along_row - other.along_row).max(), np.abs(one.along_column - other.along_column).max()))


def _refuse_same_position(planes: Sequence[Plane]) -> None:
    for one, other in pairwise(planes):
        if other.depth - one.depth > SAME_POSITION:
            continue
        both = f"{one.path}: has the same position as {other.path.name}"
        if one.path == other.path:
            both = f"{one.path}: its frames {one.frame + 1} and {other.frame + 1} have the same position"
        elif one.header.words("SOPInstanceUID") == other.header.words("SOPInstanceUID") != ():
            raise UserError(f"{both} and is the same image; remove one of the two")
        tag = _distinguishing_tag(one, other)
        why = f"they differ in {tag}; keep one {tag} per folder" if tag else "a volume has one image per position; keep one"
        raise UserError(f"{both}; {why}")


def _distinguishing_tag(one: Plane, other: Plane) -> str | None:
    """The first tag in which two planes at one position differ."""
    for tag in DISTINGUISHING_TAGS:
        if one.header.words(tag) != other.header.words(tag):
            return tag
    for name, tag in DISTINGUISHING_FRAME_TAGS:
        both = [functional_group(p.header, p.frame, name).words(tag) for p in (one, other)]
        if both[0] != both[1]:
            return tag
    return None


def _gaps(planes: Sequence[Plane], steps: NDArray[np.float64]) -> list[str]:
    """A note about the largest deviation from the usual slice distance, if it is large."""
    usual = float(np.median(steps))
    k = int(np.argmax(np.abs(steps - usual)))
    if abs(steps[k] - usual) <= max(MAX_UNEVEN * usual, SAME_POSITION):
        return []
    where = f"between {planes[k].path.name} and {planes[k + 1].path.name}"
    apart = f"slices are {usual:.4g} mm apart, but {steps[k]:.4g} mm {where}"
    return [f"{planes[k].path.parent}: {apart}; is one missing? Positions in a map are then right only on average"]


def _tilt(planes: Sequence[Plane], step: NDArray[np.float64], source: Path) -> list[str]:
    """A note about a tilted gantry, which shears the stack. The affine is exact as long as the slices lie on one line."""
    first = planes[0]
    direction = step / np.linalg.norm(step)
    cosine = direction @ first.normal
    off = [p.position - first.position - direction * ((p.depth - first.depth) / cosine) for p in planes]
    farthest = float(np.linalg.norm(off, axis=1).max())
    if farthest > max(0.5 * min(first.spacing), 0.05):
        raise UserError(
            f"{source}: its slices do not lie along one line (ImagePositionPatient), by {farthest:.3g} mm; score them as images"
        )
    degrees = float(np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0))))
    return (
        [f"{source}: the slices are tilted by {degrees:.1f}° (gantry tilt); maps keep the tilt, some viewers do not"]
        if degrees > MAX_TILT
        else []
    )
