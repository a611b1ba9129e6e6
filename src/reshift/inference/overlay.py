"""Overlays: a heat-map blended over its image, on a colour scale that is the same for every image."""

import math
import struct
import zlib
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from reshift.data.image import percentiles

try:
    from isal import isal_zlib
except ImportError:  # no build for this processor
    isal_zlib = None  # type: ignore[assignment]

# A dark-to-bright ramp (black, violet, magenta, orange, pale yellow): lightness rises all the way, so it also reads in grey
# and for colour-blind eyes.
RAMP = np.array(
    [[0, 0, 4], [40, 11, 84], [101, 21, 110], [159, 42, 99], [212, 72, 66], [245, 125, 21], [250, 193, 39], [252, 255, 164]]
)
LEVELS = 1024  # of heat, by its square root: one level changes a shown value by less than one of its 256 steps
OVERLAYS = ("all", "flagged", "none")  # cases that get one


def wants_overlay(overlays: str, *, flagged: bool) -> bool:
    """Whether a case gets an overlay."""
    return overlays == "all" or (overlays == "flagged" and flagged)


def colours(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Values in 0…1 → RGB, ``(H, W)`` → ``(H, W, 3)``. Values outside get the colour of the nearer end, NaN that of 0."""
    return _ramp(np.nan_to_num(np.clip(values, 0.0, 1.0))).round().astype(np.uint8)


def _ramp(values: NDArray[np.floating]) -> NDArray[np.float64]:
    at = np.linspace(0.0, 1.0, len(RAMP))
    return np.stack([np.interp(values, at, RAMP[:, c]) for c in range(3)], axis=-1)


@cache
def _blends() -> NDArray[np.uint32]:
    """Every level of heat over every grey, RGB in the first three of four bytes: the hotter, the more opaque."""
    root = np.linspace(0.0, 1.0, LEVELS)[:, None, None]
    alpha, over = 0.75 * root, np.arange(256.0)[None, :, None]
    shown = np.rint((1.0 - alpha) * over + alpha * _ramp(np.square(root[:, :, 0])))
    return np.concatenate([shown, np.zeros_like(shown[:, :, :1])], axis=-1).astype(np.uint8).view(np.uint32).ravel()


def grey(pixels: NDArray[np.float32], window: tuple[float, float] | None = None) -> NDArray[np.uint8]:
    """Stored values ``(H, W, C)`` → 8-bit grey in ``window``, or between their 0.5 % and 99.5 % percentiles; for display only."""
    plane = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels.mean(-1)
    low, high = percentiles(plane, (0.5, 99.5)) if window is None else window
    unit = np.subtract(plane, low, dtype=np.float64)  # float32 would overflow at either end of a float file
    unit *= 255.0 / max(float(high - low), 1e-12)
    return np.clip(unit, 0, 255, out=unit).astype(np.uint8)


def overlay(
    pixels: NDArray[np.float32], heatmap: NDArray[np.float32], scale: float, window: tuple[float, float] | None = None
) -> NDArray[np.uint8]:
    """Blend: the hotter, the more opaque. ``scale`` is the map value of full colour; never fitted to the image shown."""
    heat = np.fmax(heatmap / np.float32(scale), np.float32(0.0))  # NaN lies outside the crop: fmax makes it 0, and it stays grey
    level = np.sqrt(np.minimum(heat, np.float32(1.0), out=heat), out=heat)
    level = np.rint(np.multiply(level, np.float32(LEVELS - 1), out=level), out=level)
    place = level.astype(np.int32) * 256 + grey(pixels, window)
    found = _blends().take(place).view(np.uint8).reshape(*place.shape, 4)
    # Not found[:, :, :3]: that is not contiguous, and copying it takes five times as long.
    return np.stack([found[:, :, c] for c in range(3)], axis=-1)


def png(rgb: NDArray[np.uint8]) -> bytes:
    """``(H, W, 3)`` → a PNG file: each row as its difference from the row above.

    Pillow tries five differences per row and looks hard for repeats: twenty times the work for a file a tenth smaller
    (docs/performance.md).
    """
    height, width, _ = rgb.shape
    rows = rgb.reshape(height, 3 * width)
    packed = np.full((height, 1 + 3 * width), 2, dtype=np.uint8)  # 2 in front of a row: "as the one above, and …"
    packed[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=packed[1:, 1:])
    body = _deflate(packed)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in ((b"IHDR", head), (b"IDAT", body), (b"IEND", b"")))


def _deflate(rows: NDArray[np.uint8]) -> bytes:
    """Compress, by isal if it is installed; without it, by run lengths only, which takes four times as long."""
    if isal_zlib is not None:
        return isal_zlib.compress(rows.data, 1)
    compressor = zlib.compressobj(1, strategy=zlib.Z_RLE)
    return compressor.compress(rows.data) + compressor.flush()


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(data, zlib.crc32(name)))


def tile(rgb: NDArray[np.uint8], spacing: tuple[float, float], side: int, label: str) -> NDArray[np.uint8]:
    """``(H, W, 3)`` → ``(side, side, 3)`` in its true proportions, centred on black, with a label in the corner."""
    import PIL.Image
    import PIL.ImageDraw

    tall, wide = rgb.shape[0] * spacing[0], rgb.shape[1] * spacing[1]
    rows, columns = (max(1, round(side * length / max(tall, wide))) for length in (tall, wide))
    shown = PIL.Image.fromarray(rgb).resize((columns, rows), PIL.Image.Resampling.BILINEAR, reducing_gap=2.0)
    frame = PIL.Image.new("RGB", (side, side))
    frame.paste(shown, ((side - columns) // 2, (side - rows) // 2))
    PIL.ImageDraw.Draw(frame).text((3, 2), label, fill=(255, 255, 255))
    return np.asarray(frame)


def montage(tiles: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Lay tiles of one size out in rows, left to right and top to bottom, about twice as many columns as rows."""
    columns = min(len(tiles), math.ceil(math.sqrt(2 * len(tiles))))
    black = [np.zeros_like(tiles[0])] * (-len(tiles) % columns)
    full = [*tiles, *black]
    return np.concatenate([np.concatenate(full[at : at + columns], axis=1) for at in range(0, len(full), columns)])
