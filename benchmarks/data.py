"""Reading, preparing and writing: CPU milliseconds per image on one core. What many cores make of it: hands.py.

    python benchmarks/data.py [--out data.json]

Every figure is CPU time of one thread, so another program on the machine changes it little; candidates take turns in one process,
medians over the turns. "Before" is the plain way: interpolated colours, PNG by Pillow at its default. The last rows measure what
all cores of this machine do together, in wall time: there a busy machine shows.
"""

import argparse
import io
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray

from measure import Table, machine
from reading import write_nifti
from reshift.config import DataConfig
from reshift.data import read
from reshift.data.image import Image
from reshift.data.manifest import Case
from reshift.data.phantom import draw
from reshift.data.prepare import prepare, restore
from reshift.data.prepared_cache import PreparedCache
from reshift.data.read import read_picture
from reshift.inference.acquisition import describe
from reshift.inference.overlay import RAMP, grey, overlay, png
from reshift.inference.records import FIELDS, Ledger
from reshift.system.cores import cores
from reshift.system.files import atomic_bytes

CONFIG = DataConfig()
VOLUME = (240, 240, 155)
Work = Callable[[], object]


def spent(works: Sequence[Work], repeats: int = 7, calls: int = 10) -> list[tuple[float, float, float]]:
    """CPU milliseconds per call of each of ``works``, which take turns: median, fastest and slowest turn."""
    found: list[list[float]] = [[] for _ in works]
    for turn in range(repeats + 1):
        for work, times in zip(works, found, strict=True):
            begun = time.thread_time()
            for _ in range(calls):
                work()
            if turn:  # the first is for warming up
                times.append(1e3 * (time.thread_time() - begun) / calls)
    return [(statistics.median(times), min(times), max(times)) for times in found]


def add(table: Table, section: str, items: Mapping[str, Work], **how: int) -> None:
    """Measure ``items`` against each other and print a row for each."""
    rows = spent(list(items.values()), **how)
    for name, (median, low, high) in zip(items, rows, strict=True):
        table.add(section, name, median, "ms CPU", high, low)


def case_of(path: Path, at: int | None = None) -> Case:
    """A case that is nothing but a file."""
    return Case(path.name, path, None, path.stem, 0, "train", "", slice=at)


def fresh(case: Case, config: DataConfig) -> NDArray[np.float32]:
    """From the file, every time."""
    return prepare(read_picture(case.image, case.slice), config).pixels


def pictures(folder: Path) -> dict[str, Case]:
    """One file of every kind."""
    files = {}
    for size in (256, 512, 1024):
        grey8 = draw("chest", 0, 1, abnormal=False, size=size).pixels
        noise = np.random.default_rng(0).integers(0, 200, grey8.shape, dtype=np.uint16)
        for kind, pixels in (("png", grey8), ("jpg", grey8), ("tif", grey8.astype(np.uint16) * 200 + noise)):
            path = folder / f"{size}.{kind}"
            PIL.Image.fromarray(pixels).save(path)
            files[f"{ {'png': 'PNG', 'jpg': 'JPEG', 'tif': 'TIFF, 16 bit'}[kind] } {size}×{size}"] = case_of(path)
    return files


