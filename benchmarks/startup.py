"""Start-up: CPU and wall seconds of whole commands, each in a fresh process.

    python benchmarks/startup.py [--bundle RUN/bundle …] [--repeats 7]

Commands take turns; medians over the turns. CPU seconds (user and system, all threads) hardly depend on what else
the machine does; wall seconds do. ``import torch`` is the floor of every command that computes. Without
``--bundle``, one of a method that learns nothing is made.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import Rows, options, summary
from reshift.data.phantom import write_phantom
from reshift.training.run import resolve, train_run

CLI = [sys.executable, "-m", "reshift"]


def run(command: list[str]) -> tuple[float, float]:
    """CPU and wall seconds of one process."""
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {process.returncode}")
    return used.ru_utime + used.ru_stime, seconds


def commands(folder: Path, bundles: list[Path]) -> dict[str, list[str]]:
    """What is started, by name."""
    data = write_phantom(folder / "data", train=24, test_normal=1, test_abnormal=1, size=256)
    image = sorted((folder / "data" / "images").glob("*.png"))[0]
    if not bundles:
        bundles = [train_run(resolve("brightness", "paper", [{"calibrate": {"features": "off"}}]), data, folder / "brightness")]
    found = {
        "python, nothing": [sys.executable, "-c", "pass"],
        "reshift --help": [*CLI, "--help"],
        "reshift score --help": [*CLI, "score", "--help"],
        "import torch": [sys.executable, "-c", "import torch"],
    }
    for bundle in bundles:
        found[f"score one PNG: {bundle.parent.name}"] = [*CLI, "score", str(bundle), str(image), "--out", str(folder / "out")]
    return found


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument("--bundle", type=Path, nargs="*", default=[])
    parser.add_argument("--repeats", type=int, default=7)
    given, rows = parser.parse_args(), Rows()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = commands(folder, given.bundle)
        times: dict[str, list[tuple[float, float]]] = {label: [] for label in started}
        for turn in range(given.repeats + 1 if given.repeats > 1 else 1):
            for label, command in started.items():
                shutil.rmtree(folder / "out", ignore_errors=True)
                seconds = run(command)
                if turn or given.repeats == 1:  # of several turns, the first fills the system's cache
                    times[label].append(seconds)
    for label, found in times.items():
        for unit, timing in (("s CPU", summary([cpu for cpu, _ in found])), ("s wall", summary([wall for _, wall in found]))):
            rows.add("start-up", label, timing.median, unit, timing.low, timing.high)
    rows.print("cpu", given.out)


if __name__ == "__main__":
    main()
