"""The mask as a DICOM Segmentation: one segment per finding, and one for what is above the threshold but too small."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reshift import __version__
from reshift.inference.dicom_export.identity import MAKER, Identity
from reshift.inference.dicom_export.save import describe, making, save
from reshift.inference.dicom_export.sources import is_placed, without_spacing

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

REST = "Anomaly"  # what is above the threshold and in no finding


def write_seg(
    path: Path, sources: "Sequence[Dataset]", segments: NDArray[np.uint8], labels: Sequence[str], identity: Identity
) -> "Dataset":
    """Write ``segments`` (a plane per source, or per frame of the one source): 0, or the number of one of ``labels``, from 1."""
    with making(path):
        import highdicom as hd

        made = hd.seg.Segmentation(
            source_images=[source if is_placed(source) else without_spacing(source) for source in sources],
            pixel_array=segments,
            segmentation_type=hd.seg.SegmentationTypeValues.BINARY,
            segment_descriptions=[_segment(i, label, identity) for i, label in enumerate(labels, start=1)],
            omit_empty_frames=bool(segments.any()),  # findings × slices are mostly empty; a mask of nothing has to have frames
            **identity.of("mask"),
            **MAKER,
        )
        describe(made, sources[0])
    save(path, made, identity)
    return made


def _segment(number: int, label: str, identity: Identity) -> Any:
    import highdicom as hd
    from pydicom.sr.codedict import codes

    return hd.seg.SegmentDescription(
        segment_number=number,
        segment_label=label,
        segmented_property_category=codes.SCT.MorphologicallyAbnormalStructure,
        segmented_property_type=codes.SCT.Lesion,
        algorithm_type=hd.seg.SegmentAlgorithmTypeValues.AUTOMATIC,
        algorithm_identification=hd.AlgorithmIdentificationSequence("Reshift", codes.DCM.ArtificialIntelligence, __version__),
        tracking_id=label,
        tracking_uid=identity.uid("segment", number),
    )
