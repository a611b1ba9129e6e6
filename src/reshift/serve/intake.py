"""In a reader process: unpack what was uploaded, find its cases, and refuse an upload in which nothing can be read."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from reshift.config import DataConfig
from reshift.data.archive import ARCHIVES, unpack_into
from reshift.data.dicom.header import is_dicom
from reshift.data.files import list_files
from reshift.data.prepare import prepare
from reshift.data.read import open_input
from reshift.data.volume import Volume
from reshift.errors import UserError, reason
from reshift.inference.inputs import ScoreCase, find_cases
from reshift.serve.store import IMAGES

MAX_REFUSED = 50  # files that cannot be read before the rest is taken on trust; scoring records every one


def roots(folder: Path) -> list[Path]:
    """What ``score`` is given of an upload: its only file, which is then refused by name, or its folder.

    Never a list of images: the files that it names would not be the sender's.
    """
    files = list_files(folder)
    return files if len(files) == 1 and (files[0].name.lower().endswith(IMAGES) or is_dicom(files[0])) else [folder]


def shown(text: str, *folders: Path) -> str:
    """A message without the server's own paths: files are named as they were sent."""
    for folder in folders:
        text = text.replace(f"{folder}/", "").replace(str(folder), "the upload")
    return text


def examine_upload(folder: Path, names: Iterable[str], data: dict[str, Any], max_files: int, max_bytes: int) -> dict[str, Any]:
    """Check types, unpack zip files and look at the cases: their number, and notes or reasons."""
    try:
        for name in names:
            _check_type(folder / name)
            if name.lower().endswith(".zip"):
                _unpack(folder / name, max_files, max_bytes)
        if len(files := list_files(folder)) > max_files:
            raise UserError(f"{len(files):,} files in one job, over the limit of {max_files:,}; send fewer at a time")
        return examine(roots(folder), data, folder)
    except UserError as err:
        raise UserError(shown(str(err), folder)) from None


def examine(inputs: list[Path], data: dict[str, Any], hidden: Path, max_cases: int | None = None) -> dict[str, Any]:
    """Find the cases of files that are on the server, and read until one of them can be scored."""
    notes, refused, config = list[str](), list[str](), DataConfig(**data)
    try:
        cases = find_cases(inputs, notes)
    except UserError as err:
        raise UserError(shown(str(err), hidden)) from None
    if max_cases is not None and len(cases) > max_cases:
        raise UserError(f"{len(cases):,} cases in one job, over the limit of {max_cases:,}; name a smaller folder")
    for case in cases[:MAX_REFUSED]:
        try:
            _read(case, config)
            break
        except Exception as err:
            refused.append(shown(reason(err), hidden))
    return {
        "cases": len(cases),
        "notes": [shown(note, hidden) for note in notes],
        "refused": refused if len(refused) == len(cases) else [],
    }


def _read(case: ScoreCase, config: DataConfig) -> None:
    """Read a case as scoring does."""
    found = open_input(*case.input)
    if isinstance(found, Volume):
        found.foreground_slices(config.min_foreground)
        found = found.image(len(found) // 2)
    prepare(found, config)


def _check_type(path: Path) -> None:
    name = path.name.lower()
    if name.endswith(ARCHIVES) and not name.endswith((".nii.gz", ".zip")):
        raise UserError(f"{path}: only .zip archives are opened; unpack this one and give its folder")
    if not name.endswith((*IMAGES, ".zip")) and not is_dicom(path):
        raise UserError(f"{path}: is none of the files we read; send PNG, JPEG, TIFF, NIfTI or DICOM, or a zip of them")


def _unpack(path: Path, max_files: int, max_bytes: int) -> None:
    """In place of the zip file, a folder of its name."""
    target = path.with_suffix("")
    while target.exists():
        target = target.with_name(f"{target.name}~")
    unpack_into(path, target, max_files, max_bytes)
    path.unlink()
