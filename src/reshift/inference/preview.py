"""Previews: the three most suspicious slices of a case in one small picture, with what is above the threshold outlined."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reshift.data.image import Image
from reshift.inference.calibration import Calibration
from reshift.inference.labels import UNLIKE, Numbers, blend, tile
from reshift.inference.overlay import png
from reshift.system.files import atomic_bytes, writing

SLICES = 3
SIDE = 320  # of a slice, in pixels


def preview_tile(
    image: Image, heatmap: NDArray[np.float32], numbers: Numbers, calibration: Calibration, place: int | None = None
) -> NDArray[np.uint8]:
    """One slice: image, heat-map and outline, its index and p-value in a corner; unlike the training images, without a map."""
    shown = blend(image.pixels, heatmap, numbers, calibration, image.window)
    named, p_value = "" if place is None else f"slice {place}  ", numbers["p_value"]
    corner = f"{named}p = {p_value:.3g}" if p_value is not None else named
    return tile(shown, image.spacing, SIDE, corner, *[UNLIKE] * bool(numbers["unlike"]))


def save_preview(out: Path, name: str, tiles: Sequence[NDArray[np.uint8]]) -> None:
    """Write ``previews/NAME.png``, the tiles side by side."""
    target = out / "previews" / f"{name}.png"
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    atomic_bytes(target, png(np.concatenate(tiles, axis=1)))
