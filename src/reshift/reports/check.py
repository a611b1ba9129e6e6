"""``reshift check``: everything that is wrong with a data set, and all of it, before anything is learned from it.

Problems (exit code 3) would stop training or spoil its result. Notes need a human eye: they may be fine.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from os.path import normpath
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.data.hashing import near_duplicates, perceptual_hash
from reshift.data.lenient import read_cases
from reshift.data.manifest import Case
from reshift.data.marks import QUANTILE, stroke_count, suspected
from reshift.data.read import is_volume, open_volume, read_mask, read_picture
from reshift.errors import UserError, reason
from reshift.system.cores import cores
from reshift.system.progress import progress

PROBLEMS = {
    "manifest": "mistakes in the list of images",
    "missing": "files that do not exist",
    "unreadable": "files that cannot be read",
    "constant": "images of one single value",
    "repeated": "images listed more than once",
    "abnormal_training": "abnormal images outside the test split",
    "subject_leak": "subjects in more than one split",
    "duplicate_leak": "groups of near-duplicates across splits",
    "mask_size": "masks of another size than their image",
    "mask_empty": "abnormal images whose mask is empty",
    "mask_on_normal": "normal images whose mask is not empty",
    "volume_mask": "abnormal volumes without a mask, which says in what slices the disease is",
}
NOTES = {
    "duplicates": "groups of near-duplicates within a split",
    "text": "images with suspected burned-in text or marks",
    "no_mask": "abnormal test images without a mask; pixel figures leave them out",
}
CHANCE = 2 * (1 - QUANTILE)  # share of a group that may look marked without being worth a word
AHEAD = 16  # images read ahead of the one looked at


class Finding(NamedTuple):
    """One thing that is wrong, or worth a look."""

    kind: str
    images: tuple[str, ...]  # names of the cases
    text: str


@dataclass(frozen=True)
class Look:
    """What one image is like; a few hundred bytes, so that a hundred thousand fit."""

    size: tuple[int, ...]  # (H, W), or (S, H, W) of a volume
    channels: int
    bits: int
    low: float
    high: float
    hash: NDArray[np.uint64]
    strokes: int  # 0 for a volume, which nobody writes into


@dataclass(frozen=True)
class Health:
    """The whole result: ``looks`` has None for an image that could not be read."""

    source: str
    cases: list[Case]
    looks: list[Look | None]
    problems: list[Finding]
    notes: list[Finding]
    labelled: bool

    @property
    def healthy(self) -> bool:
        """Whether nothing would stop or spoil a training."""
        return not self.problems


def check(data: Path, *, name: str | None = None, quiet: bool = False) -> Health:
    """Look at every file of ``data`` and never stop at the first problem."""
    reading = read_cases(data)
    problems = [Finding("manifest", (), text) for text in reading.mistakes]
    problems += _list_problems(reading.cases)
    looks: list[Look | None] = []
    with progress("checking", len(reading.cases), quiet=quiet) as advance:
        for look, found in _looked_at(reading.cases):
            looks.append(look)
            problems += found
            advance()
    leaks, notes = _duplicates(reading.cases, looks)
    notes += _texts(reading.cases, looks)
    notes += [Finding("no_mask", (c.name,), "") for c in reading.cases if c.label == 1 and c.split == "test" and c.mask is None]
    order = list(PROBLEMS)
    problems = sorted(problems + leaks, key=lambda finding: order.index(finding.kind))
    return Health(name or str(data), reading.cases, looks, problems, notes, reading.labelled)


def _list_problems(cases: Sequence[Case]) -> list[Finding]:
    """What can be told without opening a file."""
    found = [Finding("abnormal_training", (c.name,), f"in {c.split}") for c in cases if c.label == 1 and c.split != "test"]
    splits: dict[str, dict[str, str]] = {}
    for case in cases:
        splits.setdefault(case.subject, {}).setdefault(case.split, case.name)
    for subject, where in splits.items():
        if len(where) > 1:
            found.append(Finding("subject_leak", tuple(where.values()), f"{subject}: {', '.join(sorted(where))}"))
    times = Counter(normpath(case.image) for case in cases)
    first = {normpath(case.image): case.name for case in reversed(cases)}
    return found + [Finding("repeated", (first[path],), f"{n} times") for path, n in times.items() if n > 1]


def _looked_at(cases: Sequence[Case]) -> Iterator[tuple[Look | None, list[Finding]]]:
    """Look at each case, in order, on a few threads and never more than ``AHEAD`` images ahead."""
    with ThreadPoolExecutor(min(4, cores())) as pool:
        rest = iter(cases)
        waiting: deque[Future[tuple[Look | None, list[Finding]]]] = deque(pool.submit(_look, c) for c in islice(rest, AHEAD))
        try:
            while waiting:
                result = waiting.popleft().result()
                waiting.extend(pool.submit(_look, case) for case in islice(rest, 1))
                yield result
        finally:
            pool.shutdown(cancel_futures=True)


def _look(case: Case) -> tuple[Look | None, list[Finding]]:
    try:
        look = _volume(case.image) if is_volume(case.image) else _picture(case.image)
    except Exception as err:  # whatever a damaged file does to a decoder: it is listed, and the next one is looked at
        return None, [_failure(case, case.image, err)]
    found = []
    if case.label == 1 and case.mask is None and len(look.size) == 3:
        found.append(Finding("volume_mask", (case.name,), ""))
    for path in (case.mask, case.ignore):
        try:
            found += _mask_problems(case, path, look) if path else []
        except Exception as err:
            found.append(_failure(case, path or case.image, err))
    return look, found


def _failure(case: Case, path: Path, err: Exception) -> Finding:
    text = reason(err).removeprefix(f"{path}: ")
    kind = "constant" if isinstance(err, UserError) and text.startswith(("every pixel", "every voxel")) else "unreadable"
    if not path.exists():
        kind, text = "missing", ""
    where = f"mask {path.name}: " if path in (case.mask, case.ignore) else ""
    return Finding(kind, (case.name,), f"{where}{text}".removesuffix(": "))


def _picture(path: Path) -> Look:
    image = read_picture(path)
    height, width, channels = image.pixels.shape
    plane = image.pixels.mean(-1)
    low, high = float(image.pixels.min()), float(image.pixels.max())
    return Look((height, width), channels, image.bits, low, high, perceptual_hash(plane), stroke_count(plane))


def _volume(path: Path) -> Look:
    volume = open_volume(path)
    slices, height, width = volume.voxels.shape
    middle = volume.plane(slices // 2)
    return Look((slices, height, width), 1, volume.bits, *volume.window, perceptual_hash(middle), 0)


def _mask_problems(case: Case, path: Path, look: Look) -> list[Finding]:
    if len(look.size) == 3:
        volume = open_volume(path)
        size: tuple[int, ...] = volume.voxels.shape
        marked = any(bool((volume.plane(k) >= 0.5).any()) for k in range(len(volume)))
    else:
        mask = read_mask(path)
        size, marked = mask.shape, bool(mask.any())
    if size != look.size:
        return [Finding("mask_size", (case.name,), f"mask {times(size)}, image {times(look.size)}")]
    if path == case.mask and bool(case.label) != marked:
        return [Finding("mask_empty" if case.label else "mask_on_normal", (case.name,), "")]
    return []


def times(size: Sequence[int]) -> str:
    """Width × height (× slices), as people say it."""
    return "×".join(str(n) for n in reversed(size))


def _duplicates(cases: Sequence[Case], looks: Sequence[Look | None]) -> tuple[list[Finding], list[Finding]]:
    """Groups of near-duplicates across splits, and within one."""
    seen = [(case, look) for case, look in zip(cases, looks, strict=True) if look is not None]
    hashes = np.stack([look.hash for _, look in seen]) if seen else np.zeros((0, 4), np.uint64)
    across: list[Finding] = []
    within: list[Finding] = []
    for group in near_duplicates(hashes):
        members = [seen[i][0] for i in group]
        if len({normpath(case.image) for case in members}) == 1:  # one file listed twice: that is told elsewhere
            continue
        splits = sorted({case.split for case in members})
        kind, to = ("duplicate_leak", across) if len(splits) > 1 else ("duplicates", within)
        members.sort(key=lambda case: case.split)
        to.append(Finding(kind, tuple(case.name for case in members), " and ".join(splits)))
    return across, within


def _texts(cases: Sequence[Case], looks: Sequence[Look | None]) -> list[Finding]:
    counts = [look.strokes if look else 0 for look in looks]
    normal = [(n, case.split) for n, case, look in zip(counts, cases, looks, strict=True) if look and case.label == 0]
    learned = [n for n, split in normal if split == "train"]
    marked = suspected(counts, learned or [n for n, _ in normal]).tolist()
    groups = [(case.split, case.label) for case in cases]
    some, all_ = Counter(group for group, sure in zip(groups, marked, strict=True) if sure), Counter(groups)
    if all(some[group] <= CHANCE * n for group, n in all_.items()):  # some normals are always above what is usual
        return []
    return [Finding("text", (case.name,), "") for case, sure in zip(cases, marked, strict=True) if sure]
