"""The headers that DICOM results refer to, completed with what results need (extra ``dicom``)."""

import re
from copy import copy
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reshift.data.dicom.geometry import PER_FRAME, functional_group
from reshift.data.dicom.header import Header, read_header
from reshift.data.dicom.layout import frame_count
from reshift.data.dicom.series import DicomVolume
from reshift.data.image import Image
from reshift.errors import UserError

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

NEEDED = ("StudyInstanceUID", "SeriesInstanceUID", "SOPClassUID", "SOPInstanceUID")
# May be empty in DICOM, but some exporters leave them out altogether.
EMPTY = (
    *("PatientName", "PatientID", "PatientBirthDate", "PatientSex"),
    *("AccessionNumber", "ReferringPhysicianName", "StudyID", "StudyDate", "StudyTime"),
)


def read_sources(original: DicomVolume | Image) -> "list[Dataset]":
    """Headers of the files ``original`` was read from: one per slice along the native first axis, or the one multi-frame file."""
    paths = list(dict.fromkeys(path for path, _ in original.frames)) if isinstance(original, DicomVolume) else [original.source]
    sources = [_completed(path) for path in paths]
    if len(paths) > 1 and any(frame_count(Header(path, source)) > 1 for path, source in zip(paths, sources, strict=True)):
        raise UserError(
            f"{original.source}: its frames are spread over several files; DICOM results need one file, or one per slice"
        )
    if isinstance(original, DicomVolume):
        for source in sources:
            thickness = source.get("SliceThickness")  # a slice may lack it, a result may not; damaged, it can be of any type
            if "ImagePositionPatient" in source and not (isinstance(thickness, float) and thickness):
                source.pop("SliceThickness", None)
                source.SliceThickness = float(f"{np.linalg.norm(original.native_affine[:3, 0]):.6g}")
    return sources


def _completed(path: Path) -> "Dataset":
    """A file's header with what DICOM results need: some of it may be empty, some may not."""
    header = read_header(path)
    missing = next((tag for tag in NEEDED if header.value(tag) is None), None)
    if missing:
        raise UserError(f"{path}: has no {missing}, so no DICOM result can name it; export it again, or leave out DICOM results")
    for tag in EMPTY:
        if tag not in header.tags or _is_invalid(tag, header):
            setattr(header.tags, tag, None)
    return header.tags


def _is_invalid(tag: str, header: Header) -> bool:
    """Whether a date, a time or a sex is invalid, so that writers refuse it; other tags say who the patient is."""
    text = " ".join(header.words(tag)) if tag.endswith(("Date", "Time", "Sex")) else ""
    if tag == "PatientSex":
        return text not in ("", "M", "F", "O")
    try:
        if text and tag.endswith("Date"):
            datetime.strptime(text, "%Y%m%d")
    except ValueError:
        return True
    return tag.endswith("Time") and re.fullmatch(r"(([01]\d|2[0-3])([0-5]\d([0-5]\d(\.\d{1,6})?)?)?)?", text) is None


def patient_orientation(header: Header, frame: int) -> list[str]:
    """The letters of the directions that rows and columns run in; none where nothing says."""
    cosines = functional_group(header, frame, "PlaneOrientationSequence").numbers("ImageOrientationPatient", 6)
    if not cosines:
        return list(header.words("PatientOrientation"))
    ends = [cosines[:3], cosines[3:]]
    strongest = [max(range(3), key=lambda axis, end=end: abs(end[axis])) for end in ends]  # type: ignore[misc]
    return [("LPH" if end[axis] > 0 else "RAF")[axis] for end, axis in zip(ends, strongest, strict=True)]


def is_placed(source: "Dataset") -> bool:
    """Whether a source says where it lies in space; radiographs do not."""
    return "FrameOfReferenceUID" in source and ("ImagePositionPatient" in source or PER_FRAME in source)


def without_spacing(source: "Dataset") -> "Dataset":
    """A copy without PixelSpacing: a mask with a spacing but no slice thickness is valid, but highdicom cannot read its own."""
    made = copy(source)
    made.pop("PixelSpacing", None)
    return made


def laterality(header: Header) -> str:
    """L or R where the source says so, else empty: not known, or the body part has no side."""
    said = [header.words(tag)[:1] for tag in ("Laterality", "ImageLaterality")]
    return next((side for words in said for side in words if side in ("L", "R")), "")


def reference(source: "Dataset", frame: int) -> "Dataset":
    """An item that names the instance, and in a multi-frame file the frame, that a result was made from."""
    from pydicom.dataset import Dataset

    item = Dataset()
    item.ReferencedSOPClassUID, item.ReferencedSOPInstanceUID = source.SOPClassUID, source.SOPInstanceUID
    if int(source.get("NumberOfFrames", 1) or 1) > 1:
        item.ReferencedFrameNumber = frame + 1
    return item
