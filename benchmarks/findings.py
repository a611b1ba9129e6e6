"""Findings of a 512×512×600 volume: time and memory, by how much of the map is above the threshold.

    python benchmarks/findings.py

Maps are smooth, as those of a network with 128×128 pixels are; every share is measured in a process of its own.
"""

import resource
import subprocess
import sys
import time
from itertools import cycle, islice

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from reshift.inference.findings.measure import measured
from reshift.inference.findings.regions import RegionFinder
from reshift.inference.findings.space import Space

SLICES, SIDE, NETWORK = 600, 512, 128
SHARES = (0.001, 0.005, 0.05, 0.3)


def planes(rng: np.random.Generator) -> list[NDArray[np.float32]]:
    """Eight heat-maps of blobs a few network pixels wide."""
    found = []
    for _ in range(8):
        noise = rng.random((NETWORK // 4, NETWORK // 4)).astype(np.float32)
        small = PIL.Image.fromarray(noise).resize((NETWORK, NETWORK), PIL.Image.Resampling.BICUBIC)
        found.append(np.asarray(small.resize((SIDE, SIDE), PIL.Image.Resampling.BILINEAR)))
    return found


def measure(share: float) -> None:
    some = planes(np.random.default_rng(0))
    threshold = float(np.quantile(np.stack(some), 1.0 - share))
    space = Space("LPS", "mm", np.diag([1.0, 0.7, 0.7, 1.0]), volumetric=True)
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    finder = RegionFinder(threshold)
    for k, plane in enumerate(islice(cycle(np.repeat(np.arange(8), 3)), SLICES)):  # blobs are three slices deep
        finder.add(k, some[plane])
    found = measured(finder, space, 3.0)
    seconds, memory = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    count = "too many" if found is None else found.findings[0]["of"] if found.findings else 0
    print(f"{share:7.1%} above: {finder.count:9,} runs, {count} findings, {seconds:5.1f} s, {memory / 1024:5.0f} MiB more")


def main() -> None:
    if len(sys.argv) > 1:
        measure(float(sys.argv[1]))
        return
    for share in SHARES:
        subprocess.run([sys.executable, __file__, str(share)], check=True)


if __name__ == "__main__":
    main()
