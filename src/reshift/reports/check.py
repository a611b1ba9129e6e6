"""``reshift check``: find everything that is wrong with a data set in one run, before training.

Problems (exit code 3) would stop training or spoil its result. Notes should be looked at: they may be fine.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import normpath
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.data.burned_in import QUANTILE, stroke_count, suspected
from reshift.data.cases import Case
from reshift.data.hashing import near_duplicates, perceptual_hash
from reshift.data.manifest import read_cases
from reshift.data.read import is_volume, open_volume, read_image, read_mask
from reshift.errors import UserError, reason
from reshift.system.cores import cores
from reshift.system.progress import progress
from reshift.system.workers import WorkerPool

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
    "volume_mask": "abnormal volumes without a mask, so that their abnormal slices are not known",
}
NOTES = {
    "duplicates": "groups of near-duplicates within a split",
    "text": "images with suspected burned-in text or marks",
    "no_mask": "abnormal test images without a mask; pixel metrics leave them out",
}
ADVICE = {  # what to do about each, on the page
    "manifest": "Correct the named lines; reshift train would refuse the manifest.",
    "missing": "Restore the files, or remove their rows.",
    "unreadable": "Export or download them again; remove them if they stay damaged.",
    "constant": "Remove them: they are blank, or their export failed.",
    "repeated": "Keep one row per file.",
    "abnormal_training": "Move them to the test split: training and thresholds take every image there for normal.",
    "subject_leak": "Give all images of a subject to one split; otherwise the test metrics are too good.",
    "duplicate_leak": "Keep each group in one split, and check whether the images are of one subject; otherwise the test "
    "metrics are too good.",
    "mask_size": "Export the mask on the grid of its image.",
    "mask_empty": "Draw the lesion, correct the label, or leave the mask out: an empty mask counts every found lesion as wrong.",
    "mask_on_normal": "Correct the label or the mask; one of them is wrong.",
    "volume_mask": "Add a mask, or label the abnormal slices as single images.",
    "duplicates": "Neighbouring slices of one subject are fine. Copies are not: they count twice in training and thresholds; "
    "keep one. If the files are of several subjects, check who they are.",
    "text": "Look whether abnormal images carry marks that normal ones lack: a detector then learns the marks. Crop or black "
    "them out in all splits alike, or report results without these images, too. The default method removes thin bright marks.",
    "no_mask": "Nothing to do if you need image metrics alone. For pixel metrics, add masks.",
}
CHANCE = 2 * (1 - QUANTILE)  # share of a group that may look marked by chance
READ_AHEAD = 16  # images


class Finding(NamedTuple):
    """One thing that is wrong, or worth a look."""

    kind: str
    images: tuple[str, ...]  # names of the cases
    text: str


@dataclass(frozen=True)
class ImageFacts:
    """Facts about one image; a few hundred bytes, so that a hundred thousand fit in memory."""

    size: tuple[int, ...]  # (H, W), or (S, H, W) of a volume
    channels: int
    bits: int
    low: float
    high: float
    hash: NDArray[np.uint64]
    strokes: int  # 0 for a volume: volumes have no burned-in text


@dataclass(frozen=True)
class CheckResult:
    """Everything found; ``facts`` has None for an image that could not be read."""

    source: str
    cases: list[Case]
    facts: list[ImageFacts | None]
    problems: list[Finding]
    notes: list[Finding]
    labelled: bool

    @property
    def healthy(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


def check(data: Path, *, name: str | None = None, quiet: bool = False) -> CheckResult:
    """Read every file of ``data``; a problem with one never stops the check."""
    reading = read_cases(data)
    problems = [Finding("manifest", (), text) for text in reading.mistakes]
    problems += _list_problems(reading.cases)
    facts: list[ImageFacts | None] = []
    with progress("checking", len(reading.cases), quiet=quiet) as advance, WorkerPool(threads=min(4, cores())) as pool:
        for one, found in pool.map(_check_case, reading.cases, READ_AHEAD):
            facts.append(one)
            problems += found
            advance()
    leaks, notes = _duplicates(reading.cases, facts)
    notes += _texts(reading.cases, facts)
    notes += [Finding("no_mask", (c.name,), "") for c in reading.cases if c.label == 1 and c.split == "test" and c.mask is None]
    order = list(PROBLEMS)
    problems = sorted(problems + leaks, key=lambda finding: order.index(finding.kind))
    return CheckResult(name or str(data), reading.cases, facts, problems, notes, reading.labelled)


def _list_problems(cases: Sequence[Case]) -> list[Finding]:
    """Problems that the list of images shows without opening a file."""
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


def _check_case(case: Case) -> tuple[ImageFacts | None, list[Finding]]:
    try:
        facts = _volume_facts(case.image) if is_volume(case.image) else _image_facts(case.image)
    except Exception as err:  # a damaged file may raise anything in a decoder: it becomes a finding
        return None, [_failure(case, case.image, err)]
    found = []
    if case.label == 1 and case.mask is None and len(facts.size) == 3:
        found.append(Finding("volume_mask", (case.name,), ""))
    for path in (case.mask, case.ignore):
        try:
            found += _mask_problems(case, path, facts) if path else []
        except Exception as err:
            found.append(_failure(case, path or case.image, err))
    return facts, found


def _failure(case: Case, path: Path, err: Exception) -> Finding:
    text = reason(err).removeprefix(f"{path}: ")
    kind = "constant" if isinstance(err, UserError) and text.startswith(("every pixel", "every voxel")) else "unreadable"
    if not path.exists():
        kind, text = "missing", ""
    where = f"mask {path.name}: " if path in (case.mask, case.ignore) else ""
    return Finding(kind, (case.name,), f"{where}{text}".removesuffix(": "))


def _image_facts(path: Path) -> ImageFacts:
    image = read_image(path)
    height, width, channels = image.pixels.shape
    plane = image.pixels.mean(-1, dtype=np.float32)
    low, high = float(image.pixels.min()), float(image.pixels.max())
    return ImageFacts((height, width), channels, image.bits, low, high, perceptual_hash(plane), stroke_count(plane))


def _volume_facts(path: Path) -> ImageFacts:
    volume = open_volume(path)
    slices, height, width = volume.voxels.shape
    middle = volume.plane(slices // 2)
    return ImageFacts((slices, height, width), 1, volume.bits, *volume.window, perceptual_hash(middle), 0)


def _mask_problems(case: Case, path: Path, facts: ImageFacts) -> list[Finding]:
    if len(facts.size) == 3:
        volume = open_volume(path)
        size: tuple[int, ...] = volume.voxels.shape
        marked = any(bool((volume.plane(k) >= 0.5).any()) for k in range(len(volume)))
    else:
        mask = read_mask(path)
        size, marked = mask.shape, bool(mask.any())
    if size != facts.size:
        return [Finding("mask_size", (case.name,), f"mask {size_text(size)}, image {size_text(facts.size)}")]
    if path == case.mask and bool(case.label) != marked:
        return [Finding("mask_empty" if case.label else "mask_on_normal", (case.name,), "")]
    return []


def size_text(size: Sequence[int]) -> str:
    """Width × height (× slices)."""
    return "×".join(str(n) for n in reversed(size))


def _duplicates(cases: Sequence[Case], facts: Sequence[ImageFacts | None]) -> tuple[list[Finding], list[Finding]]:
    """Groups of near-duplicates across splits, and within one."""
    read = [(case, one) for case, one in zip(cases, facts, strict=True) if one is not None]
    hashes = np.stack([one.hash for _, one in read]) if read else np.zeros((0, 4), np.uint64)
    across: list[Finding] = []
    within: list[Finding] = []
    for group in near_duplicates(hashes):
        members = [read[i][0] for i in group]
        if len({normpath(case.image) for case in members}) == 1:  # one file listed twice is a problem of its own kind
            continue
        splits = sorted({case.split for case in members})
        kind, to = ("duplicate_leak", across) if len(splits) > 1 else ("duplicates", within)
        members.sort(key=lambda case: case.split)
        to.append(Finding(kind, tuple(case.name for case in members), " and ".join(splits)))
    return across, within


def _texts(cases: Sequence[Case], facts: Sequence[ImageFacts | None]) -> list[Finding]:
    counts = [one.strokes if one else 0 for one in facts]
    normal = [(n, case.split) for n, case, one in zip(counts, cases, facts, strict=True) if one and case.label == 0]
    training = [n for n, split in normal if split == "train"]
    marked = suspected(counts, training or [n for n, _ in normal]).tolist()
    groups = [(case.split, case.label) for case in cases]
    some, all_ = Counter(group for group, sure in zip(groups, marked, strict=True) if sure), Counter(groups)
    if all(some[group] <= CHANCE * n for group, n in all_.items()):  # some normals are always above the limit
        return []
    return [Finding("text", (case.name,), "") for case, sure in zip(cases, marked, strict=True) if sure]
