"""Heat-maps and masks that the tests of pixel metrics share."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]


def maps(kind: str, images: int = 128) -> tuple[Floats, Bools]:
    """Maps of 128×128, by default 2.1 million pixels; a third of the images with a lesion, or 30 % of all pixels."""
    rng = np.random.default_rng(1)
    shape = (images, 128, 128)
    lesion = np.zeros(shape, dtype=bool)
    for image in range(0, images, 3):
        top, left, side = rng.integers(0, 100), rng.integers(0, 100), rng.integers(5, 28)
        lesion[image, top : top + side, left : left + side] = True
    noise = rng.normal(size=shape)
    if kind == "signed":
        return (noise + 1.5 * lesion - 0.5).astype(np.float32), lesion
    if kind == "constant":
        return np.full(shape, 0.3, dtype=np.float32), lesion
    if kind == "squeezed":
        lesion = rng.random(shape) < 0.3
        return (1.0 + 0.05 * np.tanh(0.3 * (noise + lesion))).astype(np.float32), lesion
    residual = np.abs(noise) * 0.05 + lesion * rng.uniform(0.0, 0.2, shape)
    if kind == "8-bit":
        residual = np.rint(np.clip(residual, 0.0, 1.0) * 255.0) / 255.0
    return residual.astype(np.float32), lesion