def reading(table: Table, folder: Path) -> None:
    """Decode and prepare beside the cache."""
    cache = PreparedCache(folder / "cache", 2**30)
    for name, case in pictures(folder).items():
        both = {f"{name}: file": lambda c=case: fresh(c, CONFIG), f"{name}: cached": lambda c=case: cache.get(c, CONFIG, fresh)}
        add(table, "reading", both)
    for kind in ("nii", "nii.gz"):
        case = case_of(write_nifti(folder / f"volume.{kind}", VOLUME), VOLUME[2] // 2)

        def alone(case: Case = case) -> None:
            read._open.clear()  # noqa: SLF001 (as if six other volumes had been asked for in between)
            fresh(case, CONFIG)

        add(table, "reading", {f"slice of a .{kind}: volume open": lambda c=case: fresh(c, CONFIG)})  # type: ignore[misc]
        add(table, "reading", {f"slice of a .{kind}: shuffled": alone}, repeats=3, calls=1)
        add(table, "reading", {f"slice of a .{kind}: cached": lambda c=case: cache.get(c, CONFIG, fresh)})  # type: ignore[misc]


def plain_overlay(pixels: NDArray[np.float32], heatmap: NDArray[np.float32], scale: float) -> NDArray[np.uint8]:
    """The formula as one would write it down."""
    heat = np.nan_to_num(np.clip(heatmap / scale, 0.0, 1.0))
    alpha, at = (0.75 * np.sqrt(heat))[:, :, None], np.linspace(0.0, 1.0, len(RAMP))
    colour = np.stack([np.interp(heat, at, RAMP[:, c]) for c in range(3)], axis=-1).round().astype(np.uint8)
    return np.asarray(np.rint((1.0 - alpha) * np.repeat(grey(pixels)[:, :, None], 3, axis=2) + alpha * colour).astype(np.uint8))


def pillow_png(picture: NDArray[np.uint8]) -> bytes:
    """Pillow at its default."""
    buffer = io.BytesIO()
    PIL.Image.fromarray(picture).save(buffer, "png")
    return buffer.getvalue()


def npy(heatmap: NDArray[np.float32]) -> bytes:
    """A map as it is stored."""
    buffer = io.BytesIO()
    np.save(buffer, heatmap)
    return buffer.getvalue()


def to_disk(folder: Path, contents: Sequence[bytes], number: Iterator[int]) -> None:
    """Write whole or not at all, and files that are new: to replace one takes a file system longer."""
    for content in contents:
        atomic_bytes(folder / f"{next(number)}.file", content, lasting=False)


def scored(folder: Path) -> tuple[Image, NDArray[np.float32]]:
    """A 256×256 picture and a map as a restoration leaves it: differences at 128×128, brought back."""
    path = folder / "scored.png"
    PIL.Image.fromarray(draw("brain", 0, 1, abnormal=True, size=256).pixels).save(path)
    image = read_picture(path)
    x, geometry = prepare(image, CONFIG)
    smooth = (np.roll(x, 3, 1) + np.roll(x, -3, 1) + np.roll(x, 3, 2) + np.roll(x, -3, 2)) / 4
    return image, restore(np.abs(x - smooth)[0], geometry)


def writing(table: Table, folder: Path) -> None:
    """Map, overlay, PNG and record of one 256×256 image."""
    image, heatmap = scored(folder)
    shown = overlay(image.pixels, heatmap, 1.0)
    assert np.abs(shown.astype(int) - plain_overlay(image.pixels, heatmap, 1.0)).max() <= 2  # its colours are rounded, too
    assert np.array_equal(np.asarray(PIL.Image.open(io.BytesIO(png(shown)))), shown)
    blend = {"overlay, before": lambda: plain_overlay(image.pixels, heatmap, 1.0)}
    add(table, "writing", blend | {"overlay": lambda: overlay(image.pixels, heatmap, 1.0)})
    add(table, "writing", {"PNG, before": lambda: pillow_png(shown), "PNG": lambda: png(shown)})
    for name, size in (("before", len(pillow_png(shown))), ("now", len(png(shown)))):
        table.add("writing", f"PNG, bytes {name}", size, "bytes")
    record = {**dict.fromkeys(FIELDS), "input": "image", "score": 0.5, "p_value": 0.1, "map": "maps/image.npy"}
    contents, number = [npy(heatmap), png(shown)], count()
    with Ledger(folder / "r.jsonl") as ledger:
        others = {"map": lambda: npy(heatmap), "record": lambda: ledger.append([record])}
        add(table, "writing", {**others, "two files": lambda: to_disk(folder, contents, number)})


def around(table: Table, folder: Path) -> None:
    """What else an image needs: to be described, and its map brought back to its own pixels."""
    image, _ = scored(folder)
    x, geometry = prepare(image, CONFIG)
    add(table, "around", {"describe": lambda: describe(x), "restore": lambda: restore(x[0], geometry)})


def together(table: Table, folder: Path) -> None:
    """Images per second of wall time, one thread and as many as there are cores: how far threads get in one process."""
    image, heatmap = scored(folder)

    def both(_: int) -> int:
        prepare(read_picture(image.source), CONFIG)
        return len(npy(heatmap)) + len(png(overlay(image.pixels, heatmap, 1.0)))

    for threads in (1, min(16, cores())):
        with ThreadPoolExecutor(threads) as pool:
            rates = []
            for _ in range(5):
                begun = time.perf_counter()
                list(pool.map(both, range(60)))
                rates.append(60 / (time.perf_counter() - begun))
        table.add(
            "threads", f"read, prepare, map, overlay: {threads}", statistics.median(rates), "images/s", min(rates), max(rates)
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    table = Table()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reading(table, folder)
        writing(table, folder)
        around(table, folder)
        together(table, folder)
    if args.out:
        table.write(args.out, machine(torch.device("cpu")))


if __name__ == "__main__":
    main()
