"""What every script here shares: the clock, peak memory, rows of results, untrained models, facts about the machine."""

import gc
import json
import platform
import re
import statistics
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from reshift import __version__
from reshift.inference.bundle import Bundle, build
from reshift.inference.model import Model
from reshift.system.cores import cores
from reshift.training.run import resolve

MIB = 2**20


class Timing(NamedTuple):
    """Seconds of one piece of work: median, fastest and slowest repeat."""

    median: float
    low: float
    high: float


class Rows:
    """Results of one run: each is shown on stderr as soon as it is known, and all of them are printed as JSON at the end."""

    def __init__(self) -> None:
        self.rows = list[dict[str, Any]]()

    def add(self, section: str, item: str, value: float, unit: str, low: float | None = None, high: float | None = None) -> None:
        """Keep one row; ``low`` and ``high`` are the extremes of its repeats."""
        self.rows.append({"section": section, "item": item, "value": value, "unit": unit, "low": low, "high": high})
        print(f"{section:<10} {item:<60} {value:>12.4g} {unit}", file=sys.stderr, flush=True)

    def rate(self, section: str, item: str, count: int, timing: Timing, unit: str = "images/s") -> float:
        """Keep ``count`` things per second; the slowest repeat gives the lowest rate."""
        self.add(section, item, count / timing.median, unit, count / timing.high, count / timing.low)
        return count / timing.median

    def print(self, device: str, out: Path | None) -> None:
        """Print machine and rows as JSON, and write them to ``out``."""
        text = json.dumps({"machine": machine(device), "rows": self.rows}, indent=1, ensure_ascii=False)
        print(text)
        if out is not None:
            out.write_text(text + "\n")


def options(about: str) -> ArgumentParser:
    """The options of every script."""
    parser = ArgumentParser(description=about)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, …")
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    return parser


def summary(seconds: Sequence[float]) -> Timing:
    """Median and extremes of some repeats."""
    return Timing(statistics.median(seconds), min(seconds), max(seconds))


def timed(work: Callable[[], object], *, repeats: int = 5, warmup: int = 1) -> Timing:
    """Seconds per call of ``work``, which must return only when the device has finished."""
    for _ in range(warmup):
        work()
    seconds = []
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return summary(seconds)


def peak_mib(work: Callable[[], object], device: torch.device) -> float:
    """Peak memory that ``work`` adds: tensors on a GPU, resident memory of the process on the CPU."""
    gc.collect()
    if device.type != "cuda":
        before = _resident_peak()
        work()
        return (_resident_peak() - before) / MIB
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    held = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - held) / MIB


def _resident_peak() -> int:
    """Bytes; 0 where the system does not tell."""
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) * 1024 if found else 0


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Slope of the log–log line: 1 means that twice as much takes twice as long."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def untrained(method: str, device: str, *layers: dict[str, Any]) -> Model:
    """A model of the paper's profile with random weights: training changes no running time."""
    torch.manual_seed(0)
    config = resolve(method, "paper", layers)
    network = torch.nn.Module.eval(build(config)).requires_grad_(False)
    for weight in network.parameters():
        if weight.ndim > 1 and not weight.any():  # layers that start at 0 would hide all differences
            torch.nn.init.normal_(weight, std=0.02)
    return Model(Bundle(network, config, None, {}, ""), device)


def noise(images: int, size: int = 128) -> NDArray[np.float32]:
    """Prepared images in [-1, 1]: their content changes no running time."""
    return np.random.default_rng(0).uniform(-1.0, 1.0, (images, 1, size, size)).astype(np.float32)


def predict(model: Model, images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Heat-maps of all images, in the model's batches."""
    return np.concatenate([model.launch(images[i : i + model.batch])()[1] for i in range(0, len(images), model.batch)])


def machine(device: str) -> dict[str, object]:
    """Facts that explain the numbers; nothing that names the computer."""
    info = Path("/proc/cpuinfo")
    cpu = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    gpu = torch.cuda.is_available() and device != "cpu"
    return {
        "cpu": cpu[1] if cpu else platform.processor() or platform.machine(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if gpu else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "reshift": __version__,
    }


def judge_bundle(doc: str | None, judge: Callable[[Path, Path], Any]) -> None:
    """The command line ``BUNDLE DATA [--out FILE]`` of a script: print what ``judge`` finds as JSON, and keep it if asked."""
    parser = ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    text = json.dumps(judge(given.bundle, given.data), indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")
