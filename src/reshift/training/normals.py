"""What the training normals are like, before training: methods decide settings by it (``Detector.choose_settings``)."""

from collections import Counter
from collections.abc import Sequence

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


def describe(cases: Sequence[Case], config: DataConfig) -> Normals:
    """Count and look at the normals."""
    per_subject = float(np.median(list(Counter(case.subject for case in cases).values())))
    chosen = np.random.default_rng(0).permutation(len(cases))[:SAMPLE].tolist()
    images = _read([cases[i] for i in chosen], config)
    subjects, untouched = [cases[i].subject for i in chosen], images
    if config.level != "none":  # brought to one level; how much they differed says how much scanners do
        untouched = _read([cases[i] for i in chosen], config.model_copy(update={"level": "none"}))
    mirrored = symmetry([_small(image) for image in images])
    return Normals(per_subject, mirrored, grey_spread(untouched, subjects), *tissue_spread(images))


def _read(cases: Sequence[Case], config: DataConfig) -> list[Plane]:
    return [prepare(read_image(case.image, case.slice, config.max_pixels), config).pixels.mean(0) for case in cases]


def grey_spread(images: Sequence[Plane], subjects: Sequence[str]) -> float:
    """How much the median grey of the tissue differs between subjects: the standard deviation of its logarithm."""
    levels = dict[str, list[float]]()
    for image, subject in zip(images, subjects, strict=True):
        tissue = image[image > BLACK]
        if tissue.size >= MIN_PIXELS:
            levels.setdefault(subject, []).append(float(np.log((np.median(tissue) + 1.0) / 2.0)))
    return float(np.std([np.mean(values) for values in levels.values()])) if levels else float(np.inf)


def tissue_spread(images: Sequence[Plane]) -> tuple[float, float]:
    """How far apart the quartiles of the tissue are, over its median, and how long its bright side is, over its dark side.

    Medians over the images; both infinite where there is no tissue.
    """
    spans = list[tuple[float, float]]()
    for image in images:
        tissue = (image[image > BLACK] + 1.0) / 2.0
        if tissue.size >= MIN_PIXELS:
            darkest, low, median, high, brightest = np.quantile(tissue, [0.05, 0.25, 0.5, 0.75, 0.95])
            spans.append(((high - low) / median, (brightest - median) / max(median - darkest, 1e-6)))
    middle, bright_side = np.median(spans, axis=0) if spans else (np.inf, np.inf)
    return float(middle), float(bright_side)


def symmetry(images: Sequence[Plane]) -> float:
    """How much better images correlate with their own mirror image than with another's, on the median; 0 if it is unknown.

    Another's mirror image has what all share, such as a layer below another or a bright middle. Where all normals are as alike as
    an image and its mirror image, a comparison with them says as much.
    """
    own = [_correlation(image, image[:, ::-1]) for image in images]
    others = [_correlation(image, other[:, ::-1]) for image, other in zip(images, [*images[1:], *images[:1]], strict=True)]
    known = [[value for value in values if value is not None] for values in (own, others)]
    return float(np.median(known[0]) - np.median(known[1])) if all(known) else 0.0


def _small(pixels: Plane) -> Plane:
    reduced = PIL.Image.fromarray(pixels).resize((SIDE, SIDE), PIL.Image.Resampling.BOX)
    return np.asarray(reduced, dtype=np.float32)


def _correlation(a: Plane, b: Plane) -> float | None:
    seen = (a > BLACK) & (b > BLACK)
    if seen.sum() < MIN_PIXELS or not (a[seen].std() > 0.0 and b[seen].std() > 0.0):
        return None
    return float(np.corrcoef(a[seen], b[seen])[0, 1])
