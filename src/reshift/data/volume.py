"""A scan of many slices, in one canonical axial orientation, and the exact way back to the file's own voxels.

Nothing is resampled: axes are exchanged and reversed, which loses nothing. Slice 0 is the most inferior, row 0 the most
anterior, column 0 the patient's right, so that a slice shows as radiologists see it.
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

SAMPLE = 2**20  # voxels that decide the grey range
TAILS = (0.5, 99.5)  # percentiles cut off
CANONICAL = (2, 1, 0)  # world axis (of x, y, z) that slices, rows and columns run along
TOWARDS = (1, -1, -1)  # slices run to superior (+z), rows to posterior (-y), columns to the patient's left (-x)

Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class Volume:
    """A stack of slices in one canonical axial orientation; ``canonical`` makes it."""

    voxels: NDArray[Any]  # (S, H, W) stored values; a view or a memory-map where possible
    slope: float  # real value = stored * slope + intercept
    intercept: float
    affine: NDArray[np.float64]  # (4, 4): (column, row, slice) index → RAS+ millimetres
    axes: tuple[int, int, int]  # the file's array axis that (slice, row, column) came from
    flips: tuple[bool, bool, bool]  # whether it was reversed
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
        """One slice as a picture, with the grey range of the whole volume."""
        return Image(self.plane(k)[:, :, None], self.bits, self.source, self.window, self.spacing[1:])

    def to_native(self, maps: NDArray[Any]) -> NDArray[Any]:
        """``(S, H, W)`` → the file's own axes, a view; the exact inverse of what ``canonical`` did."""
        back = [slice(None, None, -1 if flip else 1) for flip in self.flips]
        return maps[tuple(back)].transpose(np.argsort(self.axes))

    def from_native(self, array: NDArray[Any]) -> NDArray[Any]:
        """The file's own axes → ``(S, H, W)``, a view."""
        return _turned(array, self.axes, self.flips)

    def native_index(self, k: int) -> int:
        """Slice ``k`` counted along the file's own axis, ``axes[0]``."""
        return len(self) - 1 - k if self.flips[0] else k

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Millimetres from slice to slice, row to row, column to column."""
        column, row, between = (float(v) for v in np.linalg.norm(self.affine[:3, :3], axis=0))
        return between, row, column

    @cached_property
    def window(self) -> tuple[float, float]:
        """The grey range: from 0.5 % of the whole volume to 99.5 % of its foreground.

        Of the foreground, because the share of air around the body differs from scan to scan and says nothing of its greys.
        """
        sample = self._sample
        low, high = float(np.percentile(sample, TAILS[0])), float(np.percentile(sample[sample > self.background], TAILS[1]))
        return low, high

    @cached_property
    def background(self) -> float:
        """Values up to here are background: the mean of the volume, its extremes cut off."""
        sample = self._sample
        low, high = (float(v) for v in np.percentile(sample, TAILS))
        if high <= low:  # almost everything is one value; the extremes are what there is to see
            low, high = float(sample.min()), float(sample.max())
        mean = float(np.clip(sample, low, high).mean())
        if high <= low:
            raise UserError(f"{self.source}: every voxel has the value {low:g}; there is nothing to see, remove the file")
        return float(min(np.float32(mean), np.nextafter(np.float32(high), np.float32(low))))  # never everything, by rounding

    @cached_property
    def foreground(self) -> NDArray[np.int64]:
        """Number of foreground voxels of every slice, ``(S,)``."""
        return np.array([np.count_nonzero(self.plane(k) > self.background) for k in range(len(self))], dtype=np.int64)

    def chosen(self, share: float) -> list[int]:
        """Slices with at least ``share`` of the largest slice's foreground; the rest is air, vertex and neck."""
        least = max(1.0, share * int(self.foreground.max()))
        return [int(k) for k in np.flatnonzero(self.foreground >= least)]

    @cached_property
    def _sample(self) -> NDArray[np.float64]:
        """Voxels on an even grid, all of them while they are few; from the canonical axes, so that storage does not matter."""
        step = math.ceil((self.voxels.size / SAMPLE) ** (1 / 3))
        at = tuple(slice(min(step // 2, (length - 1) // 2), None, step) for length in self.voxels.shape)
        real = self.voxels[at].astype(np.float64) * self.slope + self.intercept
        return real.astype(np.float32).astype(np.float64).ravel()  # as planes are rounded: what is lost there is not seen


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
    """Turn ``array`` (its three axes as stored; ``affine`` takes its indices to RAS+ millimetres) to the canonical axes.

    An oblique volume keeps its obliqueness in the affine: each axis goes to the nearest canonical one.
    """
    from nibabel.orientations import io_orientation

    affine = np.asarray(affine, dtype=np.float64)
    lengths = np.linalg.norm(affine[:3, :3], axis=0)
    if not np.isfinite(affine).all() or not (lengths > 0).all() or abs(np.linalg.det(affine[:3, :3] / lengths)) < 1e-3:
        raise UserError(f"{source}: its orientation is not valid (an axis of no length, or two along one line); convert it again")
    world, sign = io_orientation(affine).T
    axes = _three(int(np.flatnonzero(world == axis)[0]) for axis in CANONICAL)
    flips = _three(bool(sign[axis] != towards) for axis, towards in zip(axes, TOWARDS, strict=True))
    turn = np.zeros((4, 4))  # (column, row, slice) index → the file's index
    turn[3, 3] = 1.0
    for at, (axis, flip) in enumerate(zip(axes, flips, strict=True)):
        turn[axis, 2 - at] = -1.0 if flip else 1.0
        turn[axis, 3] = array.shape[axis] - 1 if flip else 0.0
    voxels = _turned(array, axes, flips)
    return Volume(voxels, slope, intercept, affine @ turn, axes, flips, affine, _three(array.shape), bits, source, header)


def _three(values: Iterable[Item]) -> tuple[Item, Item, Item]:
    first, second, third = values
    return first, second, third


def _turned(array: NDArray[Any], axes: tuple[int, ...], flips: tuple[bool, ...]) -> NDArray[Any]:
    return array.transpose(axes)[tuple(slice(None, None, -1 if flip else 1) for flip in flips)]
