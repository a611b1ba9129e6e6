"""Healthy phantom slices to train on, and a phantom MR series with a bright lesion for a first walk with an archive.

    python tools/phantom_series.py OUT [--slices 24] [--size 128] [--study 1]

Writes OUT/healthy/*.png and OUT/series/*.dcm. Nothing in it comes from a patient.
"""

from argparse import ArgumentParser
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, MRImageStorage

from reshift.data.phantom import draw

ROOT = "1.2.826.0.1.3680043.8.498.2100"  # UIDs below it are made up here
LEVELS = 8  # different slices of a phantom head


def main() -> None:
    """Write both folders."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--slices", type=int, default=24)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--study", type=int, default=1, help="another number is another patient")
    given = parser.parse_args()
    for folder in ("healthy", "series"):
        (given.out / folder).mkdir(parents=True, exist_ok=True)
    for i in range(40):
        Image.fromarray(plane(100 + i // LEVELS, i % LEVELS, given.size, 180)).save(given.out / "healthy" / f"{i:02d}.png")
    for k in range(given.slices):
        pixels = plane(given.study, k * LEVELS // given.slices, given.size, 140)
        dataset(with_lesion(pixels, k - 0.6 * given.slices), k, given.study).save_as(
            given.out / "series" / f"{k:03d}.dcm", enforce_file_format=True
        )


def plane(subject: int, level: int, size: int, brightest: int) -> NDArray[np.uint8]:
    """A healthy slice, with grey values that leave room for a lesion."""
    pixels = np.asarray(draw("brain", subject, level, abnormal=False, size=size).pixels, dtype=np.float64)
    return np.asarray(pixels * (brightest / max(pixels.max(), 1.0)), dtype=np.uint8)


def with_lesion(pixels: NDArray[np.uint8], distance: float) -> NDArray[np.uint8]:
    """The slice ``distance`` slices away from the centre of a bright ball."""
    size = pixels.shape[0]
    y, x = np.mgrid[:size, :size] / size
    radius = np.sqrt((x - 0.64) ** 2 + (y - 0.42) ** 2 + (distance * 0.02) ** 2)
    return np.where(radius < 0.09, 250, pixels).astype(np.uint8)


def dataset(pixels: NDArray[np.uint8], k: int, study: int) -> Dataset:
    """One slice as an MR image."""
    made = Dataset()
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    made.StudyInstanceUID, made.SeriesInstanceUID = f"{ROOT}.{study}", f"{ROOT}.{study}.1"
    made.SOPClassUID, made.SOPInstanceUID = MRImageStorage, f"{ROOT}.{study}.1.{k + 1}"
    made.file_meta.MediaStorageSOPClassUID, made.file_meta.MediaStorageSOPInstanceUID = MRImageStorage, made.SOPInstanceUID
    made.PatientName, made.PatientID, made.PatientBirthDate, made.PatientSex = f"Phantom^{study}", f"PHANTOM-{study}", "", "O"
    made.StudyDate, made.StudyTime, made.StudyID, made.AccessionNumber = "20260115", "120000", str(study), ""
    made.ReferringPhysicianName, made.StudyDescription = "", "Phantom head"
    made.Modality, made.SeriesNumber, made.SeriesDescription = "MR", 1, "Phantom with a bright lesion"
    made.Manufacturer, made.InstanceNumber, made.FrameOfReferenceUID = "Phantom", k + 1, f"{ROOT}.{study}.2"
    made.PositionReferenceIndicator, made.ImageType = "", ["ORIGINAL", "PRIMARY", "OTHER"]
    made.ScanningSequence, made.SequenceVariant, made.ScanOptions, made.MRAcquisitionType = "SE", "NONE", "", "2D"
    made.EchoTime, made.EchoTrainLength, made.RepetitionTime = 10, 1, 500
    made.ImagePositionPatient, made.ImageOrientationPatient = [-96.0, -96.0, 3.0 * k], [1, 0, 0, 0, 1, 0]
    made.PixelSpacing, made.SliceThickness = [192 / pixels.shape[0], 192 / pixels.shape[1]], 3
    made.Rows, made.Columns = pixels.shape
    made.SamplesPerPixel, made.PhotometricInterpretation, made.PixelRepresentation = 1, "MONOCHROME2", 0
    made.BitsAllocated, made.BitsStored, made.HighBit = 16, 12, 11
    made.WindowCenter, made.WindowWidth = 128, 256
    made.PixelData = pixels.astype("<u2").tobytes()
    made["PixelData"].VR = "OW"
    return made


if __name__ == "__main__":
    main()
