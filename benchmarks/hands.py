"""Pictures read and written by threads and by helper processes: all of ``reshift score``, file to file, and training's reading.

    python benchmarks/hands.py [--bundle BUNDLE] [--pictures 2000] [--size 256] [--helpers 0 16] [--folder DIR] [--out FILE]

Without a bundle the method is ``area``, which costs nothing, in batches as on a GPU: then what is measured is the rest. CPU
time of the scoring process itself, other processes not counted, says how many images a second it could handle at most, since
Python lets one thread compute at a time; wall time is what this machine makes of it. With a GPU the real training loop runs,
too, on images in memory, read from files, and read from the cache. Files lie in ``--folder``: of two kinds of disk, two runs.
"""

import argparse
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from measure import Table, machine
from reshift.config import DataConfig
from reshift.data.manifest import load_cases
from reshift.data.phantom import write_phantom
from reshift.data.prepared_cache import VARIABLE as KEPT
from reshift.data.source import Source, check_images
from reshift.inference.bundle import build
from reshift.inference.model import GPU_BATCH, Model, load_model
from reshift.inference.score import score
from reshift.system.cores import cores
from reshift.system.device import Rank, pick_device
from reshift.system.workers import VARIABLE
from reshift.training.loop import fit
from reshift.training.run import resolve, train_run
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


def only_looking(table: Table, model: Model) -> None:
    """What the network does by itself, in batches from memory: what reading and writing have to keep up with."""
    config = model.bundle.config.data
    batch = np.zeros((model.batch, config.channels, config.size, config.size), dtype=np.float32)
    for _ in range(8):  # compiled and recorded by then
        model.run(batch)
    begun, own = time.perf_counter(), own_seconds()
    for _ in range(50):
        model.run(batch)
    add(table, "score", "the network alone", 50 * len(batch), begun, own)


class Marked(Source):
    """Notes when the training loop takes a batch."""

    def stream(self, chosen: Iterable[Sequence[int]]) -> Iterator[Tensor]:
        """Batch after batch, as every source gives them."""
        self.marks = list[float]()
        for batch in super().stream(chosen):
            self.marks.append(time.perf_counter())
            yield batch


def steps(table: Table, data: Path, who: str, device: torch.device) -> None:
    """DMD's second stage, the paper's settings, on images that are in memory or have to be read; all processes at work."""
    cases = load_cases(data)
    layer = {"train": {"device": str(device), "cache": "off"}, "model": {"stage1_epochs": 1, "stage2_epochs": 4}}
    config = resolve("dmd", "paper", [layer])
    for name, memory, gigabytes in (("in memory", 8.0, 0), ("read from files", 1e-9, 0), ("read from the cache", 1e-9, 8)):
        os.environ[KEPT] = str(gigabytes)
        source = Marked(cases, config.data.model_copy(update={"memory_gb": memory}), device)
        if gigabytes:
            check_images(cases, source.config, source.readers)
        with tempfile.TemporaryDirectory() as folder:
            fit(build(config), source, config, Path(folder), Rank(0, 1))
        half = source.marks[len(source.marks) // 2 :]
        table.add("train", f"{who}: {name}", BATCH * (len(half) - 1) / (half[-1] - half[0]), "images/s")


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
    parser.add_argument("--helpers", type=int, nargs="+", default=[0, min(16, cores())])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    table, device = Table(), pick_device(options.device)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        os.environ |= {"RESHIFT_CACHE": str(folder / "cache"), KEPT: "0"}
        data = pictures(folder, options.pictures, options.size)
        model = load_model(options.bundle, options.device) if options.bundle else plain_model(folder, data)
        only_looking(table, model)
        for helpers in options.helpers:
            os.environ[VARIABLE] = str(helpers)
            who = f"{helpers} processes" if helpers else "threads"
            for overlays in ("all", "none"):
                begun, own = time.perf_counter(), own_seconds()
                done = score(model, data, folder / "out", overlays=overlays)
                add(table, "score", who if overlays == "all" else f"{who}, no overlays", done.cases, begun, own)
                shutil.rmtree(folder / "out")
            training(table, data[0], who)
            if device.type == "cuda":
                steps(table, data[0], who, device)
            if options.out:
                table.write(options.out, machine(device))


if __name__ == "__main__":
    main()
