"""Memory that is freed stays with the process: counted by page faults, in processes of their own."""

import os
import subprocess
import sys

import pytest

from reshift.system.allocator import keep_freed_memory, worker_environment

GLIBC = sys.platform.startswith("linux") and os.confstr("CS_GNU_LIBC_VERSION") is not None
BLOCKS, BYTES, ROUNDS = 8, 24 * 2**20, 10  # together more than glibc keeps by itself

# Fill and free blocks as a training step does, and print how many pages had to be asked for again.
PROGRAM = f"""
import resource, torch
from reshift.system.device import pick_device
pick_device("cpu")
def step():
    blocks = [torch.empty({BYTES}, dtype=torch.uint8).fill_(1) for _ in range({BLOCKS})]
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ROUNDS}):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(**given: str) -> int:
    """Of the program above, with this in the environment."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=plain | given, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not GLIBC, reason="the C library is not glibc")
def test_a_step_finds_the_memory_of_the_step_before() -> None:
    pages = BLOCKS * BYTES // 4096
    assert page_faults() < pages
    assert page_faults(MALLOC_TRIM_THRESHOLD_=str(2**20), MALLOC_MMAP_THRESHOLD_=str(2**20)) > ROUNDS / 2 * pages


def test_the_environment_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in worker_environment().items():
        monkeypatch.setenv(name, value)
    assert keep_freed_memory.__wrapped__() is False


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in worker_environment():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory.__wrapped__() is False
