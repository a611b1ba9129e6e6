"""Metrics of one image with a lesion, over its own pixels: what paired tests between benchmark rows compare."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshift.evaluation.metrics.image import average_precision, curve


@dataclass(frozen=True)
class LesionImage:
    """The pixels of one image that count. ``threshold`` comes from normals; a pixel is called abnormal above it."""

    lesion: NDArray[np.bool_]
    heat: NDArray[np.float32]
    threshold: float | None

    def ap(self) -> float | None:
        """Average precision."""
        return average_precision(*curve(self.lesion, self.heat.astype(np.float64))[:2])

    def dice(self) -> float | None:
        """Dice at the threshold."""
        if self.threshold is None:
            return None
        called = self.heat > self.threshold
        return 2.0 * float((called & self.lesion).sum()) / float(called.sum() + self.lesion.sum())
