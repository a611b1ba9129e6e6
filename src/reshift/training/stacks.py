"""Whether heat-maps are averaged along the slices of a stack, decided from the training normals."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from reshift.config import DataConfig
from reshift.data.cases import Case
from reshift.data.prepare import prepare
from reshift.data.read import is_volume, read_image
from reshift.data.subjects import subjects_by_name
from reshift.inference.consensus import auto_sigma, stacks

FAR = 4  # slices apart, and more: no longer alike
PAIRS = 100  # that the rule looks at, of neighbours and of images far apart
MIN_PAIRS, MAX_PAIRS = 10, 1000  # of each kind: fewer say nothing; once there are so many, no more stacks are looked through
MAX_SHARE = 0.5  # of the difference of images far apart that neighbours may have
SIDE = 32  # pixels of the images that are compared

Floats = NDArray[np.float64]


def choose_sigma(cases: Sequence[Case], listed: Sequence[Case], data: DataConfig) -> float:
    """The σ of the consensus: 1 where the normals lie in stacks of close slices, else 0.

    ``cases`` are the images of what is ``listed`` in a manifest. Positions that come from file names alone count only if
    neighbours look alike: numbers may also count visits. They do not count where names tell the subjects of a plain folder, for
    new images in such a folder are judged one by one.
    """
    sigma = auto_sigma(cases)
    if subjects_by_name(listed):
        return 0.0
    by_name = data.position == "auto" and all(case.position is None and not is_volume(case.image) for case in listed)
    return 0.0 if sigma and by_name and not neighbours_look_alike(cases, data) else sigma


def neighbours_look_alike(cases: Sequence[Case], data: DataConfig) -> bool:
    """Whether images one number apart differ at most half as much as images of the same subject far apart."""
    near, far = list[tuple[Case, Case]](), list[tuple[Case, Case]]()
    for stack in stacks(cases):
        for a, b in combinations([cases[i] for i in stack], 2):
            apart = abs((a.position or 0.0) - (b.position or 0.0))
            if apart <= 1.0 or apart >= FAR:
                (near if apart <= 1.0 else far).append((a, b))
        if min(len(near), len(far)) >= MAX_PAIRS:
            break
    if min(len(near), len(far)) < MIN_PAIRS:
        return False
    rng = np.random.default_rng(0)
    chosen = [[pairs[i] for i in rng.permutation(len(pairs))[:PAIRS]] for pairs in (near, far)]
    small = {case.image: _small(case, data) for pairs in chosen for pair in pairs for case in pair}
    differences = [np.median([_difference(small[a.image], small[b.image]) for a, b in pairs]) for pairs in chosen]
    return bool(differences[0] <= MAX_SHARE * differences[1])


def _small(case: Case, data: DataConfig) -> Floats:
    """The image as training sees it, averaged to a few pixels."""
    pixels = prepare(read_image(case.image), data.model_copy(update={"level": "none"})).pixels.mean(0)
    block = max(1, min(pixels.shape) // SIDE)
    rows, columns = (n // block * block for n in pixels.shape)
    means: Floats = pixels[:rows, :columns].reshape(rows // block, block, -1, block).mean((1, 3), dtype=np.float64)
    return means.ravel()


def _difference(a: Floats, b: Floats) -> float:
    """One minus the correlation; 1 where an image is flat."""
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt(a.dot(a) * b.dot(b)))
    return 1.0 - float(a.dot(b)) / scale if scale > 0.0 else 1.0
