"""Scans whose every text is a canary, and a search for it in whatever a command leaves behind."""

import base64
import gzip
import io
import re
import zipfile
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
from dicom_files import ct, values, write
from nibabel.nifti1 import Nifti1Extension
from pydicom.dataset import Dataset

CANARY = "Zyzzogeton"  # in no dictionary and in no file of ours
DATE, TIME, UID = "19370519", "032117", "1.2.826.0.1.3680043.8.498.4242"
ALL = (CANARY, CANARY.upper(), DATE, UID, "1937-05-19", "1937, 5, 19")
TEXT_TAGS = (
    "PatientName", "PatientID", "OtherPatientIDs", "PatientAddress", "PatientComments",
    "AdditionalPatientHistory", "ReferringPhysicianName", "PhysiciansOfRecord", "PerformingPhysicianName",
    "OperatorsName", "InstitutionName", "InstitutionAddress", "DeviceSerialNumber", "StudyDescription", "SeriesDescription",
    "ProtocolName", "ImageComments", "RequestedProcedureDescription", "PatientMotherBirthName", "IssuerOfPatientID",
    "SoftwareVersions", "ManufacturerModelName", "Manufacturer", "RequestingPhysician", "AcquisitionComments",
    "CountryOfResidence", "RegionOfResidence", "MilitaryRank", "PatientReligiousPreference",
)  # fmt: skip
SHORT_TAGS = (
    "EthnicGroup",
    "Occupation",
    "PatientTelephoneNumbers",
    "StationName",
    "AccessionNumber",
    "StudyID",
    "BodyPartExamined",
)  # of at most 16 letters
DATE_TAGS = ("PatientBirthDate", "StudyDate", "SeriesDate", "AcquisitionDate", "ContentDate", "InstanceCreationDate")


def fill(ds: Dataset) -> Dataset:
    """Put the canary wherever text can be."""
    for tag in TEXT_TAGS:
        setattr(ds, tag, f"{CANARY} {tag}"[:32])
    for tag in SHORT_TAGS:
        setattr(ds, tag, CANARY.upper())
    for tag in DATE_TAGS:
        setattr(ds, tag, DATE)
    item = Dataset()
    item.RequestedProcedureID, item.ScheduledProcedureStepDescription = CANARY, CANARY
    ds.RequestAttributesSequence = [item]
    block = ds.private_block(0x0029, CANARY, create=True)
    block.add_new(0x01, "LO", CANARY)
    return ds


def full_series(folder: Path, count: int = 3, **tags: Any) -> None:
    """A series full of patient data, in pixels of noise."""
    for k in range(count):
        ds = ct(values(k), (0.0, 0.0, 2.5 * k), SeriesInstanceUID=f"{UID}.1", StudyInstanceUID=f"{UID}.2", **tags)
        ds.SOPInstanceUID, ds.FrameOfReferenceUID = f"{UID}.3.{k + 1}", f"{UID}.4"
        write(fill(ds), folder / f"{k}.dcm")


def full_nifti(path: Path, seed: int = 0, *, lesion: bool = False) -> None:
    """A volume with canaries in every text of its header and in an extension."""
    array = np.random.default_rng(seed).integers(0, 300, (24, 24, 4)).astype(np.int16)
    array[6:12, 6:12, 1:3] += 900 * lesion
    image = nibabel.Nifti1Image(array, np.diag([1.0, 1.0, 3.0, 1.0]))
    for name in ("descrip", "aux_file", "intent_name", "db_name", "data_type"):
        image.header[name] = CANARY.encode()
    image.header.extensions.append(Nifti1Extension("comment", CANARY.encode()))
    path.parent.mkdir(parents=True, exist_ok=True)
    image.to_filename(path)


def leaks(root: Path, text: str, allowed: tuple[str, ...] = ()) -> list[str]:
    """Where a canary is found: in names and contents of files under ``root``, however packed, and in ``text``."""
    found = ["output"] if _has(text.encode()) else []
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root).as_posix()
        if _has(inside.encode()):
            found.append(f"name {inside}")
        if path.is_file() and path.suffix not in allowed and any(_has(part) for part in _unpacked(path.read_bytes())):
            found.append(inside)
    return found


def _has(data: bytes) -> bool:
    return any(canary.encode() in data for canary in ALL) or any(canary.encode("utf-16-le") in data for canary in ALL)


def _unpacked(data: bytes) -> list[bytes]:
    """The bytes as they are, and what is inside a gzip or zip file or in base64."""
    parts = [data]
    if data[:2] == b"\x1f\x8b":
        parts.append(gzip.decompress(data))
    if data[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            parts += [archive.read(name) for name in archive.namelist()]
    if data[128:132] == b"DICM":
        parts.append(str(pydicom.dcmread(io.BytesIO(data))).encode())
    parts += [base64.b64decode(text[: len(text) // 4 * 4]) for text in re.findall(rb"[A-Za-z0-9+/]{40,}", data[: 2**22])[:2000]]
    return parts
