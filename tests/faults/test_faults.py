"""Some rounds of the faults that ``make faults`` tries two hundred of."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from archives import is_here
from rounds import Runs, plan, prepared

ROUNDS = {("train", "score", "evaluate", "bench"): 20, ("serve",): 7, ("pacs",): 3}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    if not (shutil.which("cc") or shutil.which("gcc")) or not Path("/proc/self/fd").exists():
        pytest.skip("needs a C compiler and the /proc of Linux")
    with prepared(tmp_path_factory.mktemp("faults")) as runs:
        yield runs


@pytest.mark.parametrize("commands", ROUNDS, ids="-".join)
def test_a_broken_run_can_be_run_again(runs: Runs, commands: tuple[str, ...]) -> None:
    if not all(is_here(command) for command in commands):
        pytest.skip("Orthanc with DICOMweb is not installed (Debian: orthanc orthanc-dicomweb)")
    for command in commands:
        runs.unbroken(command)
    totals = {command: runs.totals[command] for command in commands}
    ends = [runs.broken(*fault) for fault in plan(ROUNDS[commands], 0, totals)]
    assert len(set(ends)) > 1, ends  # the faults were met
