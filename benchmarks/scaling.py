"""How scoring grows with workers, and what it leaves on disk: ``python benchmarks/scaling.py``; see docs/scale.md."""

import argparse
import io
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch

from measure import Table, machine
from reshift.data.manifest import load_cases
from reshift.data.phantom import write_phantom
from reshift.inference.model import load_model
from reshift.inference.score import score
from reshift.inference.score_ray import Engine
from reshift.training.run import resolve, train_run

SIZE = 256  # of the pictures
WARM = 4  # the first quarter of the images is not timed: workers start, networks warm up


class Outcome(NamedTuple):
    """Images per second once all workers are at work, and seconds from start to end."""

    rate: float
    seconds: float


def outcome(out: Path, begun: float) -> Outcome:
    """By the times of the maps on disk: the same clock for every engine, whenever its answers arrive."""
    times = sorted(path.stat().st_mtime for path in out.rglob("*.npy"))
    first = len(times) // WARM
    return Outcome((len(times) - 1 - first) / (times[-1] - times[first]), time.perf_counter() - begun)


def on_ray(bundle: Path, data: Path, out: Path, count: int) -> Outcome:
    """Score with Ray."""
    begun = time.perf_counter()
    with redirect_stderr(io.StringIO()):
        score(load_model(bundle, "cpu"), [data], out, engine=Engine(bundle, count, "cpu"))
    return outcome(out, begun)


def portion(bundle: Path, images: Sequence[Path], out: Path) -> None:
    """In a process of its own: score some images."""
    torch.set_num_threads(1)
    with redirect_stderr(io.StringIO()):
        score(load_model(bundle, "cpu"), images, out)


def apart(bundle: Path, images: Sequence[Path], out: Path, count: int) -> Outcome:
    """Independent processes, an equal share each: what this machine can do, without anybody's engine."""
    begun = time.perf_counter()
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        for waiting in [pool.submit(portion, bundle, images[i::count], out / str(i)) for i in range(count)]:
            waiting.result()
    return outcome(out, begun)


def bundle(method: str, room: Path, images: Path) -> Path:
    """A calibrated bundle with the paper's networks, hardly trained: that changes no running time."""
    model = {"stage1_epochs": 1, "stage2_epochs": 1} if method == "dmd" else {}
    layer = {"calibrate": {"features": "off"}, "train": {"device": "cpu", "cache": "off"}, "model": model}
    with redirect_stderr(io.StringIO()):
        return train_run(resolve(method, "paper", [layer]), images, room / method)


def scaling(table: Table, method: str, folder: Path, data: Path, room: Path, workers: Sequence[int]) -> None:
    """Rates; each as a share of what as many single workers would do, and beside as many independent processes."""
    images = [case.image for case in load_cases(data) if case.split == "test"]
    alone: dict[str, float] = {}
    for count in workers:
        plain = apart(folder, images, room / f"{method}-{count}-apart", count)
        found = on_ray(folder, data, room / f"{method}-{count}", count)
        for name, one in (("processes", plain), ("ray", found)):
            table.add("scaling", f"{method}, {name}: {count}", one.rate, "images/s")
            single = alone.setdefault(name, one.rate / count)
            table.add("scaling", f"{method}, {name}: {count}, efficiency", one.rate / (count * single), "of n × 1")
            table.add("scaling", f"{method}, {name}: {count}, all of it", one.seconds, "s")
        table.add("scaling", f"{method}, ray beside processes: {count}", found.rate / plain.rate, "× as fast")


def storage(table: Table, out: Path, images: int) -> None:
    """Bytes per picture of what scoring leaves."""
    for name in ("maps", "overlays", "scores.jsonl"):
        place = out / name
        files = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
        table.add("storage", f"{name}, {SIZE}×{SIZE} pixels", sum(path.stat().st_size for path in files) / images, "bytes/image")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=48, help="scored with DMD by every number of workers; 0: none")
    parser.add_argument("--light", type=int, default=1000, help="scored with a method that costs nothing: what is left is ours")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # of the workers, too
    torch.set_num_threads(1)
    table, about = Table(), machine(torch.device("cpu"))
    about["load before"] = os.getloadavg()[0]
    print(", ".join(f"{name} {value}" for name, value in about.items() if value is not None))
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        for method, count in (("dmd", options.images), ("brightness", options.light)):
            if count == 0:
                continue
            data = write_phantom(room / method, train=16, test_normal=count, test_abnormal=0, size=SIZE)
            scaling(table, method, bundle(method, room / "runs", data), data, room / "out", options.workers)
            if method == "dmd":
                storage(table, room / "out" / f"dmd-{options.workers[0]}", count)
    if options.out:
        table.write(options.out, about)


if __name__ == "__main__":
    main()
