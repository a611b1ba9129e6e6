"""What the training normals are like, before training: methods decide settings by it (``Detector.choose_settings``)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from reshift.config import DataConfig
from reshift.data.cases import Case
from reshift.data.prepare import prepare
from reshift.data.read import read_image
from reshift.methods.detector import Normals

SAMPLE = 60  # normals that are looked at
SIDE = 32  # pixels, to which they are reduced
BLACK = -0.9  # of [-1, 1]; darker pixels do not count
MIN_PIXELS = 50  # that two images must share to be compared

Plane = NDArray[np.float32]


class Tissue(NamedTuple):
    """The greys of the tissue in one image."""

    median: float  # on [0, 1]
    middle: float  # how far the quartiles are apart, over the median
    bright_side: float  # how far the brightest 5 % are above the median, over how far the darkest 5 % are below it


def describe(cases: Sequence[Case], config: DataConfig) -> Normals:
    """Count and look at the normals."""
    per_subject = float(np.median(list(Counter(case.subject for case in cases).values())))
    chosen = [cases[i] for i in np.random.default_rng(0).permutation(len(cases))[:SAMPLE].tolist()]
    small, seen, greys = list[Plane](), list[Tissue](), dict[str, list[float]]()
    untouched = config.model_copy(update={"level": "none"})  # one level for all would hide how much scanners differ
    for case in chosen:
        image = _read(case, config)
        before = tissue(image if config.level == "none" else _read(case, untouched))
        small.append(_small(image))
        seen += [found] if (found := tissue(image)) else []
        if before:
            greys.setdefault(case.subject, []).append(before.median)
    middle, bright_side = np.median([found[1:] for found in seen], axis=0) if seen else (np.inf, np.inf)
    return Normals(per_subject, symmetry(small), len(cases), grey_spread(greys), float(middle), float(bright_side))


def tissue(image: Plane) -> Tissue | None:
    """Measure the tissue; None where there is hardly any."""
    greys = (image[image > BLACK] + 1.0) / 2.0
    if greys.size < MIN_PIXELS:
        return None
    darkest, low, median, high, brightest = np.quantile(greys, [0.05, 0.25, 0.5, 0.75, 0.95]).tolist()
    return Tissue(median, (high - low) / median, (brightest - median) / max(median - darkest, 1e-6))


def grey_spread(greys: Mapping[str, Sequence[float]]) -> float:
    """How much subjects differ in the median grey of their images: the standard deviation of its logarithm."""
    return float(np.std([np.log(values).mean() for values in greys.values()])) if greys else float(np.inf)


def symmetry(images: Sequence[Plane]) -> float:
    """How much better images correlate with their own mirror image than with another's, on the median; 0 if it is unknown.

    Another's mirror image has what all share, such as a layer below another or a bright middle. Where all normals are as alike as
    an image and its mirror image, a comparison with them says as much.
    """
    own = [_correlation(image, image[:, ::-1]) for image in images]
    others = [_correlation(image, other[:, ::-1]) for image, other in zip(images, [*images[1:], *images[:1]], strict=True)]
    known = [[value for value in values if value is not None] for values in (own, others)]
    return float(np.median(known[0]) - np.median(known[1])) if all(known) else 0.0


def _read(case: Case, config: DataConfig) -> Plane:
    mean: Plane = prepare(read_image(case.image, case.slice, config.max_pixels), config).pixels.mean(0)
    return mean


def _small(pixels: Plane) -> Plane:
    reduced = PIL.Image.fromarray(pixels).resize((SIDE, SIDE), PIL.Image.Resampling.BOX)
    return np.asarray(reduced, dtype=np.float32)


def _correlation(a: Plane, b: Plane) -> float | None:
    seen = (a > BLACK) & (b > BLACK)
    if seen.sum() < MIN_PIXELS or not (a[seen].std() > 0.0 and b[seen].std() > 0.0):
        return None
    return float(np.corrcoef(a[seen], b[seen])[0, 1])
