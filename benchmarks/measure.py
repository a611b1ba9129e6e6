"""What every measurement shares: the clock, peak memory, pictures, the table, and what is said about the machine."""

import argparse
import gc
import json
import platform
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from reshift import __version__
from reshift.config import DataConfig
from reshift.data.manifest import Case, load_cases
from reshift.data.phantom import write_phantom
from reshift.data.source import Source
from reshift.system.cores import cores
from reshift.system.device import pick_device

MIB = 2**20


@dataclass(frozen=True)
class Timing:
    """Seconds of one piece of work: median, fastest and slowest repeat."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    section: str
    item: str
    value: float
    unit: str
    low: float | None = None  # of the repeats, where there were several
    high: float | None = None


@dataclass
class Table:
    """Prints every row as soon as it is measured, and keeps it for the JSON file."""

    rows: list[Row] = field(default_factory=list)

    def add(self, section: str, item: str, value: float, unit: str, low: float | None = None, high: float | None = None) -> None:
        """Print and keep one row."""
        if not self.rows:
            print(f"{'section':<10} {'item':<42} {'median':>12} {'unit':<14} fastest … slowest repeat", flush=True)
        self.rows.append(Row(section, item, value, unit, low, high))
        spread = f"{high:.4g} … {low:.4g}" if low is not None and high is not None else ""
        print(f"{section:<10} {item:<42} {value:>12.4g} {unit:<14} {spread}".rstrip(), flush=True)

    def rate(self, section: str, item: str, count: int, timing: Timing, unit: str) -> None:
        """Add ``count`` things per second; the slowest repeat gives the lowest rate."""
        self.add(section, item, count / timing.median, unit, count / timing.high, count / timing.low)

    def write(self, path: Path, about: dict[str, object]) -> None:
        """Write machine and rows as JSON."""
        path.write_text(json.dumps({"machine": about, "rows": [asdict(row) for row in self.rows]}, indent=1) + "\n")


def timed(work: Callable[[], object], device: torch.device, *, repeats: int, calls: int = 1, warmup: int = 4) -> Timing:
    """Seconds per call of ``work``.

    A GPU runs behind the program, so the clock is read only when the device has finished; over a block of ``calls``, since
    waiting after every call would measure the wait.
    """
    for _ in range(warmup):
        work()
    seconds = []
    for _ in range(repeats):
        finish(device)
        begun = time.perf_counter()
        for _ in range(calls):
            work()
        finish(device)
        seconds.append((time.perf_counter() - begun) / calls)
    return summary(seconds)


def summary(seconds: Sequence[float]) -> Timing:
    """Median and extremes of some repeats."""
    return Timing(statistics.median(seconds), min(seconds), max(seconds))


def finish(device: torch.device) -> None:
    """Wait until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_mib(work: Callable[[], object], device: torch.device) -> float:
    """Peak memory that ``work`` adds: allocated tensors on a GPU, resident memory of the process on the CPU."""
    gc.collect()
    if device.type != "cuda":
        before = _resident_peak()
        work()
        return (_resident_peak() - before) / MIB
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    held = torch.cuda.memory_allocated(device)
    work()
    finish(device)
    return (torch.cuda.max_memory_allocated(device) - held) / MIB


def _resident_peak() -> int:
    """Bytes. Linux carries ru_maxrss from the parent over into a new program; VmHWM belongs to this one alone."""
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if found:
            return int(found[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024)


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Slope of the log–log line: 1 means that twice as much takes twice as long."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def machine(device: torch.device) -> dict[str, object]:
    """Facts that explain the figures; nothing that names the computer."""
    return {
        "cpu": _cpu(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "reshift": __version__,
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


@contextmanager
def phantoms(images: int, size: int) -> Iterator[list[Case]]:
    """Healthy phantom pictures as PNG files, for as long as the block runs."""
    with tempfile.TemporaryDirectory() as folder:
        yield load_cases(write_phantom(Path(folder), train=images, test_normal=0, test_abnormal=0, size=size))


class Clocked(Source):
    """One batch of images in memory; notes the time whenever the training loop has taken another ``block`` batches."""

    def __init__(self, cases: Sequence[Case], device: torch.device, block: int) -> None:
        super().__init__(cases, DataConfig(), device)
        self.block, self.taken, self.marks = block, 0, list[float]()

    def stream(self, chosen: Iterable[Sequence[int]]) -> Iterator[Tensor]:
        """Batch after batch, as every source gives them."""
        for batch in super().stream(chosen):
            if self.taken % self.block == 0:
                finish(self.device)
                self.marks.append(time.perf_counter())
            self.taken += 1
            yield batch


# ---- a script of sections ----------------------------------------------------------------------------------------------


class Bench(NamedTuple):
    """What is measured where; ``cuda`` and ``quick`` decide how much."""

    table: Table
    device: torch.device
    quick: bool

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def repeats(self) -> int:
        return 3 if self.quick else 5


Sections = Mapping[str, Callable[[Bench], None]]


def arguments(about: str, sections: Sections) -> argparse.ArgumentParser:
    """What every script of sections can be told."""
    parser, names = argparse.ArgumentParser(description=about), list(sections)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, …")
    parser.add_argument("--out", type=Path, help="also write the rows to this JSON file")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="SECTION", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="fewer repeats and points")
    return parser


def measure(options: argparse.Namespace, sections: Sections) -> None:
    """Measure the sections asked for; rows are kept after each of them."""
    device = pick_device(options.device)
    about = machine(device)
    print(", ".join(f"{name} {value}" for name, value in about.items() if value is not None), flush=True)
    bench = Bench(Table(), device, options.quick)
    for name in options.only:
        sections[name](bench)
        if options.out:
            bench.table.write(options.out, {**about, "device": device.type, "quick": options.quick})
