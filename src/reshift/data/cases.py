"""A case is one image with its labels. Here is what is done with lists of cases: splits, folds, slices, fingerprints."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from reshift.config import DataConfig
from reshift.data.read import is_volume, open_volume, read_mask
from reshift.errors import UserError

SPLITS = ("train", "val", "test")
ENOUGH = 20  # subjects: thresholds from fewer than 19 cannot promise that at most 5 % of normal images are flagged
MIN_SHARE, MAX_SHARE = 0.2, 0.4  # of the images: what is held out is not learned from
MAX_HELD = 2000  # images: more would take minutes to score and move thresholds little


class Case(NamedTuple):
    """One image of a data set, or one slice of a volume.

    Results are reported under ``name``: the image's path as the manifest writes it. The name of a slice ends in ``#`` and
    its index along the file's own axis.
    """

    name: str
    image: Path
    mask: Path | None
    subject: str
    label: int  # 0 normal, 1 abnormal
    split: str
    note: str
    ignore: Path | None = None  # pixels that count neither as lesion nor as normal
    slice: int | None = None  # of a volume, counted from the most inferior
    position: float | None = None  # of an image that is a slice: its place in the subject's stack, in slices


def held_out_share(cases: Sequence[Case], wanted: float | Literal["auto"]) -> float:
    """The share of the images to hold out.

    auto: a fifth, or more where up to two fifths make ``ENOUGH`` subjects, or less where that is more than ``MAX_HELD`` images.
    """
    if wanted != "auto":
        return wanted
    needed = ENOUGH / max(1, len({case.subject for case in cases}))
    return MIN_SHARE if needed > MAX_SHARE else max(needed, min(MIN_SHARE, MAX_HELD / len(cases)))


def hold_out(cases: Sequence[Case], share: float, shuffle: Callable[[int], Sequence[int]]) -> tuple[list[Case], list[Case]]:
    """Split cases into (kept, held out). Whole subjects are moved until ``share`` of the images are held out."""
    sizes = Counter(case.subject for case in cases)
    subjects, missing, held = sorted(sizes), round(share * len(cases)), set[str]()
    for index in shuffle(len(subjects)):
        if missing <= 0 or len(held) + 1 >= len(subjects):
            break
        held.add(subjects[index])
        missing -= sizes[subjects[index]]
    return [c for c in cases if c.subject not in held], [c for c in cases if c.subject in held]


def assign_folds(cases: Sequence[Case], folds: int, shuffle: Callable[[int], Sequence[int]]) -> list[int]:
    """Return the fold of every case. Each subject goes, as a whole, to the fold that has the fewest images so far.

    Where there are fewer subjects than folds, each case counts as a subject.
    """
    subjects = [case.subject for case in cases]
    if len(set(subjects)) < folds:
        subjects = [str(i) for i in range(len(cases))]
    sizes, fold_of, loads = Counter(subjects), dict[str, int](), [0] * folds
    names = sorted(sizes)
    for index in shuffle(len(names)):
        fold_of[names[index]] = fold = loads.index(min(loads))
        loads[fold] += sizes[names[index]]
    return [fold_of[subject] for subject in subjects]


def fingerprint(cases: Sequence[Case]) -> str:
    """Return a hash of the training data: names, subjects and the bytes of every file."""
    digest = hashlib.blake2b(digest_size=16)
    digest_of = cache(file_digest)  # a volume is hashed once, not once per slice
    for case in sorted(cases, key=lambda case: case[:2]):
        digest.update(f"{case.name}\0{case.subject}\0{case.label}\0{case.split}\0".encode("utf-8", "surrogateescape"))
        for path in (case.image, case.mask, *([case.ignore] if case.ignore else [])):
            digest.update(digest_of(path) if path else b"-")
        if case.position is not None:
            digest.update(f"{case.position}\0".encode())
    return digest.hexdigest()


def file_digest(path: Path) -> bytes:
    """Hash a file's bytes; for the folder of a DICOM series, the names and bytes of its files."""
    if path.is_dir():
        files = [file for file in sorted(path.iterdir()) if file.is_file()]
        parts = [f"{file.name}\0".encode("utf-8", "surrogateescape") + file_digest(file) for file in files]
        return hashlib.blake2b(b"".join(parts)).digest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, hashlib.blake2b).digest()


def expand_volumes(cases: Sequence[Case], config: DataConfig, errors: list[str] | None = None) -> list[Case]:
    """Replace every volume by its slices with enough foreground.

    Where a volume has a mask, the mask decides which slices are abnormal. Outside the test split those are left out.
    A volume that cannot be read is added to ``errors``, or raised if that is None.
    """
    found: list[Case] = []
    with ThreadPoolExecutor(2) as pool:  # not more: each holds a volume and its mask
        slices = [pool.submit(_slices, case, config.min_foreground) if is_volume(case.image) else None for case in cases]
        for case, future in zip(cases, slices, strict=True):
            try:
                found += [case] if future is None else future.result()
            except UserError as err:
                if errors is None:
                    pool.shutdown(cancel_futures=True)
                    raise
                errors.append(str(err))
    return found if config.position == "column" else _with_positions(found, strict=config.position == "name")


def _number_in_name(case: Case) -> float | None:
    """The last number in the name of an image's file."""
    numbers = re.findall(r"[0-9]+", case.image.stem) if case.slice is None else []
    return float(numbers[-1]) if numbers else None


def _with_positions(cases: Sequence[Case], *, strict: bool) -> list[Case]:
    """Images by themselves get the last number in their file's name as position.

    Two images of a subject at one place are a mistake or, if that is not ``strict``, leave the subject without positions. Then
    a position that any image has from elsewhere leaves all names unread.
    """
    if not strict and any(case.position is not None for case in cases):
        return list(cases)
    found = [case._replace(position=_number_in_name(case)) if case.position is None else case for case in cases]
    seen, doubtful = dict[tuple[str, float], Case](), set[str]()
    for case in found:
        if case.position is None or (other := seen.setdefault((case.subject, case.position), case)) is case:
            continue
        if strict:
            both = f"{other.name} and {case.name} of subject '{case.subject}' both have the slice number {case.position:g}"
            raise UserError(f"{both}; set data.position=column, or rename the files")
        doubtful.add(case.subject)
    return [case._replace(position=None) if case.subject in doubtful else case for case in found]


def _slices(case: Case, share: float) -> list[Case]:
    if case.label == 1 and case.mask is None:
        raise UserError(f"{case.image}: an abnormal volume needs a mask, which says in what slices the disease is")
    found, volume = [], open_volume(case.image)
    for k in volume.foreground_slices(share):
        label = int(case.mask is not None and bool(read_mask(case.mask, case.image, k).any()))
        if label == 0 or case.split == "test":
            found.append(case._replace(name=f"{case.name}#{volume.native_index(k)}", label=label, slice=k))
    return found
