"""What a reader returns: pixels as stored, with what is needed to interpret them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Image:
    """One picture. ``bits`` is the stored depth (8, 16, or 32 for float), which decides how it is scaled."""

    pixels: NDArray[np.float32]  # (H, W, C), stored values
    bits: int
    source: Path
    window: tuple[float, float] | None = None  # grey range to scale by, from the volume it is a slice of
    spacing: tuple[float, float] = (1.0, 1.0)  # millimetres from row to row and from column to column
