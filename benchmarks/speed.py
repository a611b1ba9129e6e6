"""Speed and memory of training, inference, preparing and metrics: ``python benchmarks/speed.py``; see README.md beside it."""

import argparse
import io
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from measure import Bench, Clocked, arguments, exponent, measure, peak_mib, phantoms, summary, timed
from reshift.config import Config, DataConfig, TrainConfig
from reshift.data.prepare import prepare
from reshift.data.read import read_image
from reshift.data.source import Source
from reshift.evaluation.metrics.pixels import FAST, PixelHistogram
from reshift.inference.bundle import Bundle, build
from reshift.inference.model import GPU_BATCH, Model
from reshift.system.device import Rank, pick_device
from reshift.training.loop import as_module, fit

BATCH = TrainConfig().batch
STAGES = ("Stage I", "Stage II")
GPU_NUMBERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MASK_GRIDS = {4: (8, 8), 16: (4, 4), 49: (4, 2), 169: (4, 1)}  # masks on the 16×16 grid: (side, stride)
MAPS, QUICK_MAPS = 2776, 128  # of 128×128: BraTS2021's test set, 45 million pixels, and a part of it
FULL, QUICK = "all maps", "some maps"  # memory items of the metrics


# ---- training ----------------------------------------------------------------------------------------------------------


def train(device: torch.device, number: int, *, blocks: int, block: int, **settings: Any) -> list[float]:
    """Seconds per step, block by block, of the paper's Stage I or II in ``reshift.training.loop.fit``."""
    steps = [0, 0]
    steps[number] = blocks * block + 1  # an epoch is one step here; the clock is read at the start of a step, hence one more
    model = {"stage1_epochs": steps[0], "stage2_epochs": steps[1]}
    config = Config(method="dmd", train=TrainConfig(checkpoint_seconds=1e9, **settings), model=model)
    with phantoms(BATCH, 128) as cases, tempfile.TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):
        source = Clocked(cases, device, block)
        fit(build(config), source, config, Path(folder), Rank(0, 1))
    return [(end - begin) / block for begin, end in pairwise(source.marks)]


GPU_KINDS: dict[str, dict[str, Any]] = {
    "float32, eager": {"amp": "off", "graphs": False},
    "bf16, eager": {"amp": "bf16", "graphs": False},
    "float32, recorded": {"amp": "off"},
    "bf16, recorded": {},  # the default
}


def training(bench: Bench) -> None:
    """Steps per second; on a GPU with and without bf16 and recorded (CUDA graph) steps, on the CPU as it is."""
    kinds = GPU_KINDS if bench.cuda else {"float32": {}}
    for number, name in enumerate(STAGES):
        rates = {}
        for kind, settings in kinds.items():
            block = 20 if bench.cuda else (3 if number == 0 else 1)
            seconds = train(bench.device, number, blocks=bench.repeats + 1, block=block, **settings)
            timing = summary(seconds[1:])  # the first block warms up
            bench.table.rate("training", f"{name}, batch {BATCH}, 128×128, {kind}", 1, timing, "steps/s")
            rates[kind] = 1 / timing.median
        for kind, rate in list(rates.items())[1:]:
            bench.table.add("training", f"{name}: {kind} against float32, eager", rate / rates["float32, eager"], "× as fast")


# ---- inference ---------------------------------------------------------------------------------------------------------


def model(device: torch.device, size: int = 128, **settings: Any) -> Model:
    """Build an untrained DMD ready for inference; trained weights would take as long."""
    config = Config(method="dmd", data=DataConfig(size=size), model=settings)
    detector = as_module(build(config)).eval().requires_grad_(False)
    return Model(Bundle(detector, config, None, {}, ""), str(device))


def pictures(images: int, size: int = 128) -> NDArray[np.float32]:
    """Noise in [-1, 1]: what is in a picture does not change how long it takes."""
    return np.random.default_rng(0).uniform(-1.0, 1.0, (images, 1, size, size)).astype(np.float32)


def score(loaded: Model, pixels: NDArray[np.float32]) -> None:
    """Run all pictures, in batches of the size that the model uses on its device."""
    for start in range(0, len(pixels), loaded.batch):
        loaded.run(pixels[start : start + loaded.batch])


