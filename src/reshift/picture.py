"""Overlays: a heat-map laid over its scan, on a colour scale that is the same for every image."""

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


def grey(pixels: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Stored values ``(H, W, C)`` → 8-bit grey between their 0.5 % and 99.5 % percentiles, for display only."""
    plane = pixels.mean(-1)
    low, high = np.percentile(plane, (0.5, 99.5))
    shown: NDArray[np.uint8] = np.clip((plane - low) / max(float(high - low), 1e-12) * 255.0, 0, 255).astype(np.uint8)
    return shown


def overlay(pixels: NDArray[np.float32], heatmap: NDArray[np.float32], scale: float) -> NDArray[np.uint8]:
    """Blend: the hotter, the more opaque. ``scale`` is the map value of full colour; never fitted to the image shown."""
    heat = np.nan_to_num(np.clip(heatmap / scale, 0.0, 1.0))  # NaN was not looked at and stays grey
    alpha = (0.75 * np.sqrt(heat))[:, :, None]
    base = np.repeat(grey(pixels)[:, :, None], 3, axis=2)
    blended: NDArray[np.uint8] = np.rint((1.0 - alpha) * base + alpha * colours(heat)).astype(np.uint8)
    return blended
