"""How many images of other sets a set's own normals call odd: ``python benchmarks/acquisition.py DATA SET [SET …]``.

DATA is a folder of sets with a manifest.csv each. For each SET, a fifth of its training subjects is held out (seed 0), and the
share of images with an acquisition p-value of at most 0.05 is printed: its own test images, and the first 80 of every other set.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reshift.acquisition import ODD, Acquisition, describe, fit_acquisition
from reshift.config import DataConfig
from reshift.data.manifest import Case, hold_out, load_cases
from reshift.data.prepare import prepare
from reshift.data.read import read_image


def descriptors(cases: Sequence[Case]) -> NDArray[np.float64]:
    return np.array([describe(prepare(read_image(case.image), DataConfig()).pixels) for case in cases])


def odd(known: Acquisition, cases: Sequence[Case]) -> str:
    return f"{np.mean([known.p_value(row) <= ODD for row in descriptors(cases)]):.2f}" if cases else "–"


def main() -> None:
    """Print one line per set."""
    data, names = Path(sys.argv[1]), sys.argv[2:]
    for name in names:
        cases = load_cases(data / name)
        train, test = ([case for case in cases if case.split == split] for split in ("train", "test"))
        kept, held = hold_out(train, 0.2, lambda n: np.random.default_rng(0).permutation(n).tolist())
        known = fit_acquisition(descriptors(kept), descriptors(held))
        if known is None:
            continue
        shares = {f"own label {label}": odd(known, [c for c in test if c.label == label]) for label in (0, 1)}
        others = sorted(path.parent for path in data.glob("*/manifest.csv") if path.parent.name != name)
        shares |= {folder.name: odd(known, load_cases(folder)[:80]) for folder in others}
        print(f"{name} ({len(held)} held out): " + ", ".join(f"{k} {v}" for k, v in shares.items()), flush=True)


if __name__ == "__main__":
    main()
