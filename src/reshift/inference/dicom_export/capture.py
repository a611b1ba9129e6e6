"""Overlays as DICOM Secondary Captures, which any viewer shows."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from reshift.data.dicom.geometry import functional_group
from reshift.data.dicom.header import Header
from reshift.inference.dicom_export.identity import MAKER, Identity
from reshift.inference.dicom_export.save import describe, making, save
from reshift.inference.dicom_export.sources import patient_orientation, reference

if TYPE_CHECKING:
    from pydicom.dataset import Dataset


def write_secondary_capture(
    path: Path, source: "Dataset", rgb: NDArray[np.uint8], identity: Identity, frame: int = 0, number: int = 1
) -> None:
    """Write ``rgb`` (H, W, 3), made from one frame of ``source``; ``number`` tells the captures of a series apart."""
    with making(path):
        import highdicom as hd
        from pydicom.uid import ExplicitVRLittleEndian

        header = Header(path, source)
        spacing = functional_group(header, frame, "PixelMeasuresSequence").numbers("PixelSpacing", 2)
        made = hd.sc.SCImage.from_ref_dataset(
            source,
            pixel_array=np.ascontiguousarray(rgb),
            photometric_interpretation="RGB",
            bits_allocated=8,
            coordinate_system="PATIENT",
            patient_orientation=("L", "F"),  # it asks for one, and a plain radiograph may have none: set below
            pixel_spacing=(spacing[0], spacing[1]) if spacing else None,  # type: ignore[arg-type]
            transfer_syntax_uid=ExplicitVRLittleEndian,
            **identity.of("overlay", number),
            **MAKER,
        )
        made.PatientOrientation = patient_orientation(header, frame)
        made.pop("BurnedInAnnotation", None)
        if (burned_in := header.words("BurnedInAnnotation")) in (("YES",), ("NO",)):  # of anything else we know nothing
            made.BurnedInAnnotation = burned_in[0]
        made.ImageType = ["DERIVED", "SECONDARY", "OVERLAY"]
        made.SourceImageSequence = [reference(source, frame)]
        describe(made, source)
    save(path, made, identity)
