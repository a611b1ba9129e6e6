"""Import torch faster."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Switch garbage collection off while torch is imported, and exclude what it made from later collections.

    These objects live until the process ends, and collecting among them costs half a second. Use it in our own commands
    only: a program that imports this package decides about its own garbage collection.
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
