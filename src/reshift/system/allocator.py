"""Let the C library keep memory that is freed, for the next tensor of that size: what torch does on a GPU, for the CPU.

glibc gives large blocks back to the system. Every training step then asks for hundreds of megabytes anew, and pays a page
fault for every 4 kB of them.
"""

import ctypes
import os
import sys
from functools import cache

LARGEST = 2**25  # bytes of a block that is kept; glibc allows no more
KEPT = 2**30  # freed bytes that one process keeps at most
WORKER_KEPT = 2**28  # there are many workers, and each has one image
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_… in glibc's malloc.h
_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def worker_environment() -> dict[str, str]:
    """The same for a process that is still to be started."""
    return dict(zip(_VARIABLES, (str(LARGEST), str(WORKER_KEPT)), strict=True))


@cache
def keep_freed_memory() -> bool:
    """Do so from now on, in this process, and say whether it was possible. What the environment says stays in force."""
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _VARIABLES):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, LARGEST)) and bool(mallopt(_TRIM_THRESHOLD, KEPT))
