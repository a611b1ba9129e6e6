"""What our commands set before torch is imported, and what they leave to the user."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os
from reshift.system.imports import heavy_imports
with heavy_imports():
    pass
print(os.environ.get("GOMP_SPINCOUNT"))
"""


@pytest.mark.parametrize(("given", "expected"), [
    ({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None"),
])  # fmt: skip
def test_threads_that_wait_go_to_sleep_unless_the_user_says_otherwise(given: dict[str, str], expected: str) -> None:
    ours = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=ours | given, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


def test_a_program_that_has_torch_already_keeps_its_environment() -> None:
    script = f"import sys; sys.modules['torch'] = sys\n{SCRIPT}"
    ours = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    done = subprocess.run([sys.executable, "-c", script], env=ours, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"