def inference(bench: Bench) -> None:
    """Images per second with the paper's 49 masks."""
    loaded = model(bench.device)
    one = timed(partial(loaded.run, pictures(1)), bench.device, repeats=bench.repeats)
    bench.table.rate("inference", f"{bench.device.type}, 49 masks, batch 1", 1, one, "images/s")
    if bench.cuda:
        many = timed(partial(loaded.run, pictures(loaded.batch)), bench.device, repeats=bench.repeats)
        bench.table.rate("inference", f"cuda, 49 masks, batch {loaded.batch}", loaded.batch, many, "images/s")
        bench.table.add(
            "inference", f"batch {loaded.batch} against batch 1", loaded.batch * one.median / many.median, "× as fast"
        )
    # On the CPU a batch is split, so that no image's bits depend on its neighbours (methods.detector.batch_invariant).
    cpu, images = torch.device("cpu"), 2 if bench.quick else 4
    split = timed(partial(model(cpu).run, pictures(images)), cpu, repeats=bench.repeats, warmup=1)
    bench.table.rate("inference", f"cpu, 49 masks, {images} images one by one", images, split, "images/s")


# ---- memory ------------------------------------------------------------------------------------------------------------


def peak_items(device: torch.device) -> dict[str, Callable[[], object]]:
    """Each builds what it needs inside, so that weights and optimiser count."""

    def infer(images: int) -> None:
        score(model(device), pictures(images))

    batch = GPU_BATCH if device.type == "cuda" else 1
    block = 10 if device.type == "cuda" else 1  # enough for the optimiser's moments to exist and a graph to be recorded
    step = partial(train, device, blocks=2, block=block)
    items: dict[str, Callable[[], object]] = {f"{name}, batch {BATCH}": partial(step, n) for n, name in enumerate(STAGES)}
    return items | {f"inference, batch {n}": partial(infer, n) for n in sorted({1, batch})}


def memory(bench: Bench) -> None:
    """Peak memory per item. On the CPU each has a process of its own: a peak never goes down again."""
    for name, work in peak_items(bench.device).items():
        if bench.cuda:
            bench.table.add("memory", name, peak_mib(work, bench.device), "MiB on the GPU")
            continue
        bench.table.add("memory", name, own_process(bench.device, name), "MiB resident")


def own_process(device: torch.device, name: str) -> float:
    """Measure one memory item in a process of its own."""
    command = [sys.executable, __file__, "--device", str(device), "--peak", name]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


# ---- growth ------------------------------------------------------------------------------------------------------------


def grow(bench: Bench, what: str, note: str, values: Sequence[int], work: Callable[[int], Callable[[], object]]) -> None:
    """Seconds for every value, and how they grow. A value that does not fit into the GPU's memory is left out."""
    seconds: dict[int, float] = {}
    for value in values:
        try:
            timing = timed(work(value), bench.device, repeats=3, warmup=1 if bench.device.type == "cpu" else 4)
        except torch.cuda.OutOfMemoryError:
            print(f"growth: {what} {value} needs more memory than this GPU has", file=sys.stderr)
            continue
        seconds[value] = timing.median
        bench.table.add("growth", f"{what} = {value} ({note})", timing.median, "s", timing.high, timing.low)
    if len(seconds) > 1:
        bench.table.add("growth", f"seconds against {what} ({note})", exponent([*seconds], [*seconds.values()]), "exponent")


def growth(bench: Bench) -> None:
    """Inference time against the number of images, their size and the number of masks, one at a time."""
    device = bench.device
    loaded = model(device)
    images = 4 if bench.cuda else 1  # of the other two: few enough for 512×512, enough to keep a GPU busy

    def by_size(size: int) -> Callable[[], object]:
        stride = size // 64  # side and stride follow the latent grid, so that every size has 49 masks
        side = size // 8 - 6 * stride
        return partial(score, model(device, size, mask_side=side, mask_stride=stride), pictures(images, size))

    def by_masks(masks: int) -> Callable[[], object]:
        side, stride = MASK_GRIDS[masks]
        return partial(score, model(device, mask_side=side, mask_stride=stride), pictures(images))

    several = f"{images} image{'s' if images > 1 else ''}"
    numbers, sizes, masks = _points(bench)
    grow(bench, "images", "128×128, 49 masks", numbers, lambda n: partial(score, loaded, pictures(n)))
    grow(bench, "size", f"{several}, 49 masks", sizes, by_size)
    grow(bench, "masks", f"{several}, 128×128", masks, by_masks)


