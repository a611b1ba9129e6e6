"""A volume in one canonical axial orientation, and the exact inverse to the file's own voxels.

Nothing is resampled: axes are only exchanged and reversed. Slice 0 is the most inferior, row 0 the most anterior and
column 0 the patient's right, as radiologists see a slice.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from reshift.data.image import Image
from reshift.errors import UserError

MAX_SAMPLE = 2**20  # voxels that decide the grey range
PERCENTILES = (0.5, 99.5)  # ends of the grey range
WORLD_AXES = (2, 1, 0)  # world axis (of x, y, z) that slices, rows and columns run along
DIRECTIONS = (1, -1, -1)  # slices run to superior (+z), rows to posterior (-y), columns to the patient's left (-x)

Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class Volume:
    """A stack of slices in one canonical axial orientation; ``canonical`` makes it."""

    voxels: NDArray[Any]  # (S, H, W) stored values; a view or a memory-map where possible
    slope: float  # real value = stored * slope + intercept
    intercept: float
    affine: NDArray[np.float64]  # (4, 4): (column, row, slice) index → RAS+ millimetres
    axes: tuple[int, int, int]  # the file's array axes of (slice, row, column)
    flips: tuple[bool, bool, bool]  # which of them are reversed
    native_affine: NDArray[np.float64]
    native_shape: tuple[int, int, int]
    bits: int
    source: Path
    header: Any = None  # of a NIfTI file: its codes and transforms are copied into maps

    def __len__(self) -> int:
        return int(self.voxels.shape[0])

    def plane(self, k: int) -> NDArray[np.float32]:
        """Real values of one slice, ``(H, W)``."""
        stored = self.voxels[k].astype(np.float64)
        return np.asarray(stored * self.slope + self.intercept, dtype=np.float32)

    def image(self, k: int) -> Image:
        """One slice as an image, with the grey range of the whole volume."""
        return Image(self.plane(k)[:, :, None], self.bits, self.source, self.window, self.spacing[1:])

    def to_native(self, maps: NDArray[Any]) -> NDArray[Any]:
        """``(S, H, W)`` → the file's own axes, a view; the exact inverse of ``from_native``."""
        reverse = [slice(None, None, -1 if flip else 1) for flip in self.flips]
        return maps[tuple(reverse)].transpose(np.argsort(self.axes))

    def from_native(self, array: NDArray[Any]) -> NDArray[Any]:
        """The file's own axes → ``(S, H, W)``, a view."""
        return _reorient(array, self.axes, self.flips)

    def native_index(self, k: int) -> int:
        """Index of slice ``k`` along the file's own axis."""
        return len(self) - 1 - k if self.flips[0] else k

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Millimetres from slice to slice, row to row, column to column."""
        column, row, between = (float(v) for v in np.linalg.norm(self.affine[:3, :3], axis=0))
        return between, row, column

    @cached_property
    def window(self) -> tuple[float, float]:
        """The grey range: from the 0.5 % percentile of the whole volume to the 99.5 % percentile of its foreground.

        The share of air around the body differs from volume to volume, so the upper end ignores it.
        """
        sample = self._sample
        foreground = sample[sample > self.background]
        return float(np.percentile(sample, PERCENTILES[0])), float(np.percentile(foreground, PERCENTILES[1]))

    @cached_property
    def background(self) -> float:
        """Values up to this one are background: the mean of the volume, with its extremes clipped."""
        sample = self._sample
        low, high = (float(v) for v in np.percentile(sample, PERCENTILES))
        if high <= low:  # almost all voxels have one value; only the extremes differ
            low, high = float(sample.min()), float(sample.max())
        mean = float(np.clip(sample, low, high).mean())
        if high <= low:
            raise UserError(f"{self.source}: every voxel has the value {low:g}; there is nothing to see, remove the file")
        below_high = np.nextafter(np.float32(high), np.float32(low))  # or rounding could make everything background
        return float(min(np.float32(mean), below_high))

    @cached_property
    def foreground_sizes(self) -> NDArray[np.int64]:
        """Number of foreground voxels of every slice, ``(S,)``."""
        return np.array([np.count_nonzero(self.plane(k) > self.background) for k in range(len(self))], dtype=np.int64)

    def foreground_slices(self, share: float) -> list[int]:
        """Slices with at least ``share`` of the largest slice's foreground; the rest is air, vertex and neck."""
        sizes = self.foreground_sizes
        return [int(k) for k in np.flatnonzero(sizes >= max(1.0, share * int(sizes.max())))]

    @cached_property
    def _sample(self) -> NDArray[np.float64]:
        """Voxels on an even grid along the canonical axes, so that the file's own axes do not matter."""
        step = math.ceil((self.voxels.size / MAX_SAMPLE) ** (1 / 3))
        grid = tuple(slice(min(step // 2, (length - 1) // 2), None, step) for length in self.voxels.shape)
        real = self.voxels[grid].astype(np.float64) * self.slope + self.intercept
        return real.astype(np.float32).astype(np.float64).ravel()  # rounded as ``plane`` rounds


def canonical(
    array: NDArray[Any],
    affine: NDArray[np.float64],
    *,
    source: Path,
    bits: int = 32,
    slope: float = 1.0,
    intercept: float = 0.0,
    header: Any = None,
) -> Volume:
    """Reorient ``array`` to the canonical axes; ``affine`` maps its indices to RAS+ millimetres.

    Each axis goes to the nearest canonical one. An oblique volume stays oblique in its affine.
    """
    from nibabel.orientations import io_orientation

    affine = np.asarray(affine, dtype=np.float64)
    lengths = np.linalg.norm(affine[:3, :3], axis=0)
    if not np.isfinite(affine).all() or not (lengths > 0).all() or abs(np.linalg.det(affine[:3, :3] / lengths)) < 1e-3:
        raise UserError(f"{source}: its orientation is not valid (an axis of no length, or two along one line); convert it again")
    world, sign = io_orientation(affine).T
    axes = _three(int(np.flatnonzero(world == axis)[0]) for axis in WORLD_AXES)
    flips = _three(bool(sign[axis] != direction) for axis, direction in zip(axes, DIRECTIONS, strict=True))
    to_native = np.zeros((4, 4))  # (column, row, slice) index → the file's index
    to_native[3, 3] = 1.0
    for i, (axis, flip) in enumerate(zip(axes, flips, strict=True)):
        to_native[axis, 2 - i] = -1.0 if flip else 1.0
        to_native[axis, 3] = array.shape[axis] - 1 if flip else 0.0
    voxels = _reorient(array, axes, flips)
    return Volume(voxels, slope, intercept, affine @ to_native, axes, flips, affine, _three(array.shape), bits, source, header)


def _three(values: Iterable[Item]) -> tuple[Item, Item, Item]:
    first, second, third = values
    return first, second, third


def _reorient(array: NDArray[Any], axes: tuple[int, ...], flips: tuple[bool, ...]) -> NDArray[Any]:
    return array.transpose(axes)[tuple(slice(None, None, -1 if flip else 1) for flip in flips)]
