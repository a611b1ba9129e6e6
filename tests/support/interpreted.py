"""Run a part of a test where Triton interprets its kernels."""

from importlib.util import find_spec

import pytest
from forked import Forked


def interpret(module: str, function: str) -> None:
    """Call a function of a test module in ``tests/kernels``; what it raises fails the test."""
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed (it comes with torch for CUDA)")
    code = f"import sys; sys.path[:0] = ['tests/support', 'tests/kernels']; import {module}; {module}.{function}()"
    process = Forked(code, [], interpreted=True)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
