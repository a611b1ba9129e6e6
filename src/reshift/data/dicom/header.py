"""Read DICOM headers safely: values are checked, and every error is one line without patient data.

Errors name the tag but never quote its value, because any field may contain text about the patient. For the same reason
pydicom's own warnings, which quote values, are silenced.
"""

import logging
import math
import warnings
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reshift.data.files import check_file
from reshift.errors import UserError

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

SUFFIXES = (".dcm", ".dicom", ".ima")
MAX_BYTES = 2**32  # of a deflated file after inflation
DAMAGED = "damaged or cut short? Remove it or copy it again"
_PREAMBLE = 128


@dataclass(frozen=True)
class Header:
    """The tags of one file, or of one item of a sequence in it."""

    path: Path
    tags: "Dataset"

    def value(self, tag: str) -> Any:
        """The value of ``tag``, None when it is absent or empty."""
        try:
            found = self.tags.get(tag)
        except Exception:  # pydicom converts on access and can raise anything on damaged values
            raise UserError(f"{self.path}: its {tag} cannot be read; {DAMAGED}") from None
        empty = found is None or (hasattr(found, "__len__") and len(found) == 0)
        return None if empty else found

    def _values(self, tag: str) -> list[Any]:
        found = self.value(tag)
        if found is None or isinstance(found, (str, bytes, int, float)):
            return [] if found is None else [found]
        try:
            return list(found)
        except TypeError:  # a damaged type code
            raise UserError(f"{self.path}: its {tag} is of the wrong type; {DAMAGED}") from None

    def numbers(self, tag: str, count: int | None = None) -> tuple[float, ...]:
        """Finite numbers, exactly ``count`` of them if given; empty when the tag is absent."""
        try:
            numbers = tuple(float(v) for v in self._values(tag))
        except (TypeError, ValueError):
            raise UserError(f"{self.path}: its {tag} is not a number; {DAMAGED}") from None
        if not all(math.isfinite(v) for v in numbers) or (numbers and count not in (None, len(numbers))):
            raise UserError(f"{self.path}: its {tag} does not hold {count or 'only'} finite numbers; {DAMAGED}")
        return numbers

    def number(self, tag: str) -> float | None:
        """The first finite number; None when the tag is absent."""
        numbers = self.numbers(tag)
        return numbers[0] if numbers else None

    def integer(self, tag: str, default: int | None = None) -> int:
        """A whole number; without a ``default`` the tag must be present."""
        number = self.number(tag)
        if number is None:
            if default is None:
                raise UserError(f"{self.path}: has no {tag}; it is not an image, or was damaged. Remove it or export it again")
            return default
        if number != int(number):
            raise UserError(f"{self.path}: its {tag} is not a whole number; {DAMAGED}")
        return int(number)

    def words(self, tag: str) -> tuple[str, ...]:
        """The values of a text tag, without surrounding blanks."""
        return tuple(str(v).strip() for v in self._values(tag))

    def item(self, tag: str, k: int) -> "Header | None":
        """Item ``k`` of a sequence; None if it does not exist."""
        from pydicom.sequence import Sequence

        found = self.value(tag)
        if found is not None and not isinstance(found, Sequence):
            raise UserError(f"{self.path}: its {tag} is not a sequence; {DAMAGED}")
        return Header(self.path, found[k]) if found is not None and k < len(found) else None


def is_dicom(path: Path) -> bool:
    """Whether ``path`` is a DICOM file, by its suffix or by its preamble. Only regular files are opened."""
    try:
        return path.suffix.lower() in SUFFIXES or (path.is_file() and _has_preamble(path))
    except OSError:
        return True  # nobody knows; reading it gives the reason


def _has_preamble(path: Path) -> bool:
    """Whether the file has the letters DICM after the preamble."""
    with path.open("rb") as file:
        return file.read(_PREAMBLE + 4)[_PREAMBLE:] == b"DICM"


def read_header(path: Path, tags: Iterable[str] | None = None, *, pixels: bool = False) -> Header:
    """Read the header of ``path``: all of it or only ``tags``, and with ``pixels`` the encoded pixel data too."""
    from pydicom import dcmread

    with user_errors(path):
        check_file(path)
        if not _has_preamble(path):
            raise UserError(f"{path}: not a DICOM file, or one without the preamble 'DICM'; remove it or export it again")
        _refuse_bomb(path)
        wanted = None if tags is None else list(tags)
        return Header(path, dcmread(path, stop_before_pixels=not pixels, specific_tags=wanted))


@contextmanager
def user_errors(path: Path) -> Iterator[None]:
    """Turn whatever pydicom or a decoder raises into one line that names the file and quotes nothing from it."""
    silence_pydicom()
    try:
        yield
    except UserError:
        raise
    except OSError as err:
        raise UserError(f"{path}: cannot be read ({err.strerror or type(err).__name__}); {DAMAGED}") from None
    except Exception as err:  # readers can raise anything on damaged bytes
        raise UserError(f"{path}: not a DICOM file we can read ({type(err).__name__}); {DAMAGED}") from None


def silence_pydicom() -> None:
    """Silence pydicom and highdicom: their warnings quote values, which may identify a patient."""
    for name in ("pydicom", "highdicom"):
        warnings.filterwarnings("ignore", module=rf"{name}(\.|$)")
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _refuse_bomb(path: Path) -> None:
    """Refuse a deflated file that inflates to an extreme size; its output is counted, not kept."""
    from pydicom.filereader import _read_file_meta_info, read_preamble
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    with path.open("rb") as file:
        if DeflatedExplicitVRLittleEndian.encode() not in file.read(2**12):  # quicker than parsing
            return
        file.seek(0)
        read_preamble(file, force=False)
        if _read_file_meta_info(file).get("TransferSyntaxUID") != DeflatedExplicitVRLittleEndian:
            return
        inflate, size = zlib.decompressobj(-zlib.MAX_WBITS), 0
        while not inflate.eof and (data := inflate.unconsumed_tail or file.read(2**16)):
            size += len(inflate.decompress(data, 2**20))
            if size > MAX_BYTES:
                raise UserError(f"{path}: inflates to more than {MAX_BYTES:,} bytes; refused, export it again uncompressed")
