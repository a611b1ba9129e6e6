"""Overlays: what exceeds the pixel threshold in colour over its image, on a scale that is the same for every image."""

import struct
import zlib
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshift.data.image import BLOCK, percentiles, row_blocks
from reshift.system.deflate import isal_zlib

# A dark-to-bright ramp (black, violet, magenta, orange, pale yellow): lightness rises all the way, so it also reads in grey
# and for colour-blind eyes.
RAMP = np.array(
    [[0, 0, 4], [40, 11, 84], [101, 21, 110], [159, 42, 99], [212, 72, 66], [245, 125, 21], [250, 193, 39], [252, 255, 164]]
)
DARKEST = 0.4  # where on the ramp the threshold lies
OUTLINE = (0, 215, 255)  # the one colour that neither the ramp nor a grey image has
RIM = 512  # pixels of image per pixel of outline
LEVELS = 1024  # of heat: one level changes a shown value by less than one of its 256 steps
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


def heat_colours(heat: NDArray[np.floating]) -> NDArray[np.float64]:
    """Heat above the threshold, 0 … 1 → RGB. The dark end of the ramp is left out: it would look like the image."""
    return _ramp(DARKEST + (1.0 - DARKEST) * heat)


@cache
def _blends() -> NDArray[np.uint32]:
    """Every level of heat over every grey, RGB in the first three of four bytes: level 0 is clear, 1 is the threshold."""
    heat = np.linspace(0.0, 1.0, LEVELS - 1)[:, None, None]
    alpha, over = 0.45 + 0.3 * heat, np.arange(256.0)[None, :, None]
    shown = np.rint((1.0 - alpha) * over + alpha * heat_colours(heat[:, :, 0]))
    clear = np.repeat(over, 3, axis=2)
    both = np.concatenate([clear, shown])
    return np.concatenate([both, np.zeros_like(both[:, :, :1])], axis=-1).astype(np.uint8).view(np.uint32).ravel()


def grey(pixels: NDArray[Any], window: tuple[float, float] | None = None) -> NDArray[np.uint8]:
    """Stored values ``(H, W, C)`` → 8-bit grey in ``window``, or between their 0.5 % and 99.5 % percentiles; for display only."""
    plane = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels.mean(-1, dtype=np.float32)
    low, high = percentiles(plane, (0.5, 99.5)) if window is None else window
    return np.concatenate([_in_window(rows, float(low), float(high)) for rows in row_blocks(plane)])


def _in_window(plane: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    unit = np.subtract(plane, low, dtype=np.float64)  # float32 would overflow at either end of a float file
    unit *= 255.0 / max(high - low, 1e-12)
    return np.asarray(np.clip(unit, 0, 255, out=unit).astype(np.uint8))


def overlay(
    pixels: NDArray[Any], heatmap: NDArray[np.float32], threshold: float, scale: float,
    window: tuple[float, float] | None = None,
) -> NDArray[np.uint8]:  # fmt: skip
    """The image as it is where the heat-map is below ``threshold``; coloured, the hotter the more opaque, and outlined above.

    ``scale`` is the map value of full colour; neither is ever fitted to the image shown.
    """
    under = grey(pixels, window)
    with np.errstate(invalid="ignore"):  # NaN lies outside the crop; it is not above anything
        above = heatmap > np.float32(threshold)
    if not above.any():
        return np.repeat(under[:, :, None], 3, axis=2)
    shown, step = np.empty((*heatmap.shape, 3), np.uint8), max(1, BLOCK // heatmap.shape[1])
    for rows in (slice(at, at + step) for at in range(0, len(heatmap), step)):
        shown[rows] = _blend(under[rows], heatmap[rows], above[rows], threshold, scale)
    shown[outline(above)] = OUTLINE
    return shown


def _blend(
    under: NDArray[np.uint8], heatmap: NDArray[np.float32], above: NDArray[np.bool_], threshold: float, scale: float
) -> NDArray[np.uint8]:
    heat = (heatmap[above] - np.float32(threshold)) * np.float32((LEVELS - 2) / max(scale - threshold, 1e-12))
    level = np.zeros(above.shape, dtype=np.int32)
    level[above] = 1 + np.rint(np.minimum(heat, np.float32(LEVELS - 2)))
    found = _blends().take(level * 256 + under).view(np.uint8).reshape(*above.shape, 4)
    # Not found[:, :, :3]: that is not contiguous, and copying it takes five times as long.
    return np.stack([found[:, :, c] for c in range(3)], axis=-1)


def outline(above: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The rim of what is ``above`` the threshold, thick enough to be seen when a large image is shown small."""
    width = max(1, round(max(above.shape) / RIM))
    inner = above.copy()
    inner[width:] &= above[:-width]
    inner[:-width] &= above[width:]
    inner[:, width:] &= above[:, :-width]
    inner[:, :-width] &= above[:, width:]
    return above & ~inner


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
    del packed
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
