"""Rounds of one fault each: a run is broken at a chosen operation and run again without the fault.

The broken run must end complete, or in a failed case or one line; the run after it must leave what an unbroken one leaves, and
nothing half-written. ``python tests/faults/rounds.py --rounds 200 --seed 0 [--commands serve pacs]`` prints what happened.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import serving
from archives import Archives, about, is_here
from helpers import labelled, save_many

HERE = Path(__file__).resolve().parent
FAULTS = ("kill", "full", "eio", "fsync", "read-only", "eio-read", "clock")
COMMANDS = ("train", "score", "evaluate", "bench", "serve", "pacs")
IN_TIME = ("seconds", "date", "modified", "created", "finished", "begun", "started", "time")  # what no two runs have in common
LINES = (2, 3, 130)  # exit codes of a run that ends with a message
SETTINGS = ("data.size=32", "calibrate.features=off", "train.device=cpu", "train.checkpoint_seconds=0", "model.widths=[4, 8]")


class Outcome(NamedTuple):
    """What a run left behind."""

    code: int
    text: str
    operations: list[int]  # that wrote below the output folder, and that read below the input folder
    jobs: serving.Jobs  # of a server


class Runs:
    """The server, the inputs, and the results of unbroken runs."""

    def __init__(self, home: Path, server: "subprocess.Popen[str]") -> None:
        self.home, self.server = home, server
        self.wanted: dict[str, Any] = {}
        self.totals: dict[str, list[int]] = {}
        self.uploads = [str(path) for path in serving.write_uploads(home / "in", home / "uploads")]
        self.archives = Archives(home)

    def run(
        self, args: list[str], kind: str = "none", at: int = 0, below: Path | None = None, uploads: Sequence[str] = (),
        known: Sequence[str] = (),
    ) -> Outcome:  # fmt: skip
        """One run of ``reshift``; to a server go ``uploads``, and it is asked about jobs that are ``known``."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        job = {"args": args, "kind": kind, "at": at, "below": str(below or self.home / "out")}
        self.server.stdin.write(json.dumps({**job, "uploads": list(uploads), "known": list(known)}) + "\n")
        self.server.stdin.flush()
        found = json.loads(self.server.stdout.readline())
        return Outcome(**{**found, "jobs": serving.Jobs(*found["jobs"])})

    def input(self, command: str) -> Path:
        """The folder that a command reads."""
        return self.home / {"evaluate": "labelled", "bench": "out/data", "serve": "out/jobs", "pacs": "out/spool"}.get(
            command, "in"
        )

    def arguments(self, command: str) -> list[str]:
        """The command that is broken; all write to ``out``."""
        home, out = self.home, ["--out", str(self.home / "out")]
        if command == "train":
            sets = [word for line in (*SETTINGS, "model.epochs=3", "train.batch=8") for word in ("--set", line)]
            return ["train", "--data", str(home / "in"), "--method", "dae", "--profile", "quick", *sets, *out]
        if command == "score":
            return ["score", str(home / "bundle"), str(home / "in"), *out]
        if command == "evaluate":
            return ["evaluate", str(home / "bundle"), "--data", str(home / "labelled" / "manifest.csv"), *out]
        if command == "bench":
            return ["bench", str(home / "suite.toml"), "--device", "cpu", *out]
        if command == "serve":
            return ["serve", "--models", str(home / "bundle"), "--store", str(home / "out"), "--port", "0", "--device", "cpu"]
        return ["pacs", "score", str(home / "bundle"), "--dicomweb", self.archives.filled(), "--push", "--retries", "0", *out]

    def unbroken(self, command: str) -> None:
        """Run a command once as it should be, and remember what it leaves."""
        shutil.rmtree(self.home / "out", ignore_errors=True)
        uploads = self.uploads if command == "serve" else ()
        done = self.run(self.arguments(command), uploads=uploads)
        assert done.code == (130 if command == "serve" else 0), done
        self.wanted[command] = serving.results(done.jobs) if command == "serve" else left_in(self.home / "out")
        shutil.rmtree(self.home / "out")
        counted = self.run(self.arguments(command), "eio-read", 10**9, self.input(command), uploads=uploads)
        self.totals[command] = [done.operations[0], counted.operations[1]]

    def broken(self, command: str, fault: str, at: int) -> str:
        """Break one run, run it again, and compare; a word for how the broken one ended."""
        if command == "serve":
            return self.broken_server(fault, at)
        out = self.home / "out"
        shutil.rmtree(out, ignore_errors=True)
        first = self.run(self.arguments(command), fault, at, self.input(command) if fault == "eio-read" else out)
        where = f"{command} with {fault} at {at}: {first}"
        assert first.code in ((-9,) if fault == "kill" else (0, *LINES)) or (fault == "kill" and first.code == 0), where
        assert command == "bench" or "Traceback" not in first.text, where  # those of a worker are for its log
        if first.code == 2:
            lines = [line for line in first.text.splitlines() if line.startswith("reshift: ")]
            assert len(lines) == 1, where
        resume = ["--resume"] if command == "train" and (out / "run.json").exists() and not (out / "bundle").exists() else []
        again = self.run([*self.arguments(command), *resume])
        if command == "train" and again.code == 2 and "already holds a run" in again.text:
            again = self.run([*self.arguments(command), "--resume"])
        assert again.code == 0, f"{where}\nthen {again}"
        found = left_in(out)
        wrong = sorted(name for name in {*found, *self.wanted[command]} if found.get(name) != self.wanted[command].get(name))
        parts = [(name, found.get(name), self.wanted[command].get(name)) for name in wrong]
        assert not wrong, f"{where}\nthen {again}\nleft other files: {parts}"
        if command == "pacs":
            self.archives.check(where, out)
        return {-9: "killed", 0: "complete", 3: "a failed case"}.get(first.code, "one line")

    def broken_server(self, fault: str, at: int) -> str:
        """Break a server while it takes and runs jobs; the next one has to know and finish what was accepted."""
        out, uploads, arguments = self.home / "out", self.uploads, self.arguments("serve")
        shutil.rmtree(out, ignore_errors=True)
        first = self.run(arguments, fault, at, self.input("serve") if fault == "eio-read" else out, uploads)
        where = f"serve with {fault} at {at}: {first}"
        assert first.code in (2, 130, -9), where
        if first.code == 2:
            assert len([line for line in first.text.splitlines() if line.startswith("reshift: ")]) == 1, where
        accepted = [text for status, text in first.jobs.answers if status == 201]
        again = self.run(arguments, uploads=uploads, known=accepted)
        assert again.code == 130, f"{where}\nthen {again}"
        end = serving.check(f"{where}\nthen {again}", fault, first.jobs, again.jobs, self.wanted["serve"], out)
        return "killed" if first.code == -9 else "one line" if first.code == 2 else end


