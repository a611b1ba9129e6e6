"""Reshift: detect and localise disease in medical images after seeing healthy images only.

>>> import reshift
>>> model = reshift.load("runs/demo/bundle")
>>> [result] = model.predict("scan.png")
>>> result.score, result.p_value, result.flag, result.heatmap.shape
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from reshift.inference.model import Model

__version__ = "0.2.0.dev0"


def load(path: "str | Path", device: str = "auto") -> "Model":
    """Load a bundle for prediction. Imports torch only now, and no training code at all."""
    from pathlib import Path

    from reshift.inference.model import load_model

    return load_model(Path(path), device)
