"""Where findings lie: from (slice, row, column) of a heat-map to patient coordinates."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.data.dicom.geometry import PER_FRAME, SHARED, functional_group, plane
from reshift.data.dicom.header import Header, is_dicom, read_header
from reshift.data.dicom.pixels import SPACINGS
from reshift.data.dicom.series import DicomVolume
from reshift.data.volume import Volume
from reshift.errors import UserError

LPS, RAS, IMAGE = "LPS", "RAS+", "image"
RAS_TO_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])
_TAGS = (
    *(*SPACINGS, "ImagePositionPatient", "ImageOrientationPatient", "SliceThickness", "SpacingBetweenSlices"),
    *(PER_FRAME, SHARED),
)


class Space(NamedTuple):
    """Coordinates of a case.

    ``LPS`` (DICOM) and ``RAS+`` (NIfTI) are the patient's; ``image`` is (right, down, 0) from the centre of the first pixel,
    of files that do not say where they lie.
    """

    name: str
    unit: str  # "mm", or "pixel" where the file has no spacing
    affine: NDArray[np.float64]  # (4, 4): (slice, row, column) → coordinates
    volumetric: bool  # a volume; otherwise regions have an area

    @property
    def voxel(self) -> float:
        """Volume of a voxel, or area of a pixel."""
        edges = self.affine[:3, :3]
        return float(abs(np.linalg.det(edges)) if self.volumetric else np.linalg.norm(np.cross(edges[:, 1], edges[:, 2])))

    def place(self, indices: NDArray[np.floating] | NDArray[np.integer]) -> NDArray[np.float64]:
        """``(n, 3)`` indices → coordinates."""
        return np.asarray(indices @ self.affine[:3, :3].T + self.affine[:3, 3])


def volume_space(volume: Volume) -> Space:
    """Of a volume, for canonical indices."""
    dicom = isinstance(volume, DicomVolume)
    affine = volume.affine[:, [2, 1, 0, 3]]  # ours is for (column, row, slice)
    return Space(LPS if dicom else RAS, "mm", RAS_TO_LPS @ affine if dicom else affine, volumetric=True)


def image_space(path: Path) -> Space:
    """Of an image file; a DICOM file may say where it lies, or at least how large its pixels are."""
    flat = np.eye(4)[:, [2, 1, 0, 3]]  # (slice, row, column) → (right, down, 0)
    if not is_dicom(path):
        return Space(IMAGE, "pixel", flat, volumetric=False)
    header = read_header(path, _TAGS)
    try:
        placed = plane(header)
    except UserError:  # a radiograph, or ultrasound
        spacing = _spacing(header)
        flat[1, 1], flat[0, 2] = spacing or (1.0, 1.0)
        return Space(IMAGE, "mm" if spacing else "pixel", flat, volumetric=False)
    edges = [placed.normal, placed.along_column * placed.spacing[0], placed.along_row * placed.spacing[1], placed.position]
    flat[:3] = np.stack(edges, axis=1)
    return Space(LPS, "mm", flat, volumetric=False)


def _spacing(header: Header) -> tuple[float, ...]:
    """Millimetres from row to row and from column to column, as the reader takes them; none where the file does not say."""
    measures = functional_group(header, 0, "PixelMeasuresSequence")
    return next((found for tag in SPACINGS if (found := measures.numbers(tag, 2) or header.numbers(tag, 2))), ())
