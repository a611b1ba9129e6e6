"""What ``data.size`` is worth: small lesions found in 1024×1024 phantoms, with time and peak memory, on the CPU.

    python benchmarks/resolution.py [--methods patchcore dae reshift] [--sizes 128 512 1024] [--steps 100] [--out FILE]

Healthy brain phantoms of 1024×1024 pixels, drawn with more grain, train every model; half of the test images get four discs
of ``--lesion`` pixels across, brighter or darker by a fifth of the grey range. The threshold is the 99.5 % quantile of healthy
heads. A lesion is found if the heat-map exceeds it in the disc or within one pixel of the network around it. "without lesions"
is how often the same places do so before the lesions are drawn: what chance finds. Training is short, with a small network, and
the same number of steps and images for every size. Each row is a process of its own, so its peak memory is its own, too.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from measure import MIB, Rows, _resident_peak, options
from reshift.data.phantom import draw
from reshift.inference.model import load_model
from reshift.training.run import resolve, train_run

SIDE, TRAIN, TEST, LESIONS = 1024, 10, 8, 4
CONTRAST, GRAIN = 51.0, 6.0  # grey values of 255
QUANTILE = 0.995  # of the pixels of healthy heads: the threshold
SETTINGS: dict[str, dict[str, Any]] = {  # [model], for so many steps
    "patchcore": {"bank": 2048, "sample": 40_000},
    "dae": {"widths": [16, 32, 64, 128]},
    "reshift": {
        "witnesses": ["plain"],
        "features": "off",
        "folds": 1,
        "widths": [8, 8, 8, 8],
        "marks": 0.0,
        "mirror": False,
        "flips": False,
        "blobs": 4,
        "largest": 0.1,
    },
}


def scan(subject: int) -> NDArray[np.uint8]:
    """A healthy slice with grain."""
    clean = draw("brain", subject, 1, abnormal=False, size=SIDE).pixels.astype(np.float64)
    grain = np.random.default_rng(subject).normal(0.0, GRAIN, clean.shape)
    return np.asarray(np.clip(np.where(clean > 8, clean + grain, clean), 0, 255).astype(np.uint8))


def with_lesions(
    pixels: NDArray[np.uint8], rng: np.random.Generator, width: int
) -> tuple[NDArray[np.uint8], list[tuple[int, int]]]:
    """Discs inside the head, apart from each other; and their centres."""
    rows, columns = np.nonzero(pixels > 60)
    centres: list[tuple[int, int]] = []
    while len(centres) < LESIONS:
        i = int(rng.integers(len(rows)))
        y, x = int(rows[i]), int(columns[i])
        if all(max(abs(y - a), abs(x - b)) > 100 for a, b in centres):
            centres.append((y, x))
    shown, (ys, xs) = pixels.astype(np.float64), np.mgrid[:SIDE, :SIDE]
    for y, x in centres:
        sign = -1.0 if shown[y, x] > 128 else 1.0
        shown[(ys - y) ** 2 + (xs - x) ** 2 <= (width / 2) ** 2] += sign * CONTRAST
    return np.clip(shown, 0, 255).astype(np.uint8), centres


def found(heatmap: NDArray[np.float32], centres: list[tuple[int, int]], reach: int, threshold: float) -> int:
    """How many places have a pixel above the threshold within ``reach``."""
    windows = (heatmap[max(0, y - reach) : y + reach + 1, max(0, x - reach) : x + reach + 1] for y, x in centres)
    return sum(bool((window > threshold).any()) for window in windows)


def measure(method: str, size: int, steps: int, width: int) -> dict[str, float]:
    """Train, score and count."""
    batch = 1 if method == "reshift" else 2
    settings = dict(SETTINGS[method])
    if method == "dae":
        settings["epochs"] = max(1, steps * batch // TRAIN)
        settings["noise_grid"] = max(16, size // 8)
    if method == "reshift":
        settings["steps"] = steps
    layers = {"data": {"size": size}, "train": {"batch": batch, "device": "cpu", "cache": "off"}, "model": settings}
    with tempfile.TemporaryDirectory() as name:
        folder, rng = Path(name), np.random.default_rng(0)
        (folder / "in").mkdir()
        for subject in range(TRAIN):
            PIL.Image.fromarray(scan(subject)).save(folder / "in" / f"{subject}.png")
        begun = time.perf_counter()
        config = resolve(method, "quick", [layers, {"calibrate": {"features": "off"}}])
        model = load_model(train_run(config, folder / "in", folder / "run"), "cpu")
        trained, begun = time.perf_counter() - begun, time.perf_counter()
        tests = [scan(1000 + i) for i in range(2 * TEST)]
        healthy = [model.predict(pixels)[0].heatmap for pixels in tests]
        inside = [heatmap[pixels > 8] for pixels, heatmap in zip(tests[:TEST], healthy, strict=False)]
        threshold, reach, hits, chance = float(np.quantile(np.concatenate(inside), QUANTILE)), width // 2 + SIDE // size, 0, 0
        for pixels, before in zip(tests[TEST:], healthy[TEST:], strict=True):
            shown, centres = with_lesions(pixels, rng, width)
            hits += found(model.predict(shown)[0].heatmap, centres, reach, threshold)
            chance += found(before, centres, reach, threshold)
        scored = (time.perf_counter() - begun) / (3 * TEST)
    lesions = TEST * LESIONS
    return {
        "recall": hits / lesions,
        "without lesions": chance / lesions,
        "training": trained,
        "scoring": scored,
        "memory": _resident_peak() / MIB,
    }


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--methods", nargs="+", default=list(SETTINGS))
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 256, 512, 1024])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lesion", type=int, default=5, help="pixels of 1024")
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "SIZE"), help="measure this one in this process")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one[0], int(given.one[1]), given.steps, given.lesion)))
        return
    rows = Rows()
    for method in given.methods:
        for size in given.sizes:
            command = [
                sys.executable,
                __file__,
                "--one",
                method,
                str(size),
                "--steps",
                str(given.steps),
                "--lesion",
                str(given.lesion),
            ]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            for name, unit in (
                ("recall", ""),
                ("without lesions", ""),
                ("training", "s"),
                ("scoring", "s/image"),
                ("memory", "MiB"),
            ):
                rows.add("resolution", f"{method} {size}: {name}", found[name], unit)
    rows.print("cpu", given.out)


if __name__ == "__main__":
    main()
