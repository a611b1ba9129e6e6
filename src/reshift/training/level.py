"""Whether images are divided by the organ's median grey value (data/level.py), decided from the training normals."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from reshift.config import DataConfig
from reshift.data.cases import Case
from reshift.data.level import DARK, median_level
from reshift.data.prepare import prepare
from reshift.data.read import read_image

MIN_EMPTY = 0.15  # of an image's pixels are black where the background is empty
MIN_DIFFERENCE = 0.10  # spread of the subjects' levels, relative to their mean, that is worth removing
SAMPLE = 200  # normals the rule looks at


def choose_level(cases: Sequence[Case], config: DataConfig) -> Literal["median", "none"]:
    """``median`` where backgrounds are empty and subjects differ in level by more than the images of one subject do."""
    chosen = np.random.default_rng(0).permutation(len(cases))[:SAMPLE].tolist()
    plain = config.model_copy(update={"level": "none"})
    levels, empty = dict[str, list[float]](), list[float]()
    for case in (cases[i] for i in chosen):
        unit = (prepare(read_image(case.image, case.slice, config.max_pixels), plain).pixels + 1.0) / 2.0
        empty.append(float((unit < DARK / 2.0).mean()))
        if (level := median_level(unit)) is not None:
            levels.setdefault(case.subject, []).append(level)
    if not levels or float(np.median(empty)) < MIN_EMPTY:
        return "none"
    means = np.array([np.mean(of_one) for of_one in levels.values()])
    between = float(means.std() / means.mean())
    inside = [np.std(of_one) / np.mean(of_one) for of_one in levels.values() if len(of_one) > 1]
    within = float(np.mean(inside)) if inside else 0.0
    return "median" if between >= MIN_DIFFERENCE and between > 1.5 * within else "none"
