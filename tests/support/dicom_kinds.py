"""One scan of every kind that results are made of, each valid by itself: CT, MR, PT, CR, DX, US, MG, enhanced, single-frame."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from dicom_files import FRAME_UID, change, ct, enhanced, grey, values, write
from pydicom.uid import (
    ComputedRadiographyImageStorage,
    DigitalMammographyXRayImageStorageForPresentation,
    EnhancedCTImageStorage,
    MRImageStorage,
    PositronEmissionTomographyImageStorage,
    SecondaryCaptureImageStorage,
    UltrasoundImageStorage,
    generate_uid,
)

from reshift.data.dicom.series import DicomVolume, read_dicom, read_series
from reshift.data.image import Image

STUDY: dict[str, Any] = {
    "StudyDate": "20260102", "StudyTime": "101500", "StudyID": "1", "ReferringPhysicianName": "Ito^Ren", "PatientSex": "O",
    "SeriesNumber": 3, "Manufacturer": "Maker", "InstanceNumber": 1, "PatientAge": "064Y", "StudyDescription": "Study",
}  # fmt: skip


def _slices(kind: Any, modality: str, folder: Path, **tags: Any) -> DicomVolume:
    for k in range(4):
        place = (-31.0, 12.5, 7.25 + 2.5 * k)
        ds = ct(values(k), place, SOPClassUID=kind, Modality=modality, **{**STUDY, **tags, "InstanceNumber": k + 1})
        write(change(ds, PositionReferenceIndicator=""), folder / f"{k}.dcm")
    return read_series(folder)


def _plain(kind: Any, modality: str, folder: Path, **tags: Any) -> Image | DicomVolume:
    ds = grey(values(), stored=12, SOPClassUID=kind, Modality=modality, **{**STUDY, **tags})
    return read_dicom(write(ds, folder / "a.dcm"))


def _enhanced(folder: Path, frames: tuple[int, ...], **tags: Any) -> Image | DicomVolume:
    ds = enhanced(frames, SeriesDate="20260102", **{**STUDY, **tags})
    return read_dicom(write(ds, folder / "a.dcm"))


def _ultrasound(folder: Path) -> Image | DicomVolume:
    ds = grey(values(), stored=8, SOPClassUID=UltrasoundImageStorage, Modality="US", **STUDY)
    rgb = np.random.default_rng(0).integers(0, 255, (24, 20, 3)).astype(np.uint8)
    change(ds, SamplesPerPixel=3, PhotometricInterpretation="RGB", PlanarConfiguration=0, PixelData=rgb.tobytes())
    return read_dicom(write(change(ds, BurnedInAnnotation="NO"), folder / "a.dcm"))


def _one_ct(folder: Path) -> Image | DicomVolume:
    return read_dicom(write(ct(values(), SOPInstanceUID=generate_uid(), **STUDY), folder / "a.dcm"))


def _turned(folder: Path) -> DicomVolume:
    from dicom_files import cosines, series

    series(folder, 5, cosines(0.3, -0.2, 0.1), **{k: v for k, v in STUDY.items() if k != "InstanceNumber"})
    return read_series(folder)


KINDS: dict[str, Callable[[Path], Image | DicomVolume]] = {
    "CT series": lambda folder: _slices("1.2.840.10008.5.1.4.1.1.2", "CT", folder),
    "CT series, oblique": _turned,
    "CT, one slice": _one_ct,
    "MR series": lambda folder: _slices(MRImageStorage, "MR", folder, BodyPartExamined="HEAD"),
    "MR series of a knee": lambda folder: _slices(MRImageStorage, "MR", folder, BodyPartExamined="KNEE", Laterality="L"),
    "MR series of a knee, side unknown": lambda folder: _slices(MRImageStorage, "MR", folder, BodyPartExamined="KNEE"),
    "PT series": lambda folder: _slices(PositronEmissionTomographyImageStorage, "PT", folder),
    "enhanced MR": lambda folder: _enhanced(folder, (2, 0, 3, 1)),
    "enhanced MR, one frame": lambda folder: _enhanced(folder, (0,)),
    "enhanced CT": lambda folder: _enhanced(folder, (2, 0, 3, 1), SOPClassUID=EnhancedCTImageStorage, Modality="CT"),
    "CR": lambda folder: _plain(
        ComputedRadiographyImageStorage, "CR", folder, BodyPartExamined="CHEST", ImagerPixelSpacing=[0.2, 0.2]
    ),
    "CR of a hand": lambda folder: _plain(ComputedRadiographyImageStorage, "CR", folder, BodyPartExamined="HAND"),
    "DX": lambda folder: _plain("1.2.840.10008.5.1.4.1.1.1.1", "DX", folder, PixelSpacing=[0.2, 0.2], ImageLaterality="U"),
    "MG": lambda folder: _plain(
        DigitalMammographyXRayImageStorageForPresentation, "MG", folder, BodyPartExamined="BREAST", ImageLaterality="R"
    ),
    "US": _ultrasound,
    "a capture without a position": lambda folder: _plain(
        SecondaryCaptureImageStorage, "OT", folder, FrameOfReferenceUID=FRAME_UID, PixelSpacing=[0.2, 0.2]
    ),
}
