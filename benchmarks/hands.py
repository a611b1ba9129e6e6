"""``reshift score``, all of it, with pictures read and written by threads and by processes: images a second from file to file.

    python benchmarks/hands.py [--bundle BUNDLE] [--pictures 2000] [--size 256] [--helpers 0 16] [--out hands.json]

Without a bundle the method is ``area``, which costs nothing, in batches as on a GPU: then what is measured is the rest. CPU
time of the scoring process itself, other processes not counted, says how many images a second it could handle at most, since
Python lets one thread compute at a time; wall time is what this machine makes of it.
"""

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

from measure import Table, machine
from reshift.data.phantom import write_phantom
from reshift.pipeline import resolve, train_run
from reshift.predict import GPU_BATCH, Model, load_model
from reshift.runtime import pick_device
from reshift.score import score
from reshift.score_hands import VARIABLE


def own_seconds() -> float:
    """CPU seconds of this process, all its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def pictures(folder: Path, count: int, size: int) -> list[Path]:
    """As many files as asked for, of a hundred pictures: what is in them hardly matters, but they must not be the same file."""
    drawn = write_phantom(folder / "drawn", train=min(count, 100), test_normal=0, test_abnormal=0, size=size)
    files = sorted(path for path in drawn.parent.rglob("*.png") if "mask" not in path.name)[:100]
    home = folder / "pictures"
    home.mkdir()
    for i in range(count):
        (home / f"{i:06d}.png").write_bytes(files[i % len(files)].read_bytes())
    return [home]


def plain_model(folder: Path, data: list[Path]) -> Model:
    """The method that costs nothing, in batches as on a GPU."""
    config = resolve("area", "paper", [{"calibrate": {"features": "off", "training_sample": 64}}])
    model = load_model(train_run(config, data[0], folder / "run"), "cpu")
    model.batch = GPU_BATCH
    return model


def main() -> None:
    """Score the same files once for every number of helpers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--helpers", type=int, nargs="+", default=[0, min(16, os.cpu_count() or 1)])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    table = Table()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = pictures(folder, options.pictures, options.size)
        model = load_model(options.bundle, options.device) if options.bundle else plain_model(folder, data)
        for helpers in options.helpers:
            os.environ[VARIABLE] = str(helpers)
            begun, own = time.perf_counter(), own_seconds()
            done = score(model, data, folder / f"out{helpers}")
            seconds, spent = time.perf_counter() - begun, own_seconds() - own
            who = f"{helpers} processes" if helpers else "threads"
            table.add("score", f"{who}: file to file", done.cases / seconds, "images/s")
            table.add("score", f"{who}: this process", 1e3 * spent / done.cases, "ms CPU an image")
    if options.out:
        table.write(options.out, machine(pick_device(options.device)))


if __name__ == "__main__":
    main()
