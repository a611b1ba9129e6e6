"""What is equal to the bit, and what only within a tolerance, when a run is repeated under other circumstances.

``determinism_table`` is what ``reshift doctor --determinism`` prints. Rows that name a test are held to by it.
"""

from typing import NamedTuple

BITS = "equal to the bit"


class Promise(NamedTuple):
    """What may change between two runs with the same seed, data and versions, and what stays the same then."""

    changed: str
    training: str  # the weights
    scoring: str  # scores and heat-maps of one bundle
    checked_by: str  # a test, or how it was measured


PROMISES = (
    Promise("nothing: the same command again", BITS, BITS, "tests/system/test_determinism.py"),
    Promise("stopped and resumed, also after a kill", BITS, BITS, "tests/training/test_train.py, tests/faults"),
    Promise("order and number of the images scored together", "–", BITS, "tests/system/test_determinism.py"),
    Promise("workers that read images (RESHIFT_WORKERS)", BITS, BITS, "tests/system/test_determinism.py"),
    Promise("images kept in memory or streamed (data.memory_gb)", BITS, "–", "tests/training/test_train.py"),
    Promise("number of CPU threads (OMP_NUM_THREADS)", "not equal: sums in another order", "scores within 1e-5, relative",
            "tests/system/test_determinism.py (scoring)"),
    Promise("train.batch", "not equal: another training", "–", "by design"),
    Promise("another kind of CPU", "not equal", "not measured", "not tested: other instructions round otherwise"),
    Promise("CPU or GPU", "not equal: another order of sums, bf16", "not measured here", "not tested: needs a GPU"),
    Promise("batches on a GPU", "–", "within the rounding of its kernels", "not tested: needs a GPU"),
)  # fmt: skip


def determinism_table() -> list[dict[str, str]]:
    """One row per circumstance, as a table or JSON shows it."""
    return [promise._asdict() for promise in PROMISES]
