"""Small volumes for tests: a head that no rotation or reflection maps to itself, stored in any of the 48 orientations."""

from collections.abc import Iterator
from itertools import permutations, product
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from numpy.typing import NDArray

SHAPE = (14, 36, 28)  # slices, rows, columns in the canonical order
SPACING = (3.0, 1.0, 1.25)  # millimetres
FIELDS = {  # of a NIfTI-1 header: where, and what
          "sizeof_hdr": (0, "i"), "dim": (40, "8h"), "datatype": (70, "h"), "bitpix": (72, "h"), "pixdim": (76, "8f"),
          "vox_offset": (108, "f"), "scl_slope": (112, "f"), "scl_inter": (116, "f"), "qform_code": (252, "h"),
          "sform_code": (254, "h"), "quatern": (256, "6f"), "srow": (280, "12f"), "magic": (344, "4s")}  # fmt: skip
Orientation = tuple[tuple[int, ...], tuple[bool, ...]]  # canonical axis of each native one, and whether it is reversed


def orientations() -> Iterator[Orientation]:
    """All 48 orientations."""
    yield from product(permutations(range(3)), product((False, True), repeat=3))


def head(seed: int = 0, shape: tuple[int, int, int] = SHAPE) -> NDArray[np.float32]:
    """``(S, H, W)``: a bright blob low, in front and on the right within a dim body; smooth, so that resampling keeps it."""
    s, h, w = np.meshgrid(*(np.linspace(0, 1, n) for n in shape), indexing="ij")
    body = 300.0 * np.clip(4.0 - 16.0 * ((s - 0.5) ** 2 + (h - 0.5) ** 2 + (w - 0.5) ** 2), 0, 1)
    blob = 500.0 * np.exp(-((s - 0.3) ** 2 + (h - 0.38) ** 2 + (w - 0.3) ** 2) / 0.02)
    grain = np.random.default_rng(seed).normal(0, 2, shape)
    return np.asarray(body + blob + grain + 20.0, dtype=np.float32)


def canonical_affine(shape: tuple[int, ...] = SHAPE, spacing: tuple[float, ...] = SPACING) -> NDArray[np.float64]:
    """(slice, row, column) index → RAS+ millimetres, the middle at the origin; here axes are in array order."""
    affine = np.zeros((4, 4))
    for axis, (world, towards) in enumerate(zip((2, 1, 0), (1, -1, -1), strict=True)):
        affine[world, axis] = towards * spacing[axis]
        affine[world, 3] = -towards * spacing[axis] * (shape[axis] - 1) / 2
    affine[3, 3] = 1.0
    return affine


def stored(
    array: NDArray[Any], orientation: Orientation, affine: NDArray[np.float64]
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """The same anatomy in another storage order, with its affine."""
    order, flips = orientation
    turn = np.zeros((4, 4))
    turn[3, 3] = 1.0
    for native, (axis, flip) in enumerate(zip(order, flips, strict=True)):
        turn[axis, native] = -1.0 if flip else 1.0
        turn[axis, 3] = array.shape[axis] - 1 if flip else 0.0
    native_array = array.transpose(order)[tuple(slice(None, None, -1 if flip else 1) for flip in flips)]
    return native_array, affine @ turn


def save_nifti(path: Path, array: NDArray[Any], affine: NDArray[np.float64], dtype: Any = np.int16) -> Path:
    """Write with nibabel, not with the code under test."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.Nifti1Image(np.asarray(array).astype(dtype), affine).to_filename(path)
    return path


def save_head(
    path: Path, seed: int = 0, orientation: Orientation = ((2, 1, 0), (False, False, False)), dtype: Any = np.int16
) -> Path:
    """Write a head to disk."""
    return save_nifti(path, *stored(head(seed), orientation, canonical_affine()), dtype)


ARRAY = head()[::3]  # a smaller one
AFFINE = stored(ARRAY, ((2, 1, 0), (True, False, False)), canonical_affine(ARRAY.shape))[1]
NATIVE = np.ascontiguousarray(ARRAY.transpose(2, 1, 0)[::-1])
