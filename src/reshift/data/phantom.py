"""Phantom images of three kinds: a small data set from a seed, without a download."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from reshift.config import nearest
from reshift.data.manifest import COLUMNS
from reshift.data.phantom_kinds import View, brain, chest, ultrasound
from reshift.errors import UserError

KINDS = ("brain", "ultrasound", "chest")
MIN_SIZE = 32

_ANATOMIES = {"brain": brain, "ultrasound": ultrasound, "chest": chest}


@dataclass(frozen=True)
class Phantom:
    """One drawn image with its lesion mask."""

    pixels: NDArray[np.uint8]  # (size, size) grey
    mask: NDArray[np.bool_]  # lesion, all False when healthy
    subject: str  # e.g. "brain-0007"
    level: int  # slice index within the subject


def draw(kind: str, subject: int, level: int, *, abnormal: bool, size: int = 128, seed: int = 0) -> Phantom:
    """Draw one slice of one subject; the arguments alone decide every pixel.

    All levels of a subject share its anatomy, and the abnormal version of a slice is the healthy one plus a lesion.
    """
    return _draw_with_note(kind, subject, level, abnormal=abnormal, size=size, seed=seed)[0]


def write_phantom(
    out: Path,
    kind: str = "brain",
    *,
    train: int = 96,
    test_normal: int = 40,
    test_abnormal: int = 40,
    size: int = 128,
    seed: int = 0,
    slices: int = 4,
) -> Path:
    """Write a data set of phantom images below ``out`` and return the path of its manifest.

    Training images are all healthy, and no subject is in two splits.
    """
    if slices < 1 or min(train, test_normal, test_abnormal) < 0:
        raise UserError("a phantom data set needs at least 1 slice per subject and no negative number of images")
    _check(kind, size)
    for folder in ("images", "masks"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    manifest = out / "manifest.csv"
    with manifest.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        for split, abnormal, subject, level in _plan(train, test_normal, test_abnormal, slices):
            phantom, note = _draw_with_note(kind, subject, level, abnormal=abnormal, size=size, seed=seed)
            image, mask = _save(phantom, out)
            rows.writerow((image, mask, phantom.subject, int(abnormal), split, note))
    return manifest


def _plan(train: int, test_normal: int, test_abnormal: int, slices: int) -> Iterator[tuple[str, bool, int, int]]:
    """Split, abnormality, subject and level of each image; each group starts with a new subject."""
    first = 0
    for split, abnormal, count in (
        ("train", False, train),
        ("test", False, test_normal),
        ("test", True, test_abnormal),
    ):
        for index in range(count):
            yield split, abnormal, first + index // slices, index % slices
        first += -(-count // slices)


def _save(phantom: Phantom, out: Path) -> tuple[str, str]:
    """Write the image, and the mask where there is a lesion; return their paths relative to ``out``."""
    name = f"{phantom.subject}_{phantom.level:02d}.png"
    Image.fromarray(phantom.pixels).save(out / "images" / name)
    if not phantom.mask.any():
        return f"images/{name}", ""
    Image.fromarray(phantom.mask).save(out / "masks" / name)
    return f"images/{name}", f"masks/{name}"


def _check(kind: str, size: int) -> None:
    if kind not in KINDS:
        raise UserError(f"unknown phantom kind '{kind}'{nearest(kind.lower(), KINDS)}")
    if size < MIN_SIZE:
        raise UserError(f"phantom size {size} is too small; use at least {MIN_SIZE} pixels")


def _draw_with_note(kind: str, subject: int, level: int, *, abnormal: bool, size: int, seed: int) -> tuple[Phantom, str]:
    """Draw one slice and say which lesion it has ("" when healthy)."""
    _check(kind, size)

    def stream(purpose: int, at_level: int) -> np.random.Generator:
        # The key always has five integers: a seed sequence treats a missing last one as 0.
        return np.random.default_rng([seed, KINDS.index(kind), subject, at_level, purpose])

    # Subjects take turns, so that even a small data set has all three lesions of its kind.
    finding = 1 + subject % 3 if abnormal else 0
    view = View(size, level, finding, stream(0, 0), stream(1, level), stream(2, 0), stream(3, level))
    image, mask, note = _ANATOMIES[kind](view)
    pixels = np.clip(image * 255 + 0.5, 0, 255).astype(np.uint8)
    return Phantom(pixels, mask, f"{kind}-{subject:04d}", level), note
