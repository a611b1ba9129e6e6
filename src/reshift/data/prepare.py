"""Image → network input, and the way back: make it square, resize with antialiasing, scale to [-1, 1]."""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from reshift.config import DataConfig
from reshift.data.image import BLOCK, Image, percentiles, row_blocks
from reshift.data.level import divide_by_median
from reshift.errors import UserError

Pixel = TypeVar("Pixel", bound=np.generic)
LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)  # ITU-R BT.601, the weights of every "convert to grey"
MAX_ASPECT = 16.0  # of a pixel; no scanner makes longer ones


class Geometry(NamedTuple):
    """The square region that was cut from an image; enough to undo it."""

    height: int  # of the image
    width: int
    top: int  # of the region, which is square in millimetres; negative where it was padded
    left: int
    rows: int  # of the region, in the image's pixels; equal to columns where pixels are square
    columns: int


class Prepared(NamedTuple):
    """The network's input, and the geometry that leads back to the image's own pixels."""

    pixels: NDArray[np.float32]  # (C, size, size) in [-1, 1]
    geometry: Geometry


def prepare(image: Image, config: DataConfig) -> Prepared:
    """Cut or pad to a square, resize and scale. Deterministic; other images have no influence.

    A slice is scaled by the grey range of its volume.
    """
    height, width = image.pixels.shape[:2]
    if not 1 / MAX_ASPECT <= image.spacing[0] / image.spacing[1] <= MAX_ASPECT:
        given = "×".join(f"{step:g}" for step in image.spacing)
        raise UserError(f"{image.source}: its pixels are {given} mm, far from square; resample it, or correct its header")
    geometry = square_region(height, width, image.spacing, config.square)
    low, high = _grey_range(image, config)
    strips = list[NDArray[np.float32]]()  # (C, rows, size)
    for strip in _strips(geometry):
        inside, within = _overlap(strip)
        region = np.full((strip.rows, strip.columns, config.channels), -1.0, dtype=np.float32)
        region[within] = _scale(_channels(image.pixels[inside[0]], config.channels)[:, inside[1]], low, high)
        rows = config.size if strip == geometry else strip.rows  # Pillow, too, resizes rows first: the bits are the same
        strips.append(np.stack([resize(plane, rows, config.size) for plane in region.transpose(2, 0, 1)]))
    planes = [resize(plane, config.size) for plane in np.concatenate(strips, axis=1)]
    pixels = np.clip(np.stack(planes), -1.0, 1.0)
    return Prepared(divide_by_median(pixels) if config.level == "median" else pixels, geometry)


def prepare_mask(mask: NDArray[np.bool_], geometry: Geometry, size: int) -> NDArray[np.bool_]:
    """Prepare a mask like its image, by nearest neighbour."""
    if mask.shape != (geometry.height, geometry.width):
        sizes = f"mask is {mask.shape[1]}×{mask.shape[0]} pixels, its image {geometry.width}×{geometry.height}"
        raise ValueError(f"{sizes}; draw the mask on the image's own pixels")
    rows, columns = (((np.arange(size) + 0.5) * length / size).astype(int) for length in (geometry.rows, geometry.columns))
    return np.asarray(_crop(mask, geometry, np.False_)[np.ix_(rows, columns)])


def restore(heatmap: NDArray[np.float32], geometry: Geometry) -> NDArray[np.float32]:
    """Map a heat-map back to the image's own pixels. Pixels outside the crop have no score and are NaN."""
    inside, within = _overlap(geometry)
    region = resize(heatmap, geometry.rows, geometry.columns)[within]
    if region.shape == (geometry.height, geometry.width):
        return np.array(region)
    native = np.full((geometry.height, geometry.width), np.nan, dtype=np.float32)
    native[inside] = region
    return native


