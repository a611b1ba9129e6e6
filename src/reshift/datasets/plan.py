"""What a data set's file returns: a plan of cases to convert; and the functions that plans are made with."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.data.files import list_files
from reshift.errors import UserError

UNOPENED = (".7z", ".rar", ".tar.xz", ".tar.bz2", ".tar.zst", ".enc")  # archives that we do not open


class Settings(NamedTuple):
    """What decides the result, besides the source."""

    dataset: str
    seed: int
    size: int  # side of the images
    protocol: str
    fit: str  # "crop" or "pad", for images that are not square
    brain_masks: Path | None = None  # a folder of masks that another program has made

    def record(self) -> dict[str, Any]:
        """The settings without a path of the user's."""
        return {**self._asdict(), "brain_masks": self.brain_masks is not None}


class Sample(NamedTuple):
    """One image of the result."""

    name: str  # file name without suffix
    pixels: NDArray[np.uint8]  # (size, size)
    label: int
    split: str
    mask: NDArray[np.bool_] | None = None
    ignore: NDArray[np.bool_] | None = None
    note: str = ""


class CaseResult(NamedTuple):
    """What one case gives: images, and how many were left out by which rule."""

    samples: Sequence[Sample]
    left_out: Counter[str] = Counter()  # noqa: RUF012 (never added to)


@dataclass(frozen=True)
class SourceCase:
    """One volume or image of the source. ``key`` is unique; a ``subject`` is in one split only."""

    key: str
    subject: str
    files: tuple[Path, ...]
    convert: Callable[[], CaseResult]


@dataclass
class Plan:
    """What a source contains, before any pixel is read."""

    layout: str
    cases: list[SourceCase]
    expected: list[tuple[str, int, int]]  # what is counted, the published count, the count found
    rules: list[str]
    problems: list[str] = field(default_factory=list)  # cases that cannot be used; they count as failed
    notes: list[str] = field(default_factory=list)  # what a user should know
    extra: dict[str, Any] = field(default_factory=dict)  # more entries of dataset.json
    caveat: str | None = None  # why results on this data must not be taken at face value; every result is shown with it
    lacks_a_part: bool = False  # of what the protocol asks for; it may be in an archive beside the rest


class NotFoundError(UserError):
    """The source is not the data set, or not unpacked."""


PlanFunction = Callable[[list[Path], Path, Settings], Plan]


def list_source(source: Path) -> list[Path]:
    """Every file below ``source``, relative to it and sorted, without hidden ones."""
    if source.is_file():
        raise UserError(f"{source}: only .zip, .tar and .tar.gz archives are opened; unpack it and give its folder")
    if not source.is_dir():
        raise UserError(f"{source}: no such folder or archive; --source is the download, as a folder or an archive")
    return [path.relative_to(source) for path in list_files(source)]


def not_found_error(source: Path, title: str, wanted: Iterable[str], tree: Sequence[Path]) -> UserError:
    """The error that names the expected files, and an archive that should be unpacked first."""
    return NotFoundError(f"{source}: no {title} here; looked for {' or '.join(wanted)}{unopened(tree)}")


def unopened(tree: Sequence[Path]) -> str:
    """The end of an error where the missing files may be in an archive that we do not open."""
    packed = [path.as_posix() for path in tree if path.name.lower().endswith(UNOPENED)]
    return f"; unpack {packed[0]} first" if packed else ""


def by_name(paths: Iterable[Path], name_of: Callable[[Path], str], problems: list[str]) -> dict[str, Path]:
    """Files by name; of several with one name the first counts, and the others go to ``problems``."""
    found = dict[str, Path]()
    for path in paths:
        first = found.setdefault(name_of(path), path)
        if first is not path:
            problems.append(f"{path.as_posix()}: exists twice, {first.as_posix()} is used; remove one")
    return found


def shuffled(items: Iterable[str], seed: int) -> list[str]:
    """Sort by a hash of seed and item: the same order on every machine, whatever else is in the list."""
    return sorted(set(items), key=lambda item: hashlib.blake2b(f"{seed}\0{item}".encode()).digest())


def split_subjects(subjects: Iterable[str], seed: int, train: float = 0.75, val: float = 0.05) -> dict[str, str]:
    """Assign whole subjects to train, val and test; 1251 subjects become 938, 62 and 251."""
    order = shuffled(subjects, seed)
    a = int(train * len(order))
    b = a + int(val * len(order))
    return {s: "train" if i < a else "val" if i < b else "test" for i, s in enumerate(order)}


def safe_name(text: str) -> str:
    """Make a file name of ``text``: characters that cause trouble in shells, Windows or CSV become a dash."""
    return re.sub(r"-{2,}", "-", re.sub(r"[^A-Za-z0-9_.-]+", "-", text)).strip("-.")
