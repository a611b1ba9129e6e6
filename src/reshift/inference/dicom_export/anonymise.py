"""Anonymised DICOM results: sources are reduced to what results need before anything is made of them.

Follows the Basic Application Level Confidentiality Profile (PS3.15 E.1) as far as it applies to the objects we write. Not a
list of tags that go, but of tags that stay: what nobody thought of is gone, too. New UIDs and pseudonyms are keyed hashes of
the old ones: a patient has the same in every run with the same key file, and without it nobody can check a guess.
"""

import hashlib
import hmac
import json
import os
import secrets
import threading
import uuid
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reshift.errors import UserError
from reshift.inference.dicom_export.sources import EMPTY
from reshift.system.files import append_bytes, json_line, writing

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

UIDS = ("StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID", "FrameOfReferenceUID")  # replaced
KEPT = (  # about pixels and their place; nothing of the patient, the people, the places or the times
    *("SOPClassUID", "Modality", "ImageType", "Rows", "Columns", "NumberOfFrames"),
    *("SamplesPerPixel", "PhotometricInterpretation"),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PlanarConfiguration", "LossyImageCompression"),
    *("PixelSpacing", "ImagerPixelSpacing", "NominalScannedPixelSpacing", "SliceThickness", "SpacingBetweenSlices"),
    *("ImagePositionPatient", "ImageOrientationPatient", "PatientOrientation", "Laterality", "ImageLaterality"),
    *("BurnedInAnnotation", "PositionReferenceIndicator", "InstanceNumber", "SharedFunctionalGroupsSequence"),
    "PerFrameFunctionalGroupsSequence",
)
GROUPS = {  # of functional groups: what results read
    "PlanePositionSequence": ("ImagePositionPatient",),
    "PlaneOrientationSequence": ("ImageOrientationPatient",),
    "PixelMeasuresSequence": ("PixelSpacing", "SliceThickness", "SpacingBetweenSlices"),
}
DUMMY_DATE, DUMMY_TIME = "19000101", "000000"  # where DICOM demands one


class Key:
    """Pseudonyms and new UIDs, kept in a file that only its owner can read: a line with the secret, then a line per name."""

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, threading.Lock()
        self._known = set[str]()
        try:
            self._secret = self._read()
        except FileNotFoundError:
            self._secret = secrets.token_bytes(32)
            self._create()
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            raise UserError(f"{path}: is not a key file of reshift, or damaged; choose another name for --anonymise") from None

    def _read(self) -> bytes:
        """The secret; a line that a kill cut short is removed."""
        raw = self.path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        first, *lines = (json.loads(line) for line in whole.splitlines())
        secret = bytes.fromhex(first["secret"])
        self._known = {line["new"] for line in lines}
        self.path.chmod(0o600)
        if whole != raw:
            os.truncate(self.path, len(whole))
        return secret

    def _create(self) -> None:
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(json_line({"reshift": "key", "secret": self._secret.hex()}))
                file.flush()
                os.fsync(file.fileno())

    def anonymise(self, sources: "Sequence[Dataset]") -> "list[Dataset]":
        """Sources without the patient; who it was goes into the key file before any result exists."""
        with self._lock:
            lines: dict[str, dict[str, Any]] = {}
            made = [self._anonymised(source, lines) for source in sources]
            new = [line for name, line in lines.items() if name not in self._known]
            if not self.path.exists():  # removed meanwhile
                self._create()
                new = list(lines.values())
            with writing(self.path), self.path.open("ab", buffering=0) as file:
                append_bytes(file, b"".join(json_line(line) for line in new))
                os.fsync(file.fileno())
            self._known.update(lines)
            return made

    def _anonymised(self, source: "Dataset", lines: dict[str, dict[str, Any]]) -> "Dataset":
        from pydicom.dataset import Dataset, FileMetaDataset

        made = Dataset()
        for tag in (tag for tag in KEPT if tag in source):
            made[tag] = source[tag]
        for tag in ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"):
            if tag in source:
                setattr(made, tag, [_reduced(item) for item in source[tag].value])
        for tag in EMPTY:
            setattr(made, tag, None)
        patient = {tag: str(source.get(tag) or "") for tag in EMPTY}
        alias = f"ANON-{self._hash('patient', patient['PatientID'] or patient['PatientName']).hex()[:12].upper()}"
        made.PatientName = made.PatientID = alias
        study = str(source.StudyInstanceUID)
        for tag in (tag for tag in UIDS if tag in source):
            old = str(source[tag].value)
            setattr(made, tag, self.uid(old))
            lines[self.uid(old)] = {"new": self.uid(old), "old": old, "tag": tag}
        lines[self.uid(study)] |= {"patient": alias, **patient}
        made.file_meta = FileMetaDataset()
        made.file_meta.TransferSyntaxUID = source.file_meta.TransferSyntaxUID
        return made

    def uid(self, old: str) -> str:
        """The new UID of ``old``."""
        return f"2.25.{uuid.UUID(bytes=self._hash('uid', old)[:16], version=4).int}"

    def _hash(self, kind: str, text: str) -> bytes:
        return hmac.digest(self._secret, f"{kind}\n{text}".encode("utf-8", "surrogatepass"), hashlib.sha256)


def _reduced(item: "Dataset") -> "Dataset":
    """A functional group item with what results read."""
    from pydicom.dataset import Dataset

    made = Dataset()
    for name, tags in GROUPS.items():
        if name in item:
            inner = Dataset()
            for tag in (tag for tag in tags if tag in item[name].value[0]):
                inner[tag] = item[name].value[0][tag]
            setattr(made, name, [inner])
    return made


def mark_anonymised(made: "Dataset") -> None:
    """Say so in a result, and take out the times at which it was made: they tell when the patient was there."""
    from pydicom.dataset import Dataset

    made.PatientIdentityRemoved, made.LongitudinalTemporalInformationModified = "YES", "REMOVED"
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator = "113100", "DCM"
    item.CodeMeaning = "Basic Application Confidentiality Profile"
    made.DeidentificationMethodCodeSequence = [item]
    for element in made.iterall():
        if element.VR == "DA" and element.value:
            element.value = DUMMY_DATE
        elif element.VR == "TM" and element.value:
            element.value = DUMMY_TIME
        elif element.VR == "DT" and element.value:
            element.value = DUMMY_DATE + DUMMY_TIME
    for tag in ("TimezoneOffsetFromUTC", "InstanceCreationDate", "InstanceCreationTime", "SeriesDate", "SeriesTime"):
        made.pop(tag, None)


@cache
def open_key(path: Path) -> Key:
    """The key in ``path``, made if there is none."""
    return Key(path)
