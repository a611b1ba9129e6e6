"""Image → network input, and the way back: centre-crop to a square, resize with antialiasing, scale to [-1, 1]."""

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from reshift.config import DataConfig
from reshift.data.image import Image
from reshift.errors import UserError

Pixel = TypeVar("Pixel", bound=np.generic)
LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)  # ITU-R BT.601, the weights of every "convert to grey"


class Geometry(NamedTuple):
    """What was done to the picture's plane; enough to undo it."""

    height: int  # of the file
    width: int
    top: int  # of the square crop
    left: int
    side: int


class Prepared(NamedTuple):
    """Network input and the road back to the file's own pixels."""

    pixels: NDArray[np.float32]  # (C, size, size) in [-1, 1]
    geometry: Geometry


def prepare(image: Image, config: DataConfig) -> Prepared:
    """Centre-crop, resize, scale. Deterministic, and each image by itself: no statistic of other images enters."""
    geometry = square(*image.pixels.shape[:2])
    scaled = _scale(_channels(image.pixels, config.channels), image, config.scale)
    cropped = _crop(scaled, geometry)
    planes = [resize(plane, config.size) for plane in cropped.transpose(2, 0, 1)]
    return Prepared(np.clip(np.stack(planes), -1.0, 1.0), geometry)


def prepare_mask(mask: NDArray[np.bool_], geometry: Geometry, size: int) -> NDArray[np.bool_]:
    """Take a mask the same way, by nearest neighbour: a mask has no half pixels."""
    if mask.shape != (geometry.height, geometry.width):
        sizes = f"mask is {mask.shape[1]}×{mask.shape[0]} pixels, its image {geometry.width}×{geometry.height}"
        raise ValueError(f"{sizes}; draw the mask on the image's own pixels")
    at = ((np.arange(size) + 0.5) * geometry.side / size).astype(int)
    return np.asarray(_crop(mask, geometry)[np.ix_(at, at)])


def restore(heatmap: NDArray[np.float32], geometry: Geometry) -> NDArray[np.float32]:
    """Bring a heat-map back to the file's own pixels. What the crop left out was not looked at and is NaN."""
    native = np.full((geometry.height, geometry.width), np.nan, dtype=np.float32)
    rows, cols = _slices(geometry)
    native[rows, cols] = resize(heatmap, geometry.side)
    return native


def square(height: int, width: int) -> Geometry:
    """Return the largest centred square."""
    side = min(height, width)
    return Geometry(height, width, (height - side) // 2, (width - side) // 2, side)


def resize(plane: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Bilinear, with the kernel widened when shrinking (antialiasing); a plane already of that size is returned as it is."""
    if plane.shape == (size, size):
        return plane
    import PIL.Image

    picture = PIL.Image.fromarray(np.ascontiguousarray(plane, dtype=np.float32))
    return np.asarray(picture.resize((size, size), PIL.Image.Resampling.BILINEAR), dtype=np.float32)


def _slices(geometry: Geometry) -> tuple[slice, slice]:
    return (slice(geometry.top, geometry.top + geometry.side), slice(geometry.left, geometry.left + geometry.side))


def _crop(pixels: NDArray[Pixel], geometry: Geometry) -> NDArray[Pixel]:
    return pixels[_slices(geometry)]


def _channels(pixels: NDArray[np.float32], channels: int) -> NDArray[np.float32]:
    have = pixels.shape[2]
    if channels == have:
        return pixels
    if channels == 1:
        return np.asarray(pixels @ LUMA)[:, :, None]
    return np.repeat(pixels, channels, axis=2)


def _scale(pixels: NDArray[np.float32], image: Image, rule: str) -> NDArray[np.float32]:
    """Grey values → [-1, 1].

    ``bits``: the stored range, 0…255 or 0…65535. ``percentile``: the image's own 0.5…99.5 % range. ``auto``: bits for 8-bit
    files, percentile for 16-bit and float ones, which rarely use their whole range.
    """
    if rule == "auto":
        rule = "bits" if image.bits == 8 else "percentile"
    if rule == "bits":
        if image.bits == 32:
            raise UserError(f"{image.source}: float pixels have no stored range; set data.scale to percentile or auto")
        low, high = 0.0, float(2**image.bits - 1)
    else:
        low, high = (float(v) for v in np.percentile(pixels, (0.5, 99.5)))
        if high <= low:  # nearly constant: the two percentiles meet, the extremes do not
            low, high = float(pixels.min()), float(pixels.max())
    if high <= low:  # colours that differ, of one and the same grey
        raise UserError(f"{image.source}: every pixel has the same grey value; there is nothing to see, remove the file")
    unit = np.subtract(pixels, low, dtype=np.float64) / (high - low)  # float32 would overflow at either end of a float file
    return np.clip(unit * 2.0 - 1.0, -1.0, 1.0).astype(np.float32)
