"""What all DICOM results share: one-line errors without values, tags that viewers and validators ask for, and saving."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from reshift.data.dicom.header import Header, silence_pydicom
from reshift.errors import UserError
from reshift.inference.dicom_export.anonymise import mark_anonymised
from reshift.inference.dicom_export.identity import Identity
from reshift.inference.dicom_export.sources import is_placed, laterality, patient_orientation
from reshift.system.files import atomic_file

if TYPE_CHECKING:
    from pydicom.dataset import Dataset


@contextmanager
def making(path: Path) -> Iterator[None]:
    """A tag that highdicom misses in the sources becomes one line with its name; values are never quoted."""
    from pydicom.config import disable_value_validation

    silence_pydicom()
    try:
        with disable_value_validation():  # values of the source are passed on unchanged
            yield
    except UserError:
        raise
    except ImportError:
        raise UserError("DICOM results need the extra 'dicom'; run pip install 'reshift[dicom]'") from None
    except Exception as err:
        from pydicom.datadict import tag_for_keyword

        name = getattr(err, "name", None)
        why = f"its source has no {name}" if name and tag_for_keyword(name) else f"its source is not usable, {type(err).__name__}"
        raise UserError(f"{path}: could not be made ({why}); leave out DICOM results for it") from None


def describe(made: "Dataset", source: "Dataset") -> None:
    """Add what General Series and General Image ask for and highdicom leaves out; both may be empty, but not absent."""
    header = Header(Path(), source)
    if made.Modality != "SEG":  # a segmentation says in its segments where they lie
        made.Laterality = laterality(header)
    if not is_placed(source) and "PatientOrientation" not in made:
        made.PatientOrientation = patient_orientation(header, 0)


def save(path: Path, made: "Dataset", identity: Identity) -> None:
    """Write the file whole or not at all."""
    from pydicom.sr.codedict import codes

    with making(path):
        acquisition = codes.DCM.AcquisitionEquipment.value
        kept = [  # highdicom adds the scanner, with its station and institution
            item
            for item in made.get("ContributingEquipmentSequence", ())
            if item.PurposeOfReferenceCodeSequence[0].CodeValue != acquisition
        ]
        made.pop("ContributingEquipmentSequence", None)
        if kept:
            made.ContributingEquipmentSequence = kept
        for element in made.iterall():
            if element.keyword == "DimensionOrganizationUID":  # highdicom draws one at random
                element.value = identity.uid("dimensions", made.SOPClassUID)
        if identity.anonymised:
            mark_anonymised(made)
        with atomic_file(path) as file:  # not through memory: a map can have hundreds of megabytes
            made.save_as(file, enforce_file_format=True)
