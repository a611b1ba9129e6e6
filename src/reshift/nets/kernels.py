"""Whether our own GPU kernels run: where Triton, which comes with torch for CUDA, can compile them. Elsewhere torch's do."""

import warnings
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

ENABLED = find_spec("triton") is not None


def run_on(x: Tensor) -> bool:
    """Whether ``x`` lies where they run."""
    return ENABLED and x.is_cuda and compile_on(x.device)


@lru_cache(maxsize=32)
def compile_on(device: torch.device) -> bool:
    """Try one. Triton needs a C compiler and Python's headers, which many a container for deployment has not."""
    from reshift.nets.trial_triton import doubled

    try:
        worked = doubled(1.0, device) == 2.0
    except Exception as err:  # whatever it is, torch's own kernels remain
        lines = str(err).strip().splitlines() or [type(err).__name__]
        warnings.warn(f"our GPU kernels cannot be compiled here ({lines[0]}); torch's own run, which are slower", stacklevel=2)
        return False
    return worked
