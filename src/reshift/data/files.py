"""List folders. A folder that cannot be listed is an error: its images would be missing without a message."""

import os
from pathlib import Path
from typing import NoReturn

from reshift.errors import UserError


def list_files(folder: Path) -> list[Path]:
    """Return every file under ``folder``, sorted. Hidden files and folders are left out, links to folders not followed."""
    found: list[Path] = []
    for root, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(root, name) for name in files if not name.startswith(".")]
    return sorted(found)


def list_folders(folder: Path) -> list[Path]:
    """Return the folders in ``folder``, sorted, without hidden ones."""
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries if not entry.name.startswith(".") and entry.is_dir())
    except OSError as err:
        _refuse(err)


def _refuse(err: OSError) -> NoReturn:
    raise UserError(f"{err.filename}: cannot be listed ({err.strerror}); make it readable, or move it away") from err