def square_region(height: int, width: int, spacing: tuple[float, float] = (1.0, 1.0), rule: str = "crop") -> Geometry:
    """Return the centred square, in millimetres: the largest inside the image, or with ``pad`` the smallest around it."""
    tall, wide = height * spacing[0], width * spacing[1]
    side = min(tall, wide) if rule == "crop" else max(tall, wide)
    rows, columns = max(1, round(side / spacing[0])), max(1, round(side / spacing[1]))
    return Geometry(height, width, (height - rows) // 2, (width - columns) // 2, rows, columns)


def resize(plane: NDArray[np.float32], rows: int, columns: int | None = None) -> NDArray[np.float32]:
    """Bilinear, with antialiasing when shrinking. A plane that already has the size is returned as it is."""
    columns = rows if columns is None else columns
    if plane.shape == (rows, columns):
        return plane
    import PIL.Image

    image = PIL.Image.fromarray(np.ascontiguousarray(plane, dtype=np.float32))
    return np.asarray(image.resize((columns, rows), PIL.Image.Resampling.BILINEAR), dtype=np.float32)


def _overlap(geometry: Geometry) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """The overlap of region and image, as slices of the image and as slices of the region."""
    sides = (geometry.top, geometry.rows, geometry.height), (geometry.left, geometry.columns, geometry.width)
    (y0, y1), (x0, x1) = ((min(max(0, start), whole), max(0, min(whole, start + length))) for start, length, whole in sides)
    within = slice(y0 - geometry.top, y1 - geometry.top), slice(x0 - geometry.left, x1 - geometry.left)
    return (slice(y0, y1), slice(x0, x1)), within


def _crop(pixels: NDArray[Pixel], geometry: Geometry, fill: Pixel) -> NDArray[Pixel]:
    """The region, ``(rows, columns, …)``; ``fill`` where it reaches beyond the image."""
    inside, within = _overlap(geometry)
    region = np.full((geometry.rows, geometry.columns, *pixels.shape[2:]), fill, dtype=pixels.dtype)
    region[within] = pixels[inside]
    return region


def _strips(geometry: Geometry) -> Iterator[Geometry]:
    """The region in strips of whole rows, so that only few pixels at a time take four bytes and more."""
    step = max(1, BLOCK // geometry.columns)
    for at in range(0, geometry.rows, step):
        yield geometry._replace(top=geometry.top + at, rows=min(step, geometry.rows - at))


def _channels(pixels: NDArray[Any], channels: int) -> NDArray[Any]:
    have = pixels.shape[2]
    if channels == have:
        return pixels
    if channels == 1:
        luma = [np.asarray(rows.astype(np.float32) @ LUMA) for rows in row_blocks(pixels)] or [pixels[:, :, 0]]
        return np.concatenate(luma)[:, :, None]
    return np.repeat(pixels, channels, axis=2)


def _grey_range(image: Image, config: DataConfig) -> tuple[float, float]:
    """The grey values that become -1 and 1.

    ``bits``: the stored range, 0…255 or 0…65535. ``percentile``: the image's own 0.5…99.5 % range, or the window of its
    volume. ``auto``: bits for 8-bit files without a window; percentile for 16-bit and float files, which rarely use their
    whole range.
    """
    rule = config.scale
    if rule == "auto":
        rule = "bits" if image.bits == 8 and image.window is None else "percentile"
    if rule == "bits":
        if image.bits == 32:
            raise UserError(f"{image.source}: its pixels have no stored range; set data.scale to percentile or auto")
        return 0.0, float(2**image.bits - 1)
    low, high = image.window or (0.0, 0.0)
    if image.window is None:
        pixels = _channels(image.pixels, config.channels)
        low, high = (float(v) for v in percentiles(pixels, (0.5, 99.5)))
        if high <= low:  # nearly constant: the percentiles are equal, the extremes are not
            low, high = float(pixels.min()), float(pixels.max())
    if high <= low:  # different colours of the same grey
        raise UserError(f"{image.source}: every pixel has the same grey value; there is nothing to see, remove the file")
    return low, high


def _scale(pixels: NDArray[Any], low: float, high: float) -> NDArray[np.float32]:
    """Grey values → [-1, 1]."""
    unit = np.subtract(pixels, low, dtype=np.float64) / (high - low)  # float32 could overflow
    return np.asarray(np.clip(unit * 2.0 - 1.0, -1.0, 1.0), dtype=np.float32)
