"""Reading files, and scoring from file to file by threads, workers and Ray.

    python benchmarks/data.py [--images 2000] [--size 256] [--workers 0 16] [--ray 1 2] [--bundle BUNDLE] [--folder DIR]

Without ``--bundle`` the method is ``area``, which costs nothing: what is measured is the rest. Scoring is the
command ``reshift score`` in a process of its own, its start included; ``--workers 0`` means threads. With
``--training`` DMD also trains on the files: kept in memory, decoded in every epoch, and read from the cache of
prepared images. Files lie in ``--folder``, by default on the system's disk.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import PIL.Image

from measure import Rows, Timing, options, summary
from reshift.config import DataConfig
from reshift.data.image import Image
from reshift.data.phantom import draw, write_phantom
from reshift.data.prepare import prepare
from reshift.data.read import open_input
from reshift.system.cores import cores
from reshift.training.run import resolve, train_run
from training import lengths, train

VOLUME = (240, 240, 155)
CLI = [sys.executable, "-m", "reshift"]


# ---- reading -----------------------------------------------------------------------------------------------------------


def read_pillow(path: Path) -> object:
    return np.asarray(PIL.Image.open(path))


def read_nibabel(path: Path) -> object:
    import nibabel

    return np.asarray(nibabel.load(path).dataobj)  # type: ignore[attr-defined]


def read_pydicom(path: Path) -> object:
    import pydicom

    return pydicom.dcmread(path).pixel_array


def read_prepared(path: Path) -> object:
    """From file to network input; of a volume, every slice."""
    found, config = open_input(path), DataConfig()
    images = [found] if isinstance(found, Image) else [found.image(k) for k in range(len(found))]
    return [prepare(image, config) for image in images]


def write_nifti(path: Path) -> Path:
    """A smooth 16-bit volume with noise, which compresses like a real one."""
    import nibabel

    waves = np.add.outer(np.sin(np.arange(VOLUME[0]) / 40), np.cos(np.arange(VOLUME[1]) / 30))
    voxels = np.random.default_rng(0).integers(0, 60, VOLUME, dtype=np.int16) + (400 * waves + 1000).astype(np.int16)[:, :, None]
    nibabel.save(nibabel.Nifti1Image(voxels, np.diag([0.8, 0.8, 1.0, 1.0])), path)
    return path


def files(folder: Path, sizes: Sequence[int]) -> dict[str, tuple[Path, Callable[[Path], object], int]]:
    """One file of every kind, the bare library that decodes it, and its number of images."""
    from pydicom.data import get_testdata_file

    found: dict[str, tuple[Path, Callable[[Path], object], int]] = {}
    for size in sizes:
        pixels = draw("chest", 0, 1, abnormal=False, size=size).pixels
        for kind, array in (("png", pixels), ("jpg", pixels), ("tif", pixels.astype(np.uint16) * 200)):
            PIL.Image.fromarray(array).save(path := folder / f"{size}.{kind}")
            found[f"{kind.upper()} {size}×{size}"] = path, read_pillow, 1
    for kind in ("nii", "nii.gz"):
        found[f".{kind} {'×'.join(map(str, VOLUME))}"] = write_nifti(folder / f"volume.{kind}"), read_nibabel, VOLUME[2]
    found["DICOM CT 128×128"] = Path(str(get_testdata_file("CT_small.dcm"))), read_pydicom, 1
    return found


def cpu_ms(work: Callable[[], object], calls: int, images: int, repeats: int) -> Timing:
    """CPU milliseconds per image of this thread; a first repeat warms up."""
    times = []
    for _ in range(1 + repeats):
        begun = time.thread_time()
        for _ in range(calls):
            work()
        times.append(1e3 * (time.thread_time() - begun) / images)
    return summary(times[1:])


def reading(rows: Rows, folder: Path, *, quick: bool) -> None:
    """CPU milliseconds per image: the bare library, and ours with all checks up to the network's input."""
    for name, (path, bare, images) in files(folder, (256,) if quick else (256, 512, 1024)).items():
        for label, work in (("bare library", bare), ("to the network's input", read_prepared)):
            calls = 1 if images > 1 or quick else 10
            timing = cpu_ms(partial(work, path), calls, images * calls, 1 if quick else 3)
            rows.add("reading", f"{name}: {label}", timing.median, "ms CPU per image", timing.low, timing.high)


