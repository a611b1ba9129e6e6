"""In a reader process: what the page shows of a case. Values travel as 16-bit numbers on a linear scale, so that a browser can
window an image and recolour a heat-map by a table of 65,536 entries, without asking again.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.config import DataConfig
from reshift.data.image import Image, percentiles
from reshift.data.prepare import prepare, restore
from reshift.data.read import open_input
from reshift.data.volume import Volume
from reshift.errors import UserError
from reshift.inference.findings.space import image_space, volume_space
from reshift.inference.inputs import ScoreCase, find_cases
from reshift.inference.overlay import grey, overlay, png

PLANES = ("axial", "coronal", "sagittal")
TOP = 65_534  # the highest level; 65,535 stands for "no value" (outside the centre-crop, or a slice that was not scored)
NO_VALUE = 65_535


class Where(NamedTuple):
    """A case, and where its results lie."""

    roots: tuple[str, ...]  # what its job was given
    source: str  # its name in the records
    map: str | None  # the file of its heat-map


class Values(NamedTuple):
    """A plane of 16-bit levels; value = level · scale + offset."""

    levels: bytes  # little-endian, row by row, (rows, columns, channels)
    shape: tuple[int, ...]
    scale: float
    offset: float
    spacing: tuple[float, float]  # millimetres from row to row and from column to column


@lru_cache(maxsize=8)
def _cases(roots: tuple[str, ...]) -> dict[str, ScoreCase]:
    return {case.source: case for case in find_cases([Path(root) for root in roots])}


@lru_cache(maxsize=3)
def _opened(roots: tuple[str, ...], source: str) -> Image | Volume:
    case = _cases(roots).get(source)
    if case is None:
        raise UserError("its file is no longer there")
    return open_input(*case.input)


@lru_cache(maxsize=3)
def _heatmap(where: Where) -> NDArray[np.float32]:
    """``(H, W)``, or ``(S, H, W)`` in the volume's canonical order."""
    if where.map is None or not Path(where.map).is_file():
        raise UserError("the case has no heat-map")
    if where.map.endswith(".npy"):
        found: NDArray[np.float32] = np.load(where.map, allow_pickle=False)
        return found
    import nibabel

    loaded: Any = nibabel.load(where.map)
    volume = _opened(where.roots, where.source)
    assert isinstance(volume, Volume)
    return volume.from_native(np.asarray(loaded.dataobj, dtype=np.float32))


def forget() -> None:
    """Keep nothing of any case: one of them is being deleted."""
    for cache in (_cases, _opened, _heatmap, _image_range, _heat_range):
        cache.cache_clear()


def describe(where: Where) -> dict[str, Any]:
    """The grid of a case: what a viewer needs before it asks for planes."""
    found = _opened(where.roots, where.source)
    low, high = _window(found)
    about: dict[str, Any] = {"window": [low, high], "volume": isinstance(found, Volume)}
    if isinstance(found, Volume):
        return {
            **about,
            "shape": list(found.voxels.shape),
            "spacing": list(found.spacing),
            "flipped": found.flips[0],
            "channels": 1,
        }
    height, width, channels = found.pixels.shape
    return {**about, "shape": [1, height, width], "spacing": [1.0, *found.spacing], "flipped": False, "channels": channels}


def locate(where: Where, points: list[list[float]]) -> list[list[int]]:
    """Coordinates of findings → (slice, row, column), each within the grid."""
    if not points:
        return []
    found, case = _opened(where.roots, where.source), _cases(where.roots)[where.source]
    space = volume_space(found) if isinstance(found, Volume) else image_space(case.path)
    shape = found.voxels.shape if isinstance(found, Volume) else (1, *found.pixels.shape[:2])
    away = np.asarray(points, dtype=np.float64) - space.affine[:3, 3]
    indices: list[list[int]] = np.clip(
        np.rint(np.linalg.solve(space.affine[:3, :3], away.T).T), 0, np.array(shape) - 1
    ).astype(int).tolist()  # fmt: skip
    return indices


def _window(found: Image | Volume) -> tuple[float, float]:
    if isinstance(found, Volume):
        return found.window
    low, high = percentiles(found.pixels, (0.5, 99.5))
    return float(low), float(high)


@lru_cache(maxsize=8)
def _image_range(roots: tuple[str, ...], source: str) -> tuple[float, float]:
    """The lowest and the highest value, of all slices."""
    found = _opened(roots, source)
    if isinstance(found, Image):
        return float(found.pixels.min()), float(found.pixels.max())
    ends = sorted(float(end) * found.slope + found.intercept for end in (found.voxels.min(), found.voxels.max()))
    return ends[0], ends[1]


@lru_cache(maxsize=8)
def _heat_range(where: Where) -> tuple[float, float]:
    found = _heatmap(where)
    return min(0.0, float(np.nanmin(found))), max(1e-12, float(np.nanmax(found)))


