"""Previews: the three most suspicious slices of a case in one small picture, with what is above the threshold outlined."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reshift.data.image import Image
from reshift.inference.calibration import Calibration
from reshift.inference.labels import tile
from reshift.inference.overlay import overlay, png
from reshift.system.files import atomic_bytes, writing

SLICES = 3
SIDE = 320  # of a slice, in pixels


def preview_tile(image: Image, heatmap: NDArray[np.float32], calibration: Calibration, label: str) -> NDArray[np.uint8]:
    """One slice: image, heat-map and outline."""
    shown = overlay(image.pixels, heatmap, calibration.reference.pixel_threshold, calibration.heat_scale, image.window)
    return tile(shown, image.spacing, SIDE, label)


def slice_label(place: int | None, p_value: float | None) -> str:
    """What stands in the corner."""
    named = "" if place is None else f"slice {place}  "
    return f"{named}p = {p_value:.3g}" if p_value is not None else named


def save_preview(out: Path, name: str, tiles: Sequence[NDArray[np.uint8]]) -> None:
    """Write ``previews/NAME.png``, the tiles side by side."""
    target = out / "previews" / f"{name}.png"
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    atomic_bytes(target, png(np.concatenate(tiles, axis=1)))
