"""Whose images they are, where only their names tell.

Slices of one person that are learned from and others of the same person that set thresholds would know each other: thresholds
would be too low, and too many new images flagged.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from reshift.data.cases import Case

MIN_SUBJECTS = 5
MAX_SHARE = 0.8  # subjects per image
LARGEST = 1 / 3  # of all images: more under one name are numbered images of many people


def subject_by_name(name: str) -> str:
    """An image's name without its last number and what follows: names that differ in that only are one person's images."""
    folder, _, file = name.rpartition("/")
    found = re.fullmatch(r"(.*?)[0-9]+[^0-9]*", Path(file).stem)
    return f"{folder}/{found[1] if found else file}"


def named_subjects(names: Sequence[str]) -> dict[str, str] | None:
    """The subjects of images by their names, or None where names do not tell: hardly any two are of one, or very many are."""
    found = {name: subject_by_name(name) for name in names}
    images = Counter(found.values())
    plausible = MIN_SUBJECTS <= len(images) <= MAX_SHARE * len(names) and max(images.values()) <= LARGEST * len(names)
    return found if plausible else None


def subjects_by_name(cases: Sequence[Case]) -> bool:
    """Whether the subjects are those that names tell."""
    return all(case.subject == subject_by_name(case.name) for case in cases)


def about_subjects(cases: Sequence[Case]) -> str:
    """How many subjects there are, and how that is known where nobody said so."""
    line = f"{len(cases)} normal images of {len({case.subject for case in cases})} subjects"
    if subjects_by_name(cases):
        return f"{line}: names that differ in their last number only; if that is wrong: --set data.subject='(.+)'"
    if all(case.subject == case.name and case.slice is None for case in cases):
        return f"{line}: each image its own; if some are of one person, name that person by data.subject or a manifest"
    return line
