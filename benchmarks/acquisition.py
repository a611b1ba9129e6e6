"""How many images of other sets does the acquisition check tell from a set's own normals?

    python benchmarks/acquisition.py DATA SET [SET …]

DATA is a folder of sets with a manifest.csv each. For each SET, a fifth of its training subjects is held out (seed
0; at most 300 training images). A line is printed per group of images: its own test normals and abnormals (at most
80 of each, drawn with seed 0), and the first 40 of every other set. Columns: the share with p ≤ 0.05 by grey
values, by features (extra: features) and by both (Bonferroni); the share twice as far as the farthest held-out
normal by grey values and by features; and the share that users are warned of (``differs``). At the end:
milliseconds per image for the features.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from reshift.config import DataConfig
from reshift.data.cases import Case, hold_out
from reshift.data.manifest import load_cases
from reshift.data.prepare import prepare
from reshift.data.read import read_image
from reshift.inference.acquisition import (
    MAX_P_VALUE,
    Acquisition,
    Features,
    check_acquisition,
    describe,
    fit_acquisition,
    fit_features,
)
from reshift.nets.efficientnet_lite import efficientnet_lite0

TRAINING, OWN, OTHER = 300, 80, 40  # images
COLUMNS = ("p ≤ 0.05: grey", "features", "both", "unlike: grey", "features", "warned")


class Described(NamedTuple):
    grey: NDArray[np.float64]
    features: NDArray[np.float64]


class Describer:
    """Describes images by grey values and features; each file only once."""

    def __init__(self) -> None:
        self.net, self.known = efficientnet_lite0(), dict[Path, tuple[NDArray[np.float64], NDArray[np.float64]]]()
        self.seconds = 0.0

    def __call__(self, cases: Sequence[Case]) -> Described:
        rows = [self._one(case.image) for case in cases]
        return Described(np.array([row[0] for row in rows]), np.array([row[1] for row in rows]))

    def _one(self, path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if path not in self.known:
            pixels = prepare(read_image(path), DataConfig()).pixels
            begun = time.perf_counter()
            vector = self.net.vector(torch.from_numpy(pixels)[None])[0].double().numpy()
            self.seconds += time.perf_counter() - begun
            self.known[path] = describe(pixels), vector
        return self.known[path]


def sample(cases: Sequence[Case], number: int) -> list[Case]:
    return [cases[i] for i in sorted(np.random.default_rng(0).permutation(len(cases))[:number])]


def groups(data: Path, name: str) -> tuple[list[Case], dict[str, list[Case]]]:
    """The set's training normals, and all images to be judged."""
    cases = load_cases(data / name)
    test = {label: [c for c in cases if c.split == "test" and c.label == label] for label in (0, 1)}
    judged = {f"own {kind}": sample(test[label], OWN) for label, kind in enumerate(("normal", "abnormal"))}
    others = sorted(path.parent for path in data.glob("*/manifest.csv") if path.parent.name != name)
    return [c for c in cases if c.split == "train"][:TRAINING], judged | {f.name: load_cases(f)[:OTHER] for f in others}


def shares(grey: Acquisition, features: Features, found: Described) -> list[float]:
    """The columns of one line."""
    parts = (grey, found.grey), (features, found.features)
    p = np.array([[part.p_value(row) for row in rows] for part, rows in parts])  # (2, n)
    far = np.array([[part.unlike(row) for row in rows] for part, rows in parts])
    known = grey.model_copy(update={"features": features})
    warned = [bool(check_acquisition(known, *rows).differs) for rows in zip(*found, strict=True)]
    return [*(p <= MAX_P_VALUE).mean(1), float((2 * p.min(0) <= MAX_P_VALUE).mean()), *far.mean(1), float(np.mean(warned))]


def main() -> None:
    """Print one block per set."""
    data, describe_cases = Path(sys.argv[1]), Describer()
    for name in sys.argv[2:]:
        train, judged = groups(data, name)
        kept, held = hold_out(train, 0.2, lambda n: np.random.default_rng(0).permutation(n).tolist())
        a, b = describe_cases(kept), describe_cases(held)
        grey, features = fit_acquisition(a.grey, b.grey), fit_features(a.features, b.features, describe_cases.net.name)
        if grey is None or features is None:
            continue
        print(f"{name}: {len(kept)} training normals, {len(held)} held out", flush=True)
        print(f"{'share of images with':20}" + "".join(f"{text:>17}" for text in COLUMNS))
        for label, cases in judged.items():
            row = shares(grey, features, describe_cases(cases))
            print(f"{label:20}" + "".join(f"{share:17.2f}" for share in row), flush=True)
    print(f"features: {1000 * describe_cases.seconds / max(1, len(describe_cases.known)):.1f} ms per image")


if __name__ == "__main__":
    main()
