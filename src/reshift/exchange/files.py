"""Which files a shared bundle has, and the list of their checksums."""

import hashlib
import re
from pathlib import Path
from typing import Any, NamedTuple

from reshift.config import read_json
from reshift.errors import UserError

CHECKSUMS = "checksums.json"
FILES = ("model.safetensors", "config.json", "calibration.json", "README.md")  # calibration.json may be missing
ALLOWED = (".safetensors", ".json", ".md")
IGNORED = (".gitattributes",)  # the hub adds it
MAX_LIST = 2**20  # bytes of checksums.json
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")
REMEDY = "take a bundle that 'reshift push' made"


class Listed(NamedTuple):
    """What the list says of a file."""

    sha256: str
    size: int


def refuse_strangers(where: str, names: list[str]) -> None:
    """Only weights, settings and text: what could hold code is refused before anything is downloaded."""
    for name in names:
        if name not in IGNORED and not (NAME.fullmatch(name) and name.lower().endswith(ALLOWED)):
            raise UserError(f"{where}: holds {name!r}, which is not safetensors, JSON or Markdown; {REMEDY}")


def list_files(folder: Path) -> dict[str, Any]:
    """The content of checksums.json for what lies in ``folder``."""
    files = {}
    for name in FILES:
        if (folder / name).is_file():
            data = (folder / name).read_bytes()
            files[name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    return {"format": 1, "files": files}


def parse_list(where: str, data: bytes) -> dict[str, Listed]:
    """The files that a list names; a list that we did not write is refused."""
    try:
        files = read_json(data)["files"]
        found = {str(name): Listed(str(about["sha256"]), int(about["bytes"])) for name, about in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{where}: its {CHECKSUMS} is damaged; {REMEDY}") from None
    refuse_strangers(where, list(found))
    missing = {"model.safetensors", "config.json"} - set(found)
    if missing:
        raise UserError(f"{where}: its {CHECKSUMS} does not name {sorted(missing)[0]}; {REMEDY}")
    return found


def verify(where: str, name: str, data: bytes, listed: Listed) -> None:
    """Whether a file is whole and the one that was pushed."""
    if len(data) != listed.size:
        raise UserError(f"{where}: {name} has {len(data):,} bytes instead of {listed.size:,}; try again")
    if hashlib.sha256(data).hexdigest() != listed.sha256:
        raise UserError(f"{where}: {name} is not the file that was pushed (its SHA-256 differs); do not use it")
