"""Reading and preparing: files per second beside the bare library, and memory on a large volume.

    python benchmarks/reading.py [--out reading.json]

The floor is what nibabel, pydicom and Pillow take to decode the same file to an array. Memory is measured in processes of
their own: scoring a 512×512×600 volume of 16-bit voxels with a bundle that learns nothing.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from measure import Table, machine, peak_mib, timed
from reshift.config import DataConfig
from reshift.data.phantom import draw, write_phantom
from reshift.data.prepare import prepare
from reshift.data.read import open_scan
from reshift.data.volume import Volume

CPU = torch.device("cpu")
FULL = (512, 512, 600)  # a thoracic CT


def write_nifti(path: Path, shape: tuple[int, int, int]) -> Path:
    """A smooth volume with noise, 16 bit; what compresses like a scan, not like zeros."""
    import nibabel

    rng = np.random.default_rng(0)
    plane = (400 * np.add.outer(np.sin(np.arange(shape[0]) / 40), np.cos(np.arange(shape[1]) / 30))).astype(np.int16)
    voxels = np.empty(shape, dtype=np.int16)
    for k in range(shape[2]):
        voxels[:, :, k] = plane + rng.integers(0, 60, shape[:2], dtype=np.int16) + 1000
    nibabel.save(nibabel.Nifti1Image(voxels, np.diag([0.8, 0.8, 1.0, 1.0])), path)
    return path


def bare_nifti(path: Path) -> object:
    import nibabel

    return np.asarray(nibabel.load(path).dataobj)  # type: ignore[attr-defined]


def bare_dicom(path: Path) -> object:
    import pydicom

    return pydicom.dcmread(path).pixel_array


def bare_picture(path: Path) -> object:
    import PIL.Image

    return np.asarray(PIL.Image.open(path))


def ours(path: Path) -> object:
    """Read with all checks; of a volume, every voxel that a slice would show."""
    scan = open_scan(path)
    return [scan.plane(k) for k in range(len(scan))] if isinstance(scan, Volume) else scan


def prepared(path: Path) -> object:
    """File to network input; of a volume, every slice."""
    scan, config = open_scan(path), DataConfig()
    images = [scan.image(k) for k in range(len(scan))] if isinstance(scan, Volume) else [scan]
    return [prepare(image, config) for image in images]


def rates(table: Table, folder: Path) -> None:
    """Each kind of file: bare library, our reader, and up to the network's input."""
    from pydicom.data import get_testdata_file

    picture = folder / "picture.png"
    import PIL.Image

    PIL.Image.fromarray(draw("brain", 0, 1, abnormal=False, size=512).pixels).save(picture)
    volume = (240, 240, 155)
    files: list[tuple[str, Path, Callable[[Path], object], int]] = [
        ("PNG 512×512", picture, bare_picture, 1),
        ("NIfTI .nii 240×240×155", write_nifti(folder / "scan.nii", volume), bare_nifti, volume[2]),
        ("NIfTI .nii.gz 240×240×155", write_nifti(folder / "scan.nii.gz", volume), bare_nifti, volume[2]),
        ("DICOM CT 128×128", Path(str(get_testdata_file("CT_small.dcm"))), bare_dicom, 1),
    ]
    for name, path, bare, slices in files:
        few = slices > 1
        for label, work in (("bare library", bare), ("open_scan", ours), ("to network input", prepared)):
            timing = timed(lambda w=work, p=path: w(p), CPU, repeats=3 if few else 5, calls=1 if few else 20, warmup=1)  # type: ignore[misc]
            table.rate("reading", f"{name}, {label}", slices, timing, "slices/s" if few else "files/s")


def large(kind: str) -> None:
    """In a process of its own: the peak that scoring the large volume adds."""
    from reshift.inference.model import load_model
    from reshift.inference.score import score
    from reshift.training.run import resolve, train_run

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = resolve("brightness", "paper", [{"data": {"size": 128}, "calibrate": {"features": "off"}}])
        data = write_phantom(folder / "data", train=16, test_normal=1, test_abnormal=1, size=64)
        model = load_model(train_run(config, data, folder / "run"))
        path = folder / f"ct.{kind}"
        subprocess.run([sys.executable, __file__, "--write", str(path)], check=True)
        print(peak_mib(lambda: score(model, [path], folder / "scores"), CPU))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--large", choices=["nii", "nii.gz"], help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.write:
        write_nifti(args.write, FULL)
        return
    if args.large:
        large(args.large)
        return
    table = Table()
    with tempfile.TemporaryDirectory() as folder:
        rates(table, Path(folder))
    size = np.prod(FULL) * 2 / 2**20
    for kind in ("nii", "nii.gz"):
        done = subprocess.run([sys.executable, __file__, "--large", kind], capture_output=True, text=True, check=True)
        table.add("memory", f"score a 512×512×600 .{kind} of {size:.0f} MiB", float(done.stdout.split()[-1]), "MiB peak")
    if args.out:
        table.write(args.out, machine(CPU))


if __name__ == "__main__":
    main()
