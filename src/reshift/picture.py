"""Overlays: a heat-map laid over its scan, on a colour scale that is the same for every image."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# A dark-to-bright ramp (black, violet, magenta, orange, pale yellow): lightness rises all the way, so it also reads in grey
# and for colour-blind eyes.
RAMP = np.array(
    [[0, 0, 4], [40, 11, 84], [101, 21, 110], [159, 42, 99], [212, 72, 66], [245, 125, 21], [250, 193, 39], [252, 255, 164]]
)


def colours(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Values in 0…1 → RGB, ``(H, W)`` → ``(H, W, 3)``."""
    at = np.linspace(0.0, 1.0, len(RAMP))
    rgb = np.stack([np.interp(values, at, RAMP[:, c]) for c in range(3)], axis=-1)
    return rgb.round().astype(np.uint8)


def grey(pixels: NDArray[np.float32], window: tuple[float, float] | None = None) -> NDArray[np.uint8]:
    """Stored values ``(H, W, C)`` → 8-bit grey in ``window``, or between their 0.5 % and 99.5 % percentiles; for display only."""
    plane = pixels.mean(-1)
    low, high = np.percentile(plane, (0.5, 99.5)) if window is None else window
    shown: NDArray[np.uint8] = np.clip((plane - low) / max(float(high - low), 1e-12) * 255.0, 0, 255).astype(np.uint8)
    return shown


def overlay(
    pixels: NDArray[np.float32], heatmap: NDArray[np.float32], scale: float, window: tuple[float, float] | None = None
) -> NDArray[np.uint8]:
    """Blend: the hotter, the more opaque. ``scale`` is the map value of full colour; never fitted to the image shown."""
    heat = np.nan_to_num(np.clip(heatmap / scale, 0.0, 1.0))  # NaN was not looked at and stays grey
    alpha = (0.75 * np.sqrt(heat))[:, :, None]
    base = np.repeat(grey(pixels, window)[:, :, None], 3, axis=2)
    blended: NDArray[np.uint8] = np.rint((1.0 - alpha) * base + alpha * colours(heat)).astype(np.uint8)
    return blended


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
