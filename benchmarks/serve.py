"""Load on ``reshift serve``: images/s and latency of single-image jobs by concurrent clients, beside ``reshift score``; a soak.

    python benchmarks/serve.py --bundle RUN/bundle --clients 1 8 64 --images 120
    python benchmarks/serve.py --bundle RUN/bundle --soak 1800 --kill-every 120

Everything runs on this machine, on loopback. The soak kills the worker process again and again and counts what is lost.
"""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx

from reshift.data.phantom import write_phantom
from reshift.errors import UserError
from reshift.serve.client import Client


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


def score_alone(bundle: Path, folder: Path, out: Path) -> float:
    """Images/s of ``reshift score`` over a folder, from its first record to its last: start-up is not counted."""
    files, records = len(list(folder.iterdir())), out / "scores.jsonl"
    command = [sys.executable, "-P", "-m", "reshift", "score", str(bundle), str(folder), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not records.exists() or not records.stat().st_size:
        time.sleep(0.002)
    begun, first = time.perf_counter(), records.read_bytes().count(b"\n")
    while records.read_bytes().count(b"\n") < files:
        time.sleep(0.002)
    seconds = time.perf_counter() - begun
    process.wait()
    return (files - first) / seconds


def load(url: str, files: list[Path], clients: int) -> dict[str, float]:
    """Every file a job of its own; each client sends the next when it has its answer."""
    local, seconds = threading.local(), list[float]()

    def one(path: Path) -> None:
        if not hasattr(local, "client"):
            local.client = Client(url)
        begun = time.perf_counter()
        [case] = local.client.score([path])
        assert case["score"] is not None
        seconds.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(one, files))
    cuts = statistics.quantiles(seconds, n=20)
    return {"images/s": len(files) / (time.perf_counter() - begun), "p50 s": statistics.median(seconds), "p95 s": cuts[18]}


def scoring_processes(server: int) -> list[int]:
    """The processes below ``server`` that have torch loaded."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == server and "libtorch" in (path / "maps").read_text():
                found.append(int(path.name))
        except (OSError, IndexError):
            continue
    return found


def resident_mib(process: int) -> float:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096 / 2**20


def soak(url: str, server: int, files: list[Path], options: Namespace) -> dict[str, object]:
    """Mixed load for so many seconds, with a worker killed every so often; afterwards every accepted job must have ended."""
    states: Counter[str] = Counter()
    memory, kills, until = [resident_mib(server)], 0, time.monotonic() + options.soak
    accepted: list[str] = []

    def client(number: int) -> None:
        with Client(url) as mine:
            turn = number
            while time.monotonic() < until:
                chosen = [files[(turn + i) % len(files)] for i in range(1 if turn % 3 else 5)]
                job = mine.submit(chosen)
                accepted.append(job)
                try:
                    states[mine.wait(job)["state"]] += 1
                except UserError as err:
                    states["failed: killed twice" if "killed twice" in str(err) else str(err)] += 1
                turn += 7

    threads = [threading.Thread(target=client, args=(number,)) for number in range(options.clients[-1])]
    for thread in threads:
        thread.start()
    last = time.monotonic()
    while any(thread.is_alive() for thread in threads):
        time.sleep(1.0)
        memory.append(resident_mib(server))
        if time.monotonic() - last >= options.kill_every and time.monotonic() < until:
            last, found = time.monotonic(), scoring_processes(server)
            for process in found:
                os.kill(process, signal.SIGKILL)
            kills += len(found)
    quarter = len(memory) // 4 or 1
    return {
        "seconds": options.soak, "clients": options.clients[-1], "jobs": len(accepted), "states": dict(states), "kills": kills,
        "lost": len(accepted) - sum(states.values()),  # every client waits for the end of every job it has sent
        "server MiB": {"second quarter": round(statistics.mean(memory[quarter : 2 * quarter]), 1), "last": round(memory[-1], 1)},
    }  # fmt: skip


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--images", type=int, default=120)
    parser.add_argument("--soak", type=float, default=0.0, help="seconds; instead of the table")
    parser.add_argument("--kill-every", type=float, default=120.0, help="seconds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        write_phantom(home / "phantom", train=0, test_normal=options.images // 2, test_abnormal=options.images // 2)
        files = sorted((home / "phantom" / "images").iterdir())
        found: dict[str, object] = {}
        if not options.soak:
            found["reshift score, one folder, before"] = {"images/s": score_alone(options.bundle, files[0].parent, home / "a")}
        with serving(options.bundle, home / "store") as (url, process):
            if options.soak:
                found["soak"] = soak(url, process, files, options)
            else:
                load(url, files[:8], 2)  # warm
                found |= {f"{clients} clients, one image each": load(url, files, clients) for clients in options.clients}
        if not options.soak:
            found["reshift score, one folder, after"] = {"images/s": score_alone(options.bundle, files[0].parent, home / "b")}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
