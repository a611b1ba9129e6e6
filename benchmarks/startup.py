"""Start-up: CPU and wall seconds of whole commands, each in a fresh process.

    python benchmarks/startup.py [--bundle RUN/bundle …] [--image scan.png] [--repeats 7] [--out startup.json]

Commands take turns; medians over the turns. CPU seconds (user and system, all threads) hardly depend on what else the machine
does; wall seconds do. ``import torch`` is the floor of every command that computes. Without ``--bundle`` a bundle that learns
nothing is made and scored with.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from measure import Table, machine
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


def tiny_bundle(folder: Path, data: Path) -> Path:
    """A bundle with no network in it."""
    config = resolve("brightness", "paper", [{"calibrate": {"features": "off"}}])
    return train_run(config, data, folder / "run")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path, nargs="*", default=[])
    parser.add_argument("--image", type=Path)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    table = Table()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = write_phantom(folder / "data", train=24, test_normal=1, test_abnormal=1, size=256)
        image = args.image or sorted((folder / "data" / "images").glob("*.png"))[0]
        commands = {
            "python, nothing": [sys.executable, "-c", "pass"],
            "reshift --help": [*CLI, "--help"],
            "reshift score --help": [*CLI, "score", "--help"],
            "import torch": [sys.executable, "-c", "import torch"],
        }
        out = folder / "out"
        for bundle in args.bundle or [tiny_bundle(folder, data)]:
            label = bundle.parent.name if args.bundle else "no network"
            commands[f"score one PNG: {label}"] = [*CLI, "score", str(bundle), str(image), "--out", str(out)]
        found: dict[str, list[tuple[float, float]]] = {label: [] for label in commands}
        for turn in range(args.repeats + 1):
            for label, command in commands.items():
                shutil.rmtree(out, ignore_errors=True)
                seconds = run(command)
                if turn:  # the first fills the system's cache
                    found[label].append(seconds)
    for label, times in found.items():
        for unit, values in (("s CPU", [cpu for cpu, _ in times]), ("s wall", [wall for _, wall in times])):
            table.add("start-up", label, statistics.median(values), unit, max(values), min(values))
    if args.out:
        table.write(args.out, machine(torch.device("cpu")))


if __name__ == "__main__":
    main()
