"""Load on ``reshift serve``: images/s and latency of single-image jobs by concurrent clients, beside ``reshift score``.

    python benchmarks/serve.py --bundle RUN/bundle [--bundle OTHER/bundle …] --clients 1 8 64 --images 120

Prints a Markdown table. Everything runs on this machine, on loopback, the clients too. Wall time depends on what else the
machine does, so compare rows of one run; CPU time (of all processes of the server, or of ``score``, without starting them)
hardly depends on it. A soak with killed workers is in serve_soak.py.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

from reshift.data.phantom import write_phantom
from reshift.serve.client import Client

HEAD = """| model | | images/s | of `score` | p50, s | p95, s | CPU, ms per image |
|---|---|---|---|---|---|---|"""


class Load(NamedTuple):
    """What so many clients reached."""

    rate: float  # images per second
    cpu: float  # seconds per image
    median: float = 0.0  # seconds from the upload to the result
    high: float = 0.0  # 95th percentile


@contextmanager
def serving(bundle: Path, store: Path, *options: str) -> Iterator[tuple[str, int]]:
    """A server on a free port: its address and process."""
    command = [sys.executable, "-P", "-m", "reshift", "serve", "--models", str(bundle), "--store", str(store), "--port", "0"]
    process = subprocess.Popen([*command, "--rate", "0", *options], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = re.findall(r"http://\S+", process.stdout.readline())[0]
    try:
        while httpx.get(f"{url}ready").status_code != 200:
            time.sleep(0.1)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait()


def processes(root: int) -> dict[int, float]:
    """A process and all below it, with the CPU seconds each has used."""
    parents, used = dict[int, int](), dict[int, float]()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        parents[int(path.name)] = int(words[1])
        used[int(path.name)] = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    found = [root]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return {process: used.get(process, 0.0) for process in found}


def score_alone(bundle: Path, folder: Path, out: Path) -> Load:
    """``reshift score`` of a folder, from its first record to its last: starting it is not counted."""
    files, records = len(list(folder.iterdir())), out / "scores.jsonl"
    command = [sys.executable, "-P", "-m", "reshift", "score", str(bundle), str(folder), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def cpu() -> float:
        return sum(processes(process.pid).values())

    while not records.exists() or not records.stat().st_size:
        time.sleep(0.005)
    begun, used, first = time.perf_counter(), cpu(), records.read_bytes().count(b"\n")
    while records.read_bytes().count(b"\n") < files:
        time.sleep(0.005)
    seconds, used = time.perf_counter() - begun, cpu() - used
    process.wait()
    return Load((files - first) / seconds, used / (files - first))


def load(url: str, server: int, files: list[Path], clients: int) -> Load:
    """Every file a job of its own; each client sends the next when it has its answer."""
    local, seconds = threading.local(), list[float]()

    def one(path: Path) -> None:
        if not hasattr(local, "client"):
            local.client = Client(url)
        begun = time.perf_counter()
        [case] = local.client.score([path])
        assert case["score"] is not None
        seconds.append(time.perf_counter() - begun)

    begun, used = time.perf_counter(), sum(processes(server).values())
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(one, files))
    taken, used = time.perf_counter() - begun, sum(processes(server).values()) - used
    cuts = statistics.quantiles(seconds, n=20)
    return Load(len(files) / taken, used / len(files), statistics.median(seconds), cuts[18])


def measured(bundle: Path, home: Path, files: list[Path], clients: list[int], show: Callable[[str], None]) -> None:
    """The rows of one model: ``score`` runs before and after the clients, and their mean is what these are compared with."""
    alone, found = [score_alone(bundle, files[0].parent, home / "before")], dict[int, Load]()
    with serving(bundle, home / "store") as (url, server):
        load(url, server, files[:8], 2)  # warm
        for count in clients:
            found[count] = load(url, server, files, count)
    alone.append(score_alone(bundle, files[0].parent, home / "after"))
    base, cpu = statistics.mean(one.rate for one in alone), statistics.mean(one.cpu for one in alone)
    name, both = bundle.resolve().parent.name, ", ".join(f"{one.rate:.1f}" for one in alone)
    show(f"| {name} | `reshift score`, one folder | {base:.1f} ({both}) | 1 | | | {1e3 * cpu:.0f} |")
    for count, one in found.items():
        times = f"{one.rate / base:.2f} | {one.median:.2f} | {one.high:.2f} | {1e3 * one.cpu:.0f}"
        show(f"| {name} | {count} client{'s' * (count > 1)}, one image at a time | {one.rate:.1f} | {times} |")


def main() -> None:
    parser = ArgumentParser(description="Images/s and latency of reshift serve beside reshift score.")
    parser.add_argument("--bundle", type=Path, required=True, action="append", help="may be given several times")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--images", type=int, default=120)
    options = parser.parse_args()
    print(HEAD)
    for bundle in options.bundle:
        with tempfile.TemporaryDirectory() as temporary:
            home = Path(temporary)
            write_phantom(home / "phantom", train=0, test_normal=options.images // 2, test_abnormal=options.images // 2)
            files = sorted((home / "phantom" / "images").iterdir())
            measured(bundle, home, files, options.clients, lambda row: print(row, flush=True))


if __name__ == "__main__":
    main()
