"""Count the processor cores."""

import os


def cores() -> int:
    """Return how many cores this process may use: those of its container or batch job, not all of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
