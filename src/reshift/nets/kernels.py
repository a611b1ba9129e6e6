"""Whether our own GPU kernels run: where Triton is installed, which comes with torch for CUDA. Elsewhere torch's own do."""

from importlib.util import find_spec

from torch import Tensor

ENABLED = find_spec("triton") is not None


def run_on(x: Tensor) -> bool:
    """Whether ``x`` lies where they run."""
    return ENABLED and x.is_cuda
