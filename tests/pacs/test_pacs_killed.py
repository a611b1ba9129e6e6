"""SIGKILL at random moments: no study is lost, and nothing is stored twice. ``benchmarks/pacs_kills.py`` runs more rounds."""

from pathlib import Path

from killed_runs import kill_round
from orthanc import Orthanc


def test_a_killed_run_loses_nothing_and_stores_nothing_twice(tiny_bundle: Path, archive: Orthanc, tmp_path: Path) -> None:
    found = kill_round(tiny_bundle, archive, tmp_path, seed=2, studies=2, kills=2)
    assert (found.lost, found.twice) == (0, 0)
    assert found.kills > 0
