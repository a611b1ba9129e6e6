"""Twenty rounds of the faults that ``make faults`` tries two hundred of."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from rounds import COMMANDS, Runs, plan, prepared

ROUNDS = 20


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    if not (shutil.which("cc") or shutil.which("gcc")) or not Path("/proc/self/fd").exists():
        pytest.skip("needs a C compiler and the /proc of Linux")
    with prepared(tmp_path_factory.mktemp("faults")) as runs:
        for command in COMMANDS:
            runs.unbroken(command)
        yield runs


def test_a_broken_run_can_be_run_again(runs: Runs) -> None:
    ends = [runs.broken(*fault) for fault in plan(ROUNDS, 0, runs.totals)]
    assert {"killed", "one line", "complete"} <= set(ends)
