"""Import torch faster, and let its threads wait without keeping cores busy."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# How often a thread of GNU OpenMP looks for work before it sleeps. By default that keeps cores busy for milliseconds, and slows
# training down beside other busy programs (docs/performance.md).
SPINS = "1000"


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Switch garbage collection off while torch is imported, and exclude what it made from later collections.

    These objects live until the process ends, and collecting among them costs half a second. Use it in our own commands
    only: a program that imports this package decides about its own garbage collection and threads.
    """
    if "torch" in sys.modules:
        yield
        return
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # read when torch loads the library
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
