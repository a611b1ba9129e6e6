"""Overlays: a heat-map laid over its scan, on a colour scale that is the same for every image."""

import math
import struct
import zlib
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from reshift.percentiles import percentiles

# A dark-to-bright ramp (black, violet, magenta, orange, pale yellow): lightness rises all the way, so it also reads in grey
# and for colour-blind eyes.
RAMP = np.array(
    [[0, 0, 4], [40, 11, 84], [101, 21, 110], [159, 42, 99], [212, 72, 66], [245, 125, 21], [250, 193, 39], [252, 255, 164]]
)
STEPS = 1 << 16  # of the table of colours; a power of two, so that finding a value's step rounds nothing


def colours(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Values in 0…1 → RGB, ``(H, W)`` → ``(H, W, 3)``. Beyond that range they have the colours of its ends, NaN that of 0."""
    heat = np.nan_to_num(np.clip(values, 0.0, 1.0))
    rgbx = _table().take((heat * STEPS).astype(np.int32)).view(np.uint8).reshape(-1, 4)
    mixed = np.flatnonzero(rgbx[:, 3])
    rgbx[mixed, :3] = _ramp(heat.ravel()[mixed])
    return np.ascontiguousarray(rgbx[:, :3]).reshape(*values.shape, 3)


def _ramp(values: NDArray[np.floating]) -> NDArray[np.uint8]:
    at = np.linspace(0.0, 1.0, len(RAMP))
    rgb = np.stack([np.interp(values, at, RAMP[:, c]) for c in range(3)], axis=-1)
    return rgb.round().astype(np.uint8)


@cache
def _table() -> NDArray[np.uint32]:
    """The colour at the lower end of each step, as four bytes; the last says that the colour changes within the step.

    Looking up costs the same for every map; interpolating costs up to ten times that where neighbours differ. Between two knots
    the ramp never turns, so a step with equal colours at both ends has no other inside.
    """
    ends = _ramp(np.linspace(0.0, 1.0, STEPS + 1))
    mixed = np.append((ends[1:] != ends[:-1]).any(-1), False)
    mixed[np.arange(1, len(RAMP) - 1) * STEPS // (len(RAMP) - 1)] = True  # a knot lies within
    return np.column_stack([ends, mixed.astype(np.uint8)]).view(np.uint32).ravel()


def grey(pixels: NDArray[np.float32], window: tuple[float, float] | None = None) -> NDArray[np.uint8]:
    """Stored values ``(H, W, C)`` → 8-bit grey in ``window``, or between their 0.5 % and 99.5 % percentiles; for display only."""
    plane = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels.mean(-1)
    low, high = percentiles(plane, (0.5, 99.5)) if window is None else window
    shown: NDArray[np.uint8] = np.clip((plane - low) / max(float(high - low), 1e-12) * 255.0, 0, 255).astype(np.uint8)
    return shown


def overlay(
    pixels: NDArray[np.float32], heatmap: NDArray[np.float32], scale: float, window: tuple[float, float] | None = None
) -> NDArray[np.uint8]:
    """Blend: the hotter, the more opaque. ``scale`` is the map value of full colour; never fitted to the image shown."""
    heat = np.nan_to_num(np.clip(heatmap / scale, 0.0, 1.0))  # NaN was not looked at and stays grey
    alpha = 0.75 * np.sqrt(heat)
    blended = alpha[:, :, None] * colours(heat)
    blended += ((1.0 - alpha) * grey(pixels, window))[:, :, None]
    return np.asarray(np.rint(blended, out=blended).astype(np.uint8))


def png(picture: NDArray[np.uint8]) -> bytes:
    """``(H, W, 3)`` → a PNG file: each row as its difference from the row above, of which only runs are shortened.

    Pillow tries five differences per row and looks for repeats: seven to nine times the work for files a tenth smaller
    (benchmarks/data.py).
    """
    height, width, _ = picture.shape
    rows = picture.reshape(height, 3 * width)
    packed = np.full((height, 1 + 3 * width), 2, dtype=np.uint8)  # 2 in front of a row: "as the one above, and …"
    packed[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=packed[1:, 1:])
    squeeze = zlib.compressobj(1, strategy=zlib.Z_RLE)
    body = squeeze.compress(packed.data) + squeeze.flush()
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in ((b"IHDR", head), (b"IDAT", body), (b"IEND", b"")))


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(data, zlib.crc32(name)))


def tile(picture: NDArray[np.uint8], spacing: tuple[float, float], side: int, label: str) -> NDArray[np.uint8]:
    """``(H, W, 3)`` → ``(side, side, 3)`` in its true proportions, centred on black, with a label in the corner."""
    import PIL.Image
    import PIL.ImageDraw

    tall, wide = picture.shape[0] * spacing[0], picture.shape[1] * spacing[1]
    rows, columns = (max(1, round(side * length / max(tall, wide))) for length in (tall, wide))
    shown = PIL.Image.fromarray(picture).resize((columns, rows), PIL.Image.Resampling.BILINEAR, reducing_gap=2.0)
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
