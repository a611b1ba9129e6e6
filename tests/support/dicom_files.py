"""Write small DICOM files: a slice, an oblique series, an enhanced multi-frame file."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import (
    CTImageStorage,
    DigitalXRayImageStorageForPresentation,
    EnhancedMRImageStorage,
    ExplicitVRLittleEndian,
    generate_uid,
)

SECRETS = ("Okonkwo^Adaeze", "PID-77301", "19610214", "ACC-99812")
PATIENT = dict(zip(("PatientName", "PatientID", "PatientBirthDate", "AccessionNumber"), SECRETS, strict=True))
SERIES_UID, STUDY_UID, FRAME_UID = "1.2.826.0.1.3680043.8.498.11", "1.2.826.0.1.3680043.8.498.22", "1.2.826.0.1.3680043.8.498.33"


def values(seed: int = 0, height: int = 24, width: int = 20, low: int = 0, high: int = 2000) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(low, high, (height, width))


def cosines(yaw: float = 0.0, pitch: float = 0.0, roll: float = 0.0) -> NDArray[np.float64]:
    """ImageOrientationPatient of an axial slice rotated by three angles (radians)."""
    c, s = np.cos([yaw, pitch, roll]), np.sin([yaw, pitch, roll])
    about_z = np.array([[c[0], -s[0], 0], [s[0], c[0], 0], [0, 0, 1]])
    about_y = np.array([[c[1], 0, s[1]], [0, 1, 0], [-s[1], 0, c[1]]])
    about_x = np.array([[1, 0, 0], [0, c[2], -s[2]], [0, s[2], c[2]]])
    turn = about_z @ about_y @ about_x
    return np.concatenate([turn[:, 0], turn[:, 1]])


def grey(pixels: NDArray[Any], *, stored: int = 16, signed: bool = False, **tags: Any) -> Dataset:
    """A data set with native grey pixels and no geometry, like a radiograph. ``tags`` are set, or removed if None."""
    ds = Dataset()
    ds.file_meta = FileMetaDataset()
    ds.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    ds.SOPClassUID, ds.SOPInstanceUID = DigitalXRayImageStorageForPresentation, generate_uid()
    ds.StudyInstanceUID, ds.SeriesInstanceUID, ds.Modality = STUDY_UID, SERIES_UID, "DX"
    for name, text in PATIENT.items():
        setattr(ds, name, text)
    allocated = 8 if stored <= 8 else 16 if stored <= 16 else 32
    ds.Rows, ds.Columns = pixels.shape[-2:]
    ds.SamplesPerPixel, ds.PhotometricInterpretation = 1, "MONOCHROME2"
    ds.BitsAllocated, ds.BitsStored, ds.HighBit, ds.PixelRepresentation = allocated, stored, stored - 1, int(signed)
    ds.PixelData = pixels.astype(f"<{'i' if signed else 'u'}{allocated // 8}").tobytes()
    ds["PixelData"].VR = "OB" if allocated == 8 else "OW"
    return change(ds, **tags)


def change(ds: Dataset, **tags: Any) -> Dataset:
    for name, value in tags.items():
        if value is None:
            del ds[name]
        else:
            setattr(ds, name, value)
    return ds


def ct(pixels: NDArray[Any], position: Any = (0.0, 0.0, 0.0), orientation: Any = None, **tags: Any) -> Dataset:
    """One slice of a CT series; stored values are Hounsfield units + 1024."""
    ds = grey(pixels, stored=12)
    ds.SOPClassUID, ds.Modality, ds.ImageType = CTImageStorage, "CT", ["ORIGINAL", "PRIMARY", "AXIAL"]
    ds.ImagePositionPatient = [float(v) for v in position]
    ds.ImageOrientationPatient = [float(v) for v in (cosines() if orientation is None else orientation)]
    ds.PixelSpacing, ds.SliceThickness, ds.FrameOfReferenceUID = [0.8, 0.6], 2.5, FRAME_UID
    ds.RescaleSlope, ds.RescaleIntercept, ds.InstanceNumber = 1, -1024, 1
    return change(ds, **tags)


def write(ds: Dataset, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    ds.file_meta.MediaStorageSOPClassUID = ds.get("SOPClassUID", CTImageStorage)
    ds.file_meta.MediaStorageSOPInstanceUID = ds.get("SOPInstanceUID", "1.2.3")
    ds.save_as(path, enforce_file_format=True)
    return path


def series(folder: Path, count: int = 5, orientation: Any = None, step: Any = None, **tags: Any) -> list[Dataset]:
    """Write a series whose file names and instance numbers are not in order; return the slices in order."""
    turned = cosines() if orientation is None else np.asarray(orientation)
    normal = np.cross(turned[:3], turned[3:])
    step = normal * 2.5 if step is None else np.asarray(step)
    shuffled = np.random.default_rng(count).permutation(count)
    slices = []
    for k in range(count):
        place = np.array([-31.0, 12.5, 7.25]) + k * step
        ds = ct(values(k), place, turned, **{"InstanceNumber": int(shuffled[k]) + 1, **tags})
        write(ds, folder / f"IM{shuffled[k]:04d}")
        slices.append(ds)
    return slices


def enhanced(order: Any = (2, 0, 3, 1), orientation: Any = None, **tags: Any) -> Dataset:
    """An enhanced MR file whose frame ``f`` is at position ``order[f]`` and holds ``values(order[f])``."""
    turned = cosines() if orientation is None else np.asarray(orientation)
    normal = np.cross(turned[:3], turned[3:])
    ds = grey(np.stack([values(k) for k in order]), stored=12)
    ds.SOPClassUID, ds.Modality, ds.NumberOfFrames = EnhancedMRImageStorage, "MR", len(order)
    ds.FrameOfReferenceUID, ds.ImageType, ds.InstanceNumber = FRAME_UID, ["ORIGINAL", "PRIMARY", "T1", "NONE"], 1
    shared = _groups(PlaneOrientationSequence={"ImageOrientationPatient": [float(v) for v in turned]})
    shared.PixelMeasuresSequence = [_item(PixelSpacing=[0.8, 0.6], SliceThickness=2.5)]
    ds.SharedFunctionalGroupsSequence = [shared]
    frames = []
    for k in order:
        place = np.array([-31.0, 12.5, 7.25]) + k * normal * 2.5
        groups = _groups(PlanePositionSequence={"ImagePositionPatient": [float(v) for v in place]})
        groups.FrameContentSequence = [_item(DimensionIndexValues=[1, k + 1], TemporalPositionIndex=1)]
        groups.PixelValueTransformationSequence = [_item(RescaleSlope=2, RescaleIntercept=-5, RescaleType="US")]
        groups.FrameVOILUTSequence = [_item(WindowCenter=600, WindowWidth=801)]
        frames.append(groups)
    ds.PerFrameFunctionalGroupsSequence = frames
    return change(ds, **tags)


def _item(**tags: Any) -> Dataset:
    return change(Dataset(), **tags)


def _groups(**sequences: dict[str, Any]) -> Dataset:
    return change(Dataset(), **{name: [_item(**tags)] for name, tags in sequences.items()})
