"""What ``reshift score`` is given: files, folders, manifests and DICOM series → cases, each with a name for its results."""

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from reshift.data.archive import archive_names
from reshift.data.dicom.header import SUFFIXES as DICOM
from reshift.data.files import list_files
from reshift.data.manifest import load_cases
from reshift.data.nifti import SUFFIXES as NIFTI
from reshift.data.raster import SUFFIXES as RASTER
from reshift.data.read import Input, is_volume, list_inputs
from reshift.errors import UserError

MAX_NAME = 240  # bytes of a result's name or folder; file systems allow 255


RESULTS = ("maps", "overlays", "dicom", "previews")  # folders in the output folder


class Content(NamedTuple):
    """Tells whether an input is still the one that was scored."""

    size: int  # bytes of all its files
    modified: int  # when a file was last changed, in nanoseconds since 1970
    sha256: str | None = None  # of all its files; None where it was not computed


class ScoreCase(NamedTuple):
    """One file or DICOM series to score; ``name`` is where its heat-map and overlay go, unique within the run."""

    input: Input
    name: str
    source: str  # what it is reported under: its path, or ARCHIVE.zip!NAME
    content: Content | None = None  # once it is read

    @property
    def path(self) -> Path:
        """Where it is read."""
        return self.input.path

    @property
    def volume(self) -> bool:
        """Whether it is surely scored slice by slice; a DICOM file may turn out to be."""
        return self.input.series is not None or is_volume(self.path)

    @property
    def files(self) -> list[Path]:
        """All that it is read from."""
        if self.input.series is not None:
            return sorted(self.input.series.files)
        return list_files(self.path) if self.path.is_dir() else [self.path]

    def with_content(self) -> "ScoreCase":
        """The same, with its content. Call it before the case is read: what changes meanwhile is then noticed later."""
        try:
            return self._replace(content=read_content(self.files))
        except OSError:  # the reader has a better message
            return self


def file_content(files: Sequence[Path]) -> Content:
    """Size and time of change, without reading the files."""
    about = [path.stat() for path in files]
    if not all(stat.S_ISREG(one.st_mode) for one in about):  # reading a pipe could wait for ever
        raise OSError("not a regular file")
    return Content(sum(one.st_size for one in about), max((one.st_mtime_ns for one in about), default=0))


def read_content(files: Sequence[Path]) -> Content:
    """Size, time of change and hash."""
    content, digest = file_content(files), hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                digest.update(part)
    return content._replace(sha256=digest.hexdigest())


def find_cases(inputs: Sequence[Path], notes: list[str] | None = None, out: Path | None = None) -> list[ScoreCase]:
    """Expand files, folders and manifests. Two files of one name in different folders get different result names.

    ``notes`` get a line about files in folders that are no cases. What lies in the output folder ``out`` is no case.
    """
    cases: list[ScoreCase] = []
    seen, taken, folders = set[str](), set[str](), dict[str, str]()
    for given in inputs:
        full = given.resolve()  # "." and ".." have no name of their own
        if out is not None and _would_grow(full, out.resolve()):
            raise UserError(f"{given}: --out {out} would put results among these images; choose another --out")
        for found, name in _expand(given, full.stem if full.is_file() else full.name, notes, out):
            real = _real_path(found.path, folders)
            if real not in seen:  # a file named twice is scored once
                seen.add(real)
                case = ScoreCase(found, name, archive_names(str(found.path)))
                wanted = _nifti_name(name) if case.volume else name
                cases.append(case._replace(name=free_name(_shorten(wanted), taken)))
    return cases


def _would_grow(folder: Path, out: Path) -> bool:
    """Whether results in ``out`` would be among the images of ``folder``, and so be scored by the next run."""
    return folder.is_dir() and (folder == out or any(out / name in (folder, *folder.parents) for name in RESULTS))


def result_stem(name: str) -> str:
    """The name of a case or of its heat-map without endings (``a/scan.png.npy`` → ``a/scan``); overlays are named by it."""
    stem = name.removesuffix(".npy").removesuffix(".nii.gz")
    ending = PurePosixPath(stem).suffix
    return stem.removesuffix(ending) if ending.lower() in (*RASTER, *DICOM) else stem


def free_name(name: str, taken: set[str]) -> str:
    """Return ``name``, or the first of ``a~2.png``, ``a~3.png``, … whose stem is not taken, and take that stem."""
    path, count, free = PurePosixPath(name), 1, name
    suffix = ".nii.gz" if name.endswith(".nii.gz") else path.suffix
    while result_stem(free) in taken:
        count += 1
        free = path.with_name(f"{path.name.removesuffix(suffix)}~{count}{suffix}").as_posix()
    taken.add(result_stem(free))
    return free


def _expand(given: Path, root: str, notes: list[str] | None, out: Path | None) -> list[tuple[Input, str]]:
    listed = any((given / name).is_file() for name in ("manifest.csv", "data.json"))
    if listed or given.suffix.lower() in (".csv", ".json"):
        cases = load_cases(given)
        chosen = [case for case in cases if case.split == "test"] or cases
        return [(Input(case.image), _inside(f"{root}/{case.name}")) for case in chosen]
    if given.is_dir():
        found = list_inputs(given, notes, without=out)
        if not found:
            raise UserError(f"{given}: no PNG, JPEG, TIFF, NIfTI or DICOM images in this folder")
        return [(item, _inside(f"{root}/{item.path.relative_to(given).as_posix()}")) for item in found]
    if not given.exists():
        raise UserError(f"{given}: no such file or folder")
    return [(Input(given), f"{root}{given.suffix}")]


def _real_path(path: Path, folders: dict[str, str]) -> str:
    """``realpath``, with one system call per file: a million files share a few thousand folders."""
    folder, name = os.path.split(path)
    if name in ("", ".", "..") or path.is_symlink():
        return os.path.realpath(path)
    if folder not in folders:
        folders[folder] = os.path.realpath(folder)
    return f"{folders[folder]}/{name}"


def _nifti_name(name: str) -> str:
    """The heat-map of a volume is a .nii.gz, whatever the volume was."""
    known = next((suffix for suffix in NIFTI if name.lower().endswith(suffix)), "")
    return f"{name[: len(name) - len(known)]}.nii.gz"


def _shorten(name: str) -> str:
    """Leave room for ``.npy``, ``.png`` and ``~2``: an overlong part of the name becomes its beginning and a hash of it."""
    parts = name.split("/")
    for i, part in enumerate(parts):
        raw = part.encode("utf-8", "surrogatepass")
        if len(raw) > MAX_NAME:
            beginning, suffix = raw[: MAX_NAME - 24].decode("utf-8", "ignore"), ".nii.gz" if part.endswith(".nii.gz") else ""
            parts[i] = f"{beginning}-{hashlib.sha256(raw).hexdigest()[:16]}{suffix}"
    return "/".join(parts)


def _inside(name: str) -> str:
    """A manifest may point above itself; its results must not land above the output folder."""
    return "/".join("up" if part == ".." else part for part in name.split("/") if part not in ("", "."))
