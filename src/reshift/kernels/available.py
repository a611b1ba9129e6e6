"""Which fast parts run here, and what all fast twins of plain layers have in common."""

import os
import warnings
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

VARIABLE = "RESHIFT_KERNELS"


def switched_on(name: str) -> bool:
    """Whether RESHIFT_KERNELS allows a part: ``auto`` all of them, ``off`` none, else all but the names it lists."""
    wish = os.environ.get(VARIABLE) or "auto"
    return wish == "auto" or (wish != "off" and name not in wish.split(","))


def runs_on(device: torch.device) -> bool:
    """Whether our own GPU kernels run on ``device``: they need CUDA and Triton, which comes with torch for CUDA."""
    return device.type == "cuda" and find_spec("triton") is not None and compiles_on(device)


@lru_cache(maxsize=32)
def compiles_on(device: torch.device) -> bool:
    """Try one kernel. Triton needs a C compiler and Python's headers, which many deployment containers lack."""
    from reshift.kernels.trial import doubled

    try:
        return doubled(1.0, device) == 2.0
    except Exception as err:  # whatever it is, torch's own kernels remain
        lines = str(err).strip().splitlines() or [type(err).__name__]
        warnings.warn(f"our GPU kernels cannot be compiled here ({lines[0]}); torch's own run, which are slower", stacklevel=2)
        return False


def on_gpu(x: Tensor) -> bool:
    """Whether ``x`` lies where the kernels run. A model that was accelerated on a GPU may have moved to the CPU since."""
    return x.is_cuda


class Twin:
    """A fast twin of a plain layer: a subclass of both this and the layer, with the same weights under the same names."""

    @staticmethod
    def replaces(layer: Any) -> bool:
        """Whether the twin can stand in for this layer of its plain class."""
        return True


def plain_type(layer: nn.Module) -> type:
    """The class of a layer or, of a twin, of the layer that it replaces."""
    return next(kind for kind in type(layer).__mro__ if not issubclass(kind, Twin))
