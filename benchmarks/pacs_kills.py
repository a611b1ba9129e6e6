"""SIGKILL at random moments of ``reshift pacs score --push``: instances in a real Orthanc are counted after every round.

    python benchmarks/pacs_kills.py [--rounds 20] [--seed 0]

A round: three studies lie in the archive; three runs are killed within 0.1 s after the ledger reached a random point; a fourth
runs to its end. Lost: studies or results that the archive does not have. Twice: instances that are neither a source nor the
one copy of a result. Needs Debian's orthanc and orthanc-dicomweb.
"""

import sys
import tempfile
from argparse import ArgumentParser
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from helpers import save_many
from killed_runs import kill_round
from orthanc import running_orthanc

from reshift.training.run import resolve, train_run


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    totals, reached = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = resolve("brightness", "paper", [{"data": {"size": 32}, "calibrate": {"features": "off"}}])
        bundle = train_run(config, save_many(folder / "images"), folder / "run")
        with running_orthanc(folder / "orthanc") as archive:
            for number in range(arguments.rounds):
                found = kill_round(bundle, archive, folder / f"round{number}", arguments.seed + number)
                totals.update(kills=found.kills, lost=found.lost, twice=found.twice)
                reached.update(found.reached)
                print(f"round {number + 1}: {found}", file=sys.stderr, flush=True)
    print(f"{arguments.rounds} rounds, {totals['kills']} kills, {totals['lost']} lost, {totals['twice']} stored twice")
    print("series at the moments of the kills:", ", ".join(f"{state} {count}" for state, count in sorted(reached.items())))


if __name__ == "__main__":
    main()