def left_in(folder: Path) -> dict[str, str]:
    """Every file with its content, without what is about time."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and path.name != ".lock" and not name.startswith("logs/"):
            found[name] = _content(path)
    return found


def _content(path: Path) -> str:
    if path.suffix in (".json", ".jsonl"):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        values = [_timeless(json.loads(line)) for line in lines]
        if path.parent.name == "cells":  # the rest is about the computer and how often it was tried
            values = [{key: value[key] for key in ("key", "status", "error", "metrics")} for value in values]
        return json.dumps(values) if path.name != "log.jsonl" else "a log"
    if path.suffix in (".sqlite", ".dcm"):
        return about(path)
    if path.suffix in (".html", ".md", ".csv", ".tex"):
        return "a table"  # of seconds, among others
    return str(hash(path.read_bytes()))


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if not any(word in k for word in IN_TIME)}
    return [_timeless(v) for v in value] if isinstance(value, list) else value


@contextmanager
def prepared(home: Path) -> Iterator[Runs]:
    """Build the shim, write the inputs and start the server."""
    from bench_suites import BRIGHTNESS, HEAD

    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "no C compiler"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", home / "shim.so", HERE / "shim.c", "-ldl"], check=True)
    save_many(home / "in", 8)
    labelled(home / "labelled")
    (home / "suite.toml").write_text(f"{HEAD}{BRIGHTNESS}")
    quiet = {"OMP_NUM_THREADS": "1", "RESHIFT_CACHE": "off", "LD_PRELOAD": str(home / "shim.so"), "PYTHONHASHSEED": "0"}
    quiet["PYTHONPATH"] = str(HERE.parent / "support")
    command = [sys.executable, str(HERE / "server.py")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env={**os.environ, **quiet}, **pipes) as server:
        runs = Runs(home, server)
        sets = [word for line in SETTINGS[:3] for word in ("--set", line)]
        made = runs.run(["train", "--data", str(home / "in"), "--method", "brightness", *sets, "--out", str(home / "run")])
        assert made.code == 0, made
        shutil.copytree(home / "run" / "bundle", home / "bundle")
        try:
            yield runs
        finally:
            runs.archives.close()
            assert server.stdin is not None
            server.stdin.close()


def plan(rounds: int, seed: int, totals: dict[str, list[int]]) -> Iterator[tuple[str, str, int]]:
    """Commands and faults in turn, each at a random operation."""
    rng = random.Random(seed)
    commands = list(totals)
    for i in range(rounds):
        command, fault = commands[i % len(commands)], FAULTS[(i // len(commands) + i) % len(FAULTS)]
        writes, reads = totals[command]
        yield command, fault, rng.randint(1, max(1, reads if fault == "eio-read" else 50 if fault == "clock" else writes))


def main() -> None:
    """Run the rounds and print how they ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=[name for name in COMMANDS if is_here(name)])
    args = parser.parse_args()
    ends, lost = Counter[tuple[str, str]](), list[str]()
    with TemporaryDirectory() as folder, prepared(Path(folder)) as runs:
        for command in args.commands:
            runs.unbroken(command)
        print("operations that write, and that read:", runs.totals, flush=True)
        for i, (command, fault, at) in enumerate(plan(args.rounds, args.seed, runs.totals)):
            if i % 20 == 0:
                print(f"{i} rounds, {len(lost)} lost", flush=True)
            try:
                ends[fault, runs.broken(command, fault, at)] += 1
            except AssertionError as err:
                lost.append(f"round {i}: {err}")
                print(lost[-1], file=sys.stderr, flush=True)
    for (fault, end), times in sorted(ends.items()):
        print(f"{fault}: {end} {times}")
    print(f"{args.rounds} rounds, {len(lost)} lost")
    sys.exit(bool(lost))


if __name__ == "__main__":
    main()
