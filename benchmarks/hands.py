"""Pictures read and written by threads and by helper processes: all of ``reshift score``, file to file, and training's reading.

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

import torch

from measure import Table, machine
from reshift.config import DataConfig
from reshift.data.manifest import load_cases
from reshift.data.phantom import write_phantom
from reshift.data.source import Source
from reshift.helping import VARIABLE
from reshift.pipeline import resolve, train_run
from reshift.predict import GPU_BATCH, Model, load_model
from reshift.runtime import pick_device
from reshift.score import score
from speed import BATCH


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


def training(table: Table, data: Path, who: str) -> None:
    """Read all into memory, as a training begins, and batch by batch, as one that streams goes on."""
    cases, cpu = load_cases(data), torch.device("cpu")
    begun, own = time.perf_counter(), own_seconds()
    Source(cases, DataConfig(), cpu)
    add(table, "memory", who, len(cases), begun, own)
    source = Source(cases, DataConfig(memory_gb=1e-9), cpu)
    batches = [list(range(start, start + BATCH)) for start in range(0, len(cases) - BATCH + 1, BATCH)]
    for _ in source.stream(batches[:32]):  # processes have begun by then
        pass
    begun, own = time.perf_counter(), own_seconds()
    for _ in source.stream(batches):
        pass
    add(table, "stream", who, BATCH * len(batches), begun, own)


def add(table: Table, section: str, who: str, images: int, begun: float, own: float) -> None:
    """Both rows of a measurement."""
    table.add(section, f"{who}: wall time", images / (time.perf_counter() - begun), "images/s")
    table.add(section, f"{who}: this process", 1e3 * (own_seconds() - own) / images, "ms CPU an image")


def main() -> None:
    """Read, and score, the same files once for every number of helpers."""
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
            who = f"{helpers} processes" if helpers else "threads"
            begun, own = time.perf_counter(), own_seconds()
            done = score(model, data, folder / f"out{helpers}")
            add(table, "score", who, done.cases, begun, own)
            training(table, data[0], who)
    if options.out:
        table.write(options.out, machine(pick_device(options.device)))


if __name__ == "__main__":
    main()