def _points(bench: Bench) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Numbers of images, sizes and numbers of masks."""
    if bench.cuda:
        return (
            ((1, 8, 64), (64, 128, 256), (16, 49, 169))
            if bench.quick
            else (GPU_NUMBERS, (64, 96, 128, 256, 512), (4, 16, 49, 169))
        )
    return ((1, 2, 4), (64, 128), (4, 16, 49)) if bench.quick else ((1, 2, 4, 8, 16), (64, 96, 128, 256), (4, 16, 49, 169))


# ---- preparing and metrics -----------------------------------------------------------------------------------------------


def preparing(bench: Bench) -> None:
    """Images per second from PNG file to network input; the files are in the system's cache."""
    cpu, images, config = torch.device("cpu"), 48 if bench.quick else 192, DataConfig()
    with phantoms(images, 256) as cases:
        alone = timed(lambda: [prepare(read_image(case.image), config) for case in cases], cpu, repeats=bench.repeats)
        bench.table.rate("preparing", "256×256 PNG, one thread", images, alone, "images/s")
        pooled = timed(lambda: Source(cases, config, cpu), cpu, repeats=bench.repeats)
        bench.table.rate("preparing", "256×256 PNG, as training loads them", images, pooled, "images/s")
        bench.table.add("preparing", "as training loads against one thread", alone.median / pooled.median, "× as fast")


def residuals(maps: int, rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Maps as reconstruction errors look, and masks of 2 % lesion pixels."""
    lesion = rng.random((maps, 128, 128), dtype=np.float32) < 0.02
    noise, more = (make(lesion.shape, dtype=np.float32) for make in (rng.standard_normal, rng.random))
    return np.abs(noise) * np.float32(0.05) + lesion * more * np.float32(0.2), lesion


def histogram_ap(pairs: Iterable[tuple[NDArray[np.float32], NDArray[np.bool_]]]) -> float:
    """Pixel AP of maps with masks, one after the other."""
    histogram = PixelHistogram(FAST)
    for heatmap, mask in pairs:
        histogram.add(heatmap, mask)
    return histogram.average_precision() or 0.0


def stream_ap(maps: int) -> float:
    """The same without ever holding more than one map: what it takes is the histogram's memory."""
    rng = np.random.default_rng(0)
    return histogram_ap((heat[0], lesion[0]) for heat, lesion in (residuals(1, rng) for _ in range(maps)))


def metrics(bench: Bench) -> None:
    """Pixel average precision by histogram and by scikit-learn, on the same maps, and the memory of the former."""
    from sklearn.metrics import average_precision_score

    cpu, found = torch.device("cpu"), dict[str, float]()
    heat, lesion = residuals(QUICK_MAPS if bench.quick else MAPS, np.random.default_rng(0))

    def by_histogram() -> None:
        found["histogram"] = histogram_ap(zip(heat, lesion, strict=True))

    def by_sklearn() -> None:
        found["sklearn"] = float(average_precision_score(lesion.ravel(), heat.ravel()))

    ours = timed(by_histogram, cpu, repeats=3, warmup=1)
    theirs = timed(by_sklearn, cpu, repeats=3 if bench.quick else 1, warmup=0)
    label = f"AP of {heat.size / 1e6:.1f} million pixels"
    bench.table.add("metrics", f"{label}, PixelHistogram", ours.median, "s", ours.high, ours.low)
    bench.table.add("metrics", f"{label}, scikit-learn", theirs.median, "s", theirs.high, theirs.low)
    bench.table.add("metrics", "PixelHistogram against scikit-learn", theirs.median / ours.median, "× as fast")
    bench.table.add("metrics", "absolute difference of the two", abs(found["histogram"] - found["sklearn"]), "AP")
    bench.table.add("metrics", f"{label}, PixelHistogram", own_process(cpu, QUICK if bench.quick else FULL), "MiB resident")


SECTIONS = {f.__name__: f for f in (training, inference, memory, growth, preparing, metrics)}


def main() -> None:
    """Measure the sections asked for."""
    parser = arguments("Measure speed and memory; prints one table.", SECTIONS)
    parser.add_argument("--peak", help=argparse.SUPPRESS)  # one memory item, in a process of its own
    options = parser.parse_args()
    if options.peak:
        device, streams = pick_device(options.device), {FULL: partial(stream_ap, MAPS), QUICK: partial(stream_ap, QUICK_MAPS)}
        print(peak_mib((peak_items(device) | streams)[options.peak], device))
        return
    measure(options, SECTIONS)


if __name__ == "__main__":
    main()
