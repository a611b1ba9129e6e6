"""List folders and check files. A folder that cannot be listed is an error: its images would be missing without a message."""

import os
import stat
from pathlib import Path
from typing import NoReturn

from reshift.errors import UserError


def list_files(folder: Path, without: Path | None = None) -> list[Path]:
    """Return every file under ``folder``, sorted. Hidden files and folders are left out, links to folders not followed.

    The folder ``without``, where it lies under ``folder``, is left out, too.
    """
    found: list[Path] = []
    left_out = without.resolve() if without is not None else None
    for root, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if left_out is not None and left_out.name in folders and Path(root).resolve() == left_out.parent:
            folders.remove(left_out.name)
        found += [Path(root, name) for name in files if not name.startswith(".")]
    return sorted(found)


def list_folders(folder: Path) -> list[Path]:
    """Return the folders in ``folder``, sorted, without hidden ones."""
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries if not entry.name.startswith(".") and entry.is_dir())
    except OSError as err:
        _refuse(err)


def check_file(path: Path) -> None:
    """Refuse what is missing, empty, or not a regular file: opening a pipe or a device could wait for ever."""
    try:
        about = path.stat()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as err:
        raise UserError(f"{path}: cannot be read ({err.strerror}); make it readable, or move it away") from None
    if not stat.S_ISREG(about.st_mode):
        raise UserError(f"{path}: is not a regular file; give an image file, or the folder of a DICOM series")
    if about.st_size == 0:
        raise UserError(f"{path}: the file is empty (0 bytes); remove it or copy it again")


def _refuse(err: OSError) -> NoReturn:
    raise UserError(f"{err.filename}: cannot be listed ({err.strerror}); make it readable, or move it away") from err
