"""UIDs from outside: checked before they are used, and hashed before they name a file, because they lead to a patient."""

import hashlib
import re

from reshift.errors import UserError

_UID = re.compile(r"[0-9]+(\.[0-9]+)*")  # leading zeros are against the standard, but in the archives
_CODE = re.compile(r"[A-Z0-9]{1,6}")


def is_uid(text: object) -> bool:
    """Whether it can be a UID: numbers and points, at most 64 characters."""
    return isinstance(text, str) and len(text) <= 64 and _UID.fullmatch(text) is not None


def checked_uid(text: str) -> str:
    """A UID that a user gave."""
    if not is_uid(text):
        raise UserError(f"study '{text}' is not a UID; it needs numbers and points, at most 64 characters")
    return text


def series_name(study: str, series: str, modality: str) -> str:
    """What a series is called in files and messages: its modality and a hash."""
    return f"{modality_code(modality)}-{_digest(f'{study}/{series}')}"


def modality_code(text: str) -> str:
    """A modality, or XX: anything else may be typed text."""
    return text if _CODE.fullmatch(text) else "XX"


def instance_name(sop: str) -> str:
    """The file name of an instance."""
    return f"{_digest(sop)}.dcm"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
