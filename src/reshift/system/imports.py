"""Importing torch at two thirds of the price."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Look for no garbage while torch is imported, nor ever again among what it leaves.

    The objects it makes stay to the end. Python would look through them over and over while they pile up, and once more at exit:
    half a second in all. Only for a program of ours: whoever imports this package decides about their own garbage.
    """
    if "torch" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
