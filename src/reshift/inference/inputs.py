"""What ``reshift score`` is given: files, folders, manifests and DICOM series → cases, each with a name for its results."""

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from reshift.data.manifest import load_cases
from reshift.data.nifti import SUFFIXES as NIFTI
from reshift.data.read import Input, is_volume, list_inputs
from reshift.errors import UserError


class ScoreCase(NamedTuple):
    """One file or DICOM series to score; ``name`` is where its heat-map and overlay go, unique within the run."""

    input: Input
    name: str

    @property
    def path(self) -> Path:
        """What it is reported under."""
        return self.input.path

    @property
    def volume(self) -> bool:
        """Whether it is surely scored slice by slice; a DICOM file may turn out to be."""
        return self.input.series is not None or is_volume(self.path)


def find_cases(inputs: Sequence[Path]) -> list[ScoreCase]:
    """Expand files, folders and manifests. Two files of one name in different folders get different result names."""
    cases: list[ScoreCase] = []
    seen, taken, folders = set[str](), set[str](), dict[str, str]()
    for given in inputs:
        full = given.resolve()  # "." and ".." have no name of their own
        for found, name in _expand(given, full.stem if full.is_file() else full.name):
            real = _real_path(found.path, folders)
            if real not in seen:  # a file named twice is scored once
                seen.add(real)
                wanted = _nifti_name(name) if ScoreCase(found, name).volume else name
                cases.append(ScoreCase(found, free_name(wanted, taken)))
    return cases


def free_name(name: str, taken: set[str]) -> str:
    """Return ``name``, or the first of ``a~2.png``, ``a~3.png``, … that is not taken, and take it."""
    path, count, free = PurePosixPath(name), 1, name
    suffix = ".nii.gz" if name.endswith(".nii.gz") else path.suffix
    while free in taken:
        count += 1
        free = path.with_name(f"{path.name.removesuffix(suffix)}~{count}{suffix}").as_posix()
    taken.add(free)
    return free


def _expand(given: Path, root: str) -> list[tuple[Input, str]]:
    listed = any((given / name).is_file() for name in ("manifest.csv", "data.json"))
    if listed or given.suffix.lower() in (".csv", ".json"):
        cases = load_cases(given)
        chosen = [case for case in cases if case.split == "test"] or cases
        return [(Input(case.image), _inside(f"{root}/{case.name}")) for case in chosen]
    if given.is_dir():
        found = list_inputs(given)
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


def _inside(name: str) -> str:
    """A manifest may point above itself; its results must not land above the output folder."""
    return "/".join("up" if part == ".." else part for part in name.split("/") if part not in ("", "."))
