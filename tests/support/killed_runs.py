"""Kill ``reshift pacs score --push`` at random moments, run it to the end, and count what the archive has."""

import random
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from helpers import start
from orthanc import Orthanc
from pacs_studies import states, write_study
from pydicom import dcmread


class Round(NamedTuple):
    """What one round saw."""

    kills: int
    reached: Counter[str]  # states of series at the moments of the kills
    lost: int  # studies without a whole set of results
    twice: int  # results beyond one set per study


def kill_round(bundle: Path, archive: Orthanc, folder: Path, seed: int, studies: int = 3, kills: int = 3) -> Round:
    """One round: ``kills`` runs that are killed as soon as they reach a random point, then one that may finish."""
    chance = random.Random(seed)
    archive.delete_all()
    sources = [path for number in range(1, studies + 1) for path in write_study(folder, number)]
    archive.upload(sources)
    out, reached, done = folder / "out", Counter[str](), 0
    arguments = ("pacs", "score", bundle, "--dicomweb", archive.dicomweb, "--out", out, "--push")
    for _ in range(kills):
        target = chance.randrange(min(_progress(out), 6 * studies - 1), 6 * studies)
        process = start(*arguments)
        while process.poll() is None and _progress(out) < target:
            time.sleep(0.002)
        time.sleep(chance.uniform(0.0, 0.1))
        done += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
        reached.update({state: len(found) for state, found in _states(out).items()})
    finish = start(*arguments)
    _, err = finish.communicate(timeout=120)
    assert finish.returncode == 0, err
    return _count(archive, sources, out, studies, done, reached)


def _progress(out: Path) -> int:
    """Steps that the ledger knows: a series has three, and about three results."""
    try:
        with closing(sqlite3.connect(f"file:{out / 'ledger.sqlite'}?mode=ro", uri=True)) as db:
            steps = sum(
                {"fetched": 1, "scored": 2, "pushed": 3}.get(state, 0) for (state,) in db.execute("SELECT state FROM series")
            )
            return steps + int(db.execute("SELECT count(*) FROM result WHERE stored").fetchone()[0])
    except sqlite3.Error:  # not there yet, or just being written
        return 0


def _states(out: Path) -> dict[str, list[str]]:
    try:
        return states(out)
    except sqlite3.Error:  # killed before its tables were made
        return {}


def _count(archive: Orthanc, sources: list[Path], out: Path, studies: int, kills: int, reached: Counter[str]) -> Round:
    """Every result on disk is in the archive, and there is nothing else beside the sources."""
    stored = archive.instances()
    made = {str(dcmread(path, stop_before_pixels=True).SOPInstanceUID) for path in out.rglob("*.dcm")}
    masks = Counter(found["SeriesDescription"] for found in archive.series() if found["Modality"] == "SEG")
    lost = studies - sum(masks.values()) if sum(masks.values()) < studies else 0
    lost += len(made - set(stored))
    return Round(kills, reached, lost, len(stored) - len(sources) - len(made))
