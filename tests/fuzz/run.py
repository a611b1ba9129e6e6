"""Fuzz one target or all of them, for a bounded time: ``python tests/fuzz/run.py [TARGET…] --seconds 60``.

Each target runs in a process of its own, guided by coverage (atheris). What falls is written to ``--out``, once per place in the
code, and the run goes on. The exit code is 1 if anything fell, hung or grew.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve().parent
SLOW = 2.0  # seconds for one input
MAX_GROWTH = 512  # MiB over what the process took after its seeds
MAX_LENGTH = 2**15


class Findings:
    """Counts and what fell, kept on disk as the run goes: the fuzzer ends the process by itself."""

    def __init__(self, name: str, out: Path) -> None:
        self.out, self.base, self.begun = out, 0, time.monotonic()
        self.seen: set[str] = set()
        self.stats: dict[str, Any] = {
            "target": name,
            "inputs": 0,
            "accepted": 0,
            "fell": 0,
            "slow": 0,
            "longest": 0.0,
            "grown": 0,
        }

    def took(self, data: bytes, seconds: float, accepted: bool) -> None:
        """Count one input."""
        stats, peak = self.stats, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        stats["inputs"] += 1
        stats["accepted"] += accepted
        stats["longest"] = max(float(stats["longest"]), round(seconds, 3))
        grown, self.base = peak - (self.base or peak), self.base or peak
        if seconds > SLOW:
            stats["slow"] += 1
            self.keep(data, f"slow-{int(seconds)}")
        if grown > MAX_GROWTH and grown > int(stats["grown"]) + 64:
            self.keep(data, f"grown-{grown}")
        stats["grown"] = max(int(stats["grown"]), grown)
        if int(stats["inputs"]) % 20 == 0 and time.monotonic() - self.begun - float(stats.get("seconds", 0.0)) > 0.5:
            self.save()

    def fell(self, data: bytes, err: BaseException) -> None:
        """Keep the first input for each place that an exception comes from."""
        frames = traceback.extract_tb(err.__traceback__)
        place = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in frames[-3:][::-1])
        self.stats["fell"] += 1
        if place not in self.seen:
            self.seen.add(place)
            self.keep(data, type(err).__name__)
            print(f"{self.stats['target']}: {type(err).__name__}: {str(err)[:200]} at {place}", file=sys.stderr, flush=True)

    def keep(self, data: bytes, kind: str) -> None:
        """Write an input to be looked at."""
        name = f"{self.stats['target']}-{kind}-{hashlib.sha256(data).hexdigest()[:10]}"
        (self.out / name).write_bytes(data)

    def save(self) -> None:
        """Write the counts."""
        self.stats["seconds"] = round(time.monotonic() - self.begun, 1)
        (self.out / f"{self.stats['target']}.json").write_text(json.dumps(self.stats))


def fuzz(name: str, seconds: int, out: Path, seed: int) -> None:
    """Fuzz one target in this process, until the fuzzer ends it."""
    import atheris

    sys.path[:0] = [str(HERE.parent / "support"), str(HERE)]
    with atheris.instrument_imports(include=["reshift", "pydicom", "nibabel"]):
        from targets import TARGETS, empty, run

        target, findings = TARGETS[name], Findings(name, out)
        folder = Path(os.environ["TMPDIR"]) / "input"
        seeds = empty(out / "corpus" / name)
        for i, data in enumerate(target.seeds(empty(folder))):
            (seeds / str(i)).write_bytes(data)
        run(target, data, empty(folder))  # imports the rest, which takes seconds

    def timed(data: bytes) -> tuple[float, bool]:
        begun = time.monotonic()
        accepted = run(target, data, empty(folder))
        return time.monotonic() - begun, accepted

    def one(data: bytes) -> None:
        took, accepted = 0.0, False
        try:
            took, accepted = timed(data)
            took = min(took, timed(data)[0]) if took > SLOW else took  # the computer may have been busy
        except Exception as err:
            findings.fell(data, err)
        findings.took(data, took, accepted)

    for path in sorted(seeds.iterdir()):
        one(path.read_bytes())
    limits = [f"-max_total_time={seconds}", f"-max_len={MAX_LENGTH}", f"-seed={seed}", "-timeout=60", "-rss_limit_mb=4096"]
    atheris.Setup([sys.argv[0], *limits, "-verbosity=1", "-reload=0", str(seeds)], one)
    atheris.Fuzz()


def main() -> None:
    """Run the targets one after another."""
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seconds", type=int, default=20, help="for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.alone:
        fuzz(args.targets[0], args.seconds, args.out, args.seed)
        return
    sys.path[:0] = [str(HERE.parent / "support"), str(HERE)]
    from targets import TARGETS

    bad = [name for name in args.targets or TARGETS if not _alone(name, args)]
    print(f"findings in: {', '.join(bad)}; see {args.out}" if bad else "nothing fell, hung or grew")
    sys.exit(bool(bad))


def _alone(name: str, args: argparse.Namespace) -> bool:
    command = [sys.executable, __file__, name, "--alone", "--seconds", args.seconds, "--seed", args.seed, "--out", args.out]
    stats, room = args.out / f"{name}.json", "/dev/shm" if Path("/dev/shm").is_dir() else None
    stats.unlink(missing_ok=True)
    with TemporaryDirectory(dir=room) as temporary, (args.out / f"{name}.log").open("wb") as log:
        environment = {**os.environ, "TMPDIR": temporary, "OMP_NUM_THREADS": "1", "RESHIFT_CACHE": "off"}
        code = subprocess.run([str(part) for part in command], stdout=log, stderr=log, env=environment, check=False).returncode
    found = json.loads(stats.read_text()) if stats.exists() else {}
    lines = (args.out / f"{name}.log").read_text(errors="replace").splitlines()
    found["edges"] = next((int(line.split("cov: ")[1].split()[0]) for line in reversed(lines) if "cov: " in line), 0)
    found["exit"] = code
    stats.write_text(json.dumps(found))
    print(json.dumps(found), flush=True)
    return code == 0 and not found.get("fell") and not found.get("slow") and found.get("grown", 0) <= MAX_GROWTH


if __name__ == "__main__":
    main()
