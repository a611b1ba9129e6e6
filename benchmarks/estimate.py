"""How far the cost estimate of ``reshift bench --dry-run`` is off: estimate each training of a suite, run it, and compare.

    OMP_NUM_THREADS=1 python benchmarks/estimate.py SUITE.toml --data DATA [--only 'busi-*']

In seconds of processor time on a CPU, so that other programs do not count. With more than one thread they all count.
"""

import argparse
import fnmatch
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

from reshift.bench.cells import Event
from reshift.bench.compute import run_task
from reshift.bench.cost import estimate_task
from reshift.bench.plan import group_tasks, plan
from reshift.bench.suite import load_suite


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only", default="*", help="cells, as in 'reshift bench'")
    given = parser.parse_args()
    print("| cell | cells | estimated, s | measured, s | ratio |\n|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        specs = plan(load_suite(given.suite), given.data, Path(folder)).specs
        for task in group_tasks([spec for spec in specs if fnmatch.fnmatch(spec.name, given.only)], Path(folder)):
            with patch("time.perf_counter", time.process_time):
                expected = estimate_task(task, "cpu")
            begun, events = time.process_time(), list[Event]()
            run_task(task, "cpu", events.append)
            measured = time.process_time() - begun
            if any(event.kind == "failed" for event in events) or isinstance(expected, str):
                print(f"| {task.cells[0].name} | {len(task.cells)} | – | – | failed |", flush=True)
            else:
                numbers = f"{expected:.1f} | {measured:.1f} | {expected / measured:.2f}"
                print(f"| {task.cells[0].name} | {len(task.cells)} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
