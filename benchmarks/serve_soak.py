"""Mixed load on ``reshift serve`` for minutes, with its worker killed again and again: is anything lost, does memory grow?

    python benchmarks/serve_soak.py --bundle RUN/bundle --minutes 30 --kill-every 120 --clients 4

Clients send single images, five at once, zips, files that cannot be read; they cancel, delete, and ask for pictures. At the
end every accepted job must have ended with each of its cases once, or say that its worker was killed twice. Everything runs
on this machine, on loopback.
"""

import io
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
import zipfile
from argparse import ArgumentParser, Namespace
from collections import Counter
from pathlib import Path

from reshift.data.phantom import write_phantom
from reshift.errors import UserError
from reshift.serve.client import Client
from serve import processes, serving

KINDS = ("one", "one", "one", "five", "zip", "unreadable", "cancelled", "deleted", "shown")
KILLED = "killed twice"


class Soak:
    """What the clients have done so far."""

    def __init__(self, url: str, store: Path, files: list[Path], until: float) -> None:
        self.url, self.store, self.files, self.until = url, store, files, until
        self.ends, self.wrong, self.lock = Counter[str](), list[str](), threading.Lock()

    def client(self, number: int) -> None:
        """Send one thing after another until the time is over."""
        rng = random.Random(number)
        with Client(self.url) as client, tempfile.TemporaryDirectory() as home:
            while time.monotonic() < self.until:
                kind = rng.choice(KINDS)
                try:
                    end = self._turn(client, kind, rng, Path(home))
                except UserError as err:
                    end = f"failed: {KILLED}" if KILLED in str(err) else self._note(f"{kind}: {err}")
                except Exception as err:  # a client that ended would look like one that had nothing to say
                    end = self._note(f"{kind}: {type(err).__name__}: {err}")
                with self.lock:
                    self.ends[end] += 1

    def _note(self, text: str) -> str:
        self.wrong.append(text)
        return "wrong"

    def _turn(self, client: Client, kind: str, rng: random.Random, home: Path) -> str:
        chosen = rng.sample(self.files, 1 if kind in ("one", "shown", "unreadable") else 5)
        if kind == "unreadable":
            return self._refused(client, home)
        job = client.submit([_zipped(chosen, home)] if kind == "zip" else chosen)
        if kind == "deleted":
            client.delete(job)
            return kind if not (self.store / "jobs" / job).exists() else self._note(f"{job} is still there")
        if kind == "cancelled":
            client.http.post(f"/api/v1/jobs/{job}/cancel")  # it may have ended before
        state = str(client.wait(job)["state"])
        if state == "done":
            self._check(client, job, len(chosen), shown=kind == "shown")
        client.delete(job) if rng.random() < 0.5 else None  # so that jobs of all ages are there
        return f"{kind}: {state}"

    def _refused(self, client: Client, home: Path) -> str:
        (home / "bad.png").write_bytes(b"no picture")
        try:
            client.submit([home / "bad.png"])
        except UserError as err:
            return "unreadable: refused" if "not a PNG" in str(err) else self._note(str(err))
        return self._note("a file that cannot be read was accepted")

    def _check(self, client: Client, job: str, count: int, *, shown: bool) -> None:
        """Every case once, with a score."""
        cases = list(client.cases(job))
        lines = (self.store / "jobs" / job / "results" / "scores.jsonl").read_text().splitlines()
        names = {json.loads(line)["input"] for line in lines}
        if not len(cases) == len(lines) == len(names) == count or any(case["score"] is None for case in cases):
            self._note(f"{job}: {len(cases)} cases, {len(lines)} records of {len(names)} inputs instead of {count}")
        if shown:
            for part in ("overlay.png", "thumbnail.png", "image", "heat"):
                client.http.get(f"{cases[0]['url']}/{part}").raise_for_status()


def _zipped(files: list[Path], home: Path) -> Path:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in files:
            archive.write(path, path.name)
    (home / "some.zip").write_bytes(buffer.getvalue())
    return home / "some.zip"


def resident_mib(process: int) -> float:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return 0.0


def workers(server: int) -> list[int]:
    """The processes of the server that have torch loaded."""
    found = []
    for process in processes(server):
        try:
            found += [process] if "libtorch" in Path(f"/proc/{process}/maps").read_text() else []
        except OSError:
            continue
    return found


def soak(bundle: Path, home: Path, options: Namespace) -> dict[str, object]:
    """Run the clients, kill workers, and look at the memory of the server and of its readers."""
    write_phantom(home / "phantom", train=0, test_normal=20, test_abnormal=20)
    files, store = sorted((home / "phantom" / "images").iterdir()), home / "store"
    with serving(bundle, store) as (url, server):
        begun, memory, kills, last = time.monotonic(), dict[float, tuple[float, float]](), 0, time.monotonic()
        state = Soak(url, store, files, begun + 60.0 * options.minutes)
        threads = [threading.Thread(target=state.client, args=(number,)) for number in range(options.clients)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(2.0)
            killed = set(workers(server))
            others = [process for process in processes(server) if process != server and process not in killed]
            memory[time.monotonic() - begun] = resident_mib(server), sum(map(resident_mib, others))
            if time.monotonic() - last >= options.kill_every and time.monotonic() < state.until and killed:
                last, kills = time.monotonic(), kills + len(killed)
                for process in killed:
                    os.kill(process, signal.SIGKILL)
                print(f"{memory.popitem()}, {dict(state.ends)}, wrong {state.wrong}", file=sys.stderr, flush=True)
        with Client(url) as client:
            left = client.http.get("/api/v1/jobs", params={"state": "queued"}).json()["items"]
            deaths = [line for line in client.http.get("/metrics").text.splitlines() if "worker_deaths" in line]
    return {
        "minutes": round((time.monotonic() - begun) / 60.0, 1), "clients": options.clients, "kills": kills,
        "worker deaths": deaths[-1], "requests": sum(state.ends.values()), "ends": dict(sorted(state.ends.items())),
        "lost or wrong": state.wrong, "still queued": len(left), "server MiB": _quarters(memory, 0),
        "readers MiB": _quarters(memory, 1),
    }  # fmt: skip


def _quarters(memory: dict[float, tuple[float, float]], which: int) -> list[float]:
    """The median of each quarter of the time."""
    values = [found[which] for found in memory.values()]
    size = max(1, len(values) // 4)
    return [round(statistics.median(values[i : i + size]), 1) for i in range(0, 4 * size, size) if values[i : i + size]]


def main() -> None:
    parser = ArgumentParser(description="Mixed load on reshift serve, with its worker killed again and again.")
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--kill-every", type=float, default=120.0, help="seconds")
    parser.add_argument("--clients", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        found = soak(options.bundle, Path(temporary), options)
    print(json.dumps(found, indent=1))
    sys.exit(bool(found["lost or wrong"] or found["still queued"]))


if __name__ == "__main__":
    main()