# ---- scoring -----------------------------------------------------------------------------------------------------------


def write_images(folder: Path, count: int, size: int) -> Path:
    """A folder of ``count`` different files with the content of up to a hundred phantoms."""
    drawn = write_phantom(folder / "drawn", train=min(count, 100), test_normal=0, test_abnormal=0, size=size)
    contents = [path.read_bytes() for path in sorted((drawn.parent / "images").glob("*.png"))]
    (images := folder / "images").mkdir()
    for i in range(count):
        (images / f"{i:06d}.png").write_bytes(contents[i % len(contents)])
    return images


def scoring(rows: Rows, bundle: Path, images: Path, label: str, arguments: list[str], workers: int | None = None) -> None:
    """Score all images by one command."""
    out, count = images.parent / "scores", len(list(images.iterdir()))
    environment = os.environ | ({} if workers is None else {"RESHIFT_WORKERS": str(workers)})
    for overlays in ("all", "none"):
        command = [*CLI, "score", str(bundle), str(images), "--out", str(out), "--overlays", overlays, *arguments]
        begun = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        _, error = process.communicate()
        if process.returncode:
            raise SystemExit(f"{' '.join(command)}: {error.decode()}")
        rows.add("score", f"{label}, overlays {overlays}", count / (time.perf_counter() - begun), "images/s")
        shutil.rmtree(out)


def training(rows: Rows, images: Path, workers: int, device: str) -> None:
    """Images per second of DMD's second stage, by where its images come from."""
    os.environ |= {"RESHIFT_WORKERS": str(workers), "RESHIFT_CACHE": str(images.parent / "cache")}
    label = f"{workers} workers" if workers else "threads"
    for name, memory, cache in (("in memory", 8.0, 0), ("decoded in every epoch", 1e-9, 0), ("from the cache", 1e-9, 8)):
        os.environ["RESHIFT_PREPARED_GB"] = str(cache)
        layer = {"data": {"memory_gb": memory}, "train": {"device": device, "log_every": 5}, "model": lengths("dmd", 3)}
        log = train("dmd", images, images.parent / f"run {name} {workers}", layer)["restoration"]
        batch = resolve("dmd", "paper", []).train.batch
        rows.add("training", f"{label}: {name}", 1e3 * batch / log.step_ms, "images/s")


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--workers", type=int, nargs="*", default=[0, min(16, cores())])
    parser.add_argument("--ray", type=int, nargs="*", default=[], help="numbers of Ray workers (extra: ray)")
    parser.add_argument("--training", action="store_true", help="also train from these files; best on a GPU")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repeats, to try the script")
    parser.add_argument("--folder", type=Path, help="where the files lie")
    given, rows = parser.parse_args(), Rows()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        reading(rows, folder, quick=given.quick)
        images = write_images(folder, given.images, given.size)
        quiet = {"calibrate": {"features": "off", "training_sample": 64}}
        bundle = given.bundle or train_run(resolve("area", "paper", [quiet]), folder / "drawn" / "manifest.csv", folder / "area")
        for workers in given.workers:
            scoring(rows, bundle, images, f"{workers} workers" if workers else "threads", ["--device", given.device], workers)
            if given.training:
                training(rows, images, workers, given.device)
        for workers in given.ray:
            ray = ["--device", given.device, "--engine", "ray", "--workers", str(workers)]
            scoring(rows, bundle, images, f"{workers} Ray workers", ray)
    rows.print(given.device, given.out)


if __name__ == "__main__":
    main()