def image_values(where: Where, plane: str, index: int) -> Values:
    """A plane of the image as it was read."""
    found = _opened(where.roots, where.source)
    if isinstance(found, Volume):
        pixels = _plane(found.voxels, plane, index).astype(np.float64) * found.slope + found.intercept
        return levels(pixels[:, :, None], *_image_range(where.roots, where.source), _spacing(found.spacing, plane))
    _only_plane(plane, index)
    return levels(found.pixels, *_image_range(where.roots, where.source), found.spacing)


def heat_values(where: Where, plane: str, index: int) -> Values:
    """The same plane of the heat-map."""
    found, heatmap = _opened(where.roots, where.source), _heatmap(where)
    if isinstance(found, Volume):
        return levels(_plane(heatmap, plane, index)[:, :, None], *_heat_range(where), _spacing(found.spacing, plane))
    _only_plane(plane, index)
    return levels(heatmap[:, :, None], *_heat_range(where), found.spacing)


def prepared_values(where: Where, index: int, data: dict[str, Any]) -> Values:
    """What the network saw of an axial slice: [-1, 1] on its own grid."""
    image = _axial(where, index)
    prepared = prepare(image, DataConfig(**data))
    side = prepared.pixels.shape[-1]
    spacing = (image.spacing[0] * prepared.geometry.rows / side, image.spacing[1] * prepared.geometry.columns / side)
    return levels(prepared.pixels.transpose(1, 2, 0), -1.0, 1.0, spacing)


def prepared_pixels(where: Where, index: int, data: dict[str, Any]) -> NDArray[np.float32]:
    """The same as the network takes it, ``(C, S, S)``."""
    return prepare(_axial(where, index), DataConfig(**data)).pixels


def on_own_grid(where: Where, index: int, data: dict[str, Any], restored: NDArray[np.float32]) -> Values:
    """A restored ``(C, S, S)`` on the slice's own pixels and in its grey values, so that both can be shown in one window.

    A line takes prepared values back to grey values: it is fitted, since preparing may divide by the median.
    """
    image = _axial(where, index)
    prepared = prepare(image, DataConfig(**data))
    seen = restore(prepared.pixels.mean(axis=0), prepared.geometry)
    known = np.isfinite(seen)
    gain, offset = np.polyfit(seen[known], image.pixels.mean(axis=-1, dtype=np.float64)[known], 1)
    values = np.stack([restore(plane, prepared.geometry) for plane in restored], axis=-1) * gain + offset
    low, high = _image_range(where.roots, where.source)
    return levels(np.clip(values, low, high), low, high, image.spacing)


def _axial(where: Where, index: int) -> Image:
    found = _opened(where.roots, where.source)
    if isinstance(found, Image):
        _only_plane("axial", index)
        return found
    if not 0 <= index < len(found):
        raise UserError(f"slice {index} is not one of 0 to {len(found) - 1}")
    return found.image(index)


def levels(values: NDArray[Any], low: float, high: float, spacing: tuple[float, float]) -> Values:
    """Values as 16-bit levels between ``low`` and ``high``."""
    scale = (high - low) / TOP or 1.0
    with np.errstate(invalid="ignore"):
        steps = np.rint((values.astype(np.float64) - low) / scale)
    found = np.where(np.isfinite(values), np.clip(steps, 0, TOP), NO_VALUE).astype("<u2")
    return Values(found.tobytes(), found.shape, scale, low, spacing)


def _plane(volume: NDArray[Any], plane: str, index: int) -> NDArray[Any]:
    """A slice as radiologists look at it: superior or anterior is up, the patient's right or front is at the left."""
    axis = PLANES.index(plane)
    if not 0 <= index < volume.shape[axis]:
        raise UserError(f"{plane} slice {index} is not one of 0 to {volume.shape[axis] - 1}")
    found: NDArray[Any] = volume[index] if axis == 0 else np.take(volume, index, axis)[::-1]
    return found


def _spacing(spacing: tuple[float, float, float], plane: str) -> tuple[float, float]:
    between, row, column = spacing
    return {"axial": (row, column), "coronal": (between, column), "sagittal": (between, row)}[plane]


def _only_plane(plane: str, index: int) -> None:
    if plane != "axial" or index != 0:
        raise UserError("an image has one plane: axial, index 0")


def picture(where: Where, index: int, colours: tuple[float, float] | None, side: int | None = None) -> bytes:
    """An axial slice as PNG, at most ``side`` pixels wide and high; ``colours`` are threshold and scale of its heat-map."""
    import PIL.Image

    image = _axial(where, index)
    if colours is None or where.map is None:
        plane = grey(image.pixels, image.window)
        shown = np.repeat(plane[:, :, None], 3, axis=2)
    else:
        heatmap = _heatmap(where)
        shown = overlay(image.pixels, heatmap if heatmap.ndim == 2 else heatmap[index], *colours, image.window)
    if side is None:
        return png(shown)
    tall, wide = shown.shape[0] * image.spacing[0], shown.shape[1] * image.spacing[1]
    rows, columns = (max(1, round(side * length / max(tall, wide))) for length in (tall, wide))
    small = PIL.Image.fromarray(shown).resize((columns, rows), PIL.Image.Resampling.BILINEAR, reducing_gap=2.0)
    return png(np.asarray(small))
