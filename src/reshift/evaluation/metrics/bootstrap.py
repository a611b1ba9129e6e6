"""Draws of subjects and the figures of each draw: a draw is a weight per subject, so nothing is sorted twice.

Images of one subject resemble each other, so subjects are drawn and each brings all its images, as often as it was drawn.
Subjects with and without an abnormal image are drawn apart: a test set's share of patients was chosen, it is not chance.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from reshift.evaluation.metrics.image import Labels, Scores, image_metrics
from reshift.evaluation.metrics.lesions import pro_area

IMAGE_FIGURES = ("auc", "ap", "f1", "fpr", "tpr", "f1_max")
PIXEL_FIGURES = ("ap", "dice", "dice_max", "aupro")
CHUNK = 1 << 20  # draws × images (or bins) held at once: 8 MiB per array, however many draws are asked for

Floats = NDArray[np.float64]
Weights = NDArray[np.uint16]  # (draws, subjects): how often each subject was drawn


class PixelsBySubject(Protocol):
    """Pixel counts by subject: enough to weigh subjects anew without looking at a pixel again."""

    @property
    def subjects(self) -> tuple[str, ...]:
        """Names, one per row."""

    @property
    def values(self) -> NDArray[np.floating[Any]]:
        """Scores of the bins ``(V,)``, ascending."""

    @property
    def normal(self) -> Floats:
        """Normal pixels per subject and bin ``(S, V)``."""

    @property
    def abnormal(self) -> Floats:
        """Lesion pixels per subject and bin ``(S, V)``."""

    @property
    def overlap(self) -> Floats:
        """Pixels ``(S,)`` both called at the threshold and lesion; this and the next two are zero without a threshold."""

    @property
    def called(self) -> Floats:
        """Pixels ``(S,)`` above the threshold."""

    @property
    def lesion(self) -> Floats:
        """Lesion pixels ``(S,)``."""

    @property
    def share(self) -> Floats | None:
        """As ``abnormal``, but the pixels of each lesion weigh one together; None where that was not counted."""


def _draw(rng: np.random.Generator, ill: NDArray[np.bool_], draws: int) -> Weights:
    """Draw as many ill and as many other subjects as there are, with replacement."""
    weights = np.zeros((draws, len(ill)), dtype=np.uint16)
    for group in (np.flatnonzero(ill), np.flatnonzero(~ill)):
        if len(group):
            weights[:, group] = rng.multinomial(len(group), np.full(len(group), 1.0 / len(group)), size=draws)
    return weights


def _complete_draws(ill: NDArray[np.bool_], needed: NDArray[np.bool_], draws: int, seed: int) -> Weights:
    """Draw again what lacks any subject of a column of ``needed`` ``(S, k)``: figures need both classes.

    It ends: n draws out of n subjects miss a column with a probability of (1 - 1/n)^n < 1/e at most.
    """
    rng = np.random.default_rng(seed)
    weights = _draw(rng, ill, draws)
    columns = needed[:, needed.any(axis=0)].astype(np.float64)
    while len(lacking := np.flatnonzero((weights @ columns == 0.0).any(axis=1))):
        weights[lacking] = _draw(rng, ill, len(lacking))
    return weights


def _chunks(weights: Weights, width: int) -> Iterator[Floats]:
    rows = max(1, CHUNK // max(1, width))
    for start in range(0, len(weights), rows):
        yield weights[start : start + rows].astype(np.float64)


def _joined(parts: Iterable[dict[str, Floats]]) -> dict[str, Floats]:
    listed = list(parts)
    return {name: np.concatenate([part[name] for part in listed]) for name in listed[0]}


def _auc(tp: Floats, fp: Floats) -> Floats:
    """Trapezoids under the curve: the steps' ties count one half."""
    middle = tp - np.diff(tp, axis=1, prepend=0.0) / 2.0
    area: Floats = np.einsum("dv,dv->d", np.diff(fp, axis=1, prepend=0.0), middle) / (tp[:, -1] * fp[:, -1])
    return area


def _ap(tp: Floats, fp: Floats) -> Floats:
    """As ``metrics.average_precision``; before the first drawn score nothing is called and nothing gained."""
    precision = tp / np.maximum(tp + fp, 1.0)
    mean: Floats = np.einsum("dv,dv->d", np.diff(tp, axis=1, prepend=0.0), precision) / tp[:, -1]
    return mean


def _f1_max(tp: Floats, fp: Floats) -> Floats:
    best: Floats = (2.0 * tp / (tp + fp + tp[:, -1:])).max(axis=1)
    return best


class Images(NamedTuple):
    """One method's scores of the test images."""

    labels: Labels
    scores: Scores
    threshold: float | None
    owner: NDArray[np.intp]  # each image's subject


def owners(labels: Labels, subjects: Sequence[str]) -> NDArray[np.intp]:
    """Number the subjects; return each image's."""
    if len(subjects) != len(labels):
        raise ValueError(f"{len(labels)} images cannot have {len(subjects)} subjects")
    index = {name: at for at, name in enumerate(sorted(set(subjects)))}  # sorted: the images' order changes nothing
    return np.array([index[name] for name in subjects], dtype=np.intp)


def _per_subject(images: Images, *chosen: NDArray[np.bool_]) -> Floats:
    """Count each subject's images among each of ``chosen`` ``(S, k)``."""
    total = int(images.owner.max()) + 1
    counts = [np.bincount(images.owner[which], minlength=total) for which in chosen]
    return np.stack(counts, axis=1).astype(np.float64)


def known_figures(images: Images) -> dict[str, float]:
    """Figures that exist and rest on more than one subject of each class they look at."""
    point = image_metrics(images.labels, images.scores, images.threshold)
    several = {label: len(np.unique(images.owner[images.labels == label])) > 1 for label in (False, True)}
    enough = dict.fromkeys(IMAGE_FIGURES, all(several.values())) | {"fpr": several[False], "tpr": several[True]}
    return {name: value for name in IMAGE_FIGURES if (value := point[name]) is not None and enough[name]}


def draw_for_images(images: Images, draws: int, seed: int) -> Weights:
    """Draw subjects so that every class there is has an image."""
    holds = _per_subject(images, ~images.labels, images.labels) > 0.0
    return _complete_draws(holds[:, 1], holds, draws, seed)


def image_samples(images: Images, weights: Weights) -> dict[str, Floats]:
    """Every figure that the classes and the threshold allow, per draw."""
    labels, scores = images.labels, images.scores
    order = np.argsort(-scores)
    ranked, abnormal, owner = scores[order], labels[order].astype(np.float64), images.owner[order]
    last = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))  # equal scores are called together
    called = scores > (math.inf if images.threshold is None else images.threshold)
    counts = _per_subject(images, ~labels, labels, called & ~labels, called & labels)

    def figures(part: Floats) -> dict[str, Floats]:
        normals, abnormals, fp_called, tp_called = (part @ counts).T
        rates = {"fpr": fp_called / normals} if not labels.all() else {}
        rates |= {"tpr": tp_called / abnormals} if labels.any() else {}
        if len(rates) < 2:
            return rates
        drawn = part[:, owner]
        tp = (drawn * abnormal).cumsum(axis=1)[:, last]
        fp = drawn.cumsum(axis=1)[:, last] - tp
        rates["f1"] = 2.0 * tp_called / (fp_called + tp_called + abnormals)
        return rates | {"auc": _auc(tp, fp), "ap": _ap(tp, fp), "f1_max": _f1_max(tp, fp)}

    return _joined(figures(part) for part in _chunks(weights, len(scores)))


def known_pixel_figures(pixels: PixelsBySubject) -> dict[str, float]:
    """As ``known_figures``: the plain figures are those of every subject drawn once."""
    if int(_ill([pixels]).sum()) < 2:
        return {}
    point = pixel_samples(pixels, np.ones((1, len(pixels.subjects)), dtype=np.uint16))
    return {name: float(value[0]) for name, value in point.items()}


def _ill(both: Sequence[PixelsBySubject]) -> NDArray[np.bool_]:
    """Which subjects have a lesion, by result ``(S, k)``."""
    return np.stack([pixels.abnormal.sum(axis=1) > 0.0 for pixels in both], axis=1)


def draw_for_pixels(both: Sequence[PixelsBySubject], draws: int, seed: int) -> Weights:
    """Draw subjects so that there is a lesion and a normal pixel, for each of the results compared."""
    ill, well = _ill(both), np.stack([pixels.normal.sum(axis=1) > 0.0 for pixels in both], axis=1)
    return _complete_draws(np.asarray(ill.any(axis=1)), np.concatenate([ill, well], axis=1), draws, seed)


def pixel_samples(pixels: PixelsBySubject, weights: Weights) -> dict[str, Floats]:
    """AP, Dice and AUPRO per draw; Dice at the threshold only where there is one."""
    # Nothing called: no threshold, or one never reached. Dice then is 0 in every draw, which is no measure of certainty.
    calibrated = bool(pixels.lesion.any() and pixels.called.any())
    share = pixels.share if pixels.normal.any() else None

    def figures(part: Floats) -> dict[str, Floats]:
        tp = (part @ pixels.abnormal)[:, ::-1].cumsum(axis=1)
        fp = (part @ pixels.normal)[:, ::-1].cumsum(axis=1)
        found = {"ap": _ap(tp, fp), "dice_max": _f1_max(tp, fp)}
        if calibrated:
            found["dice"] = 2.0 * (part @ pixels.overlap) / (part @ (pixels.called + pixels.lesion))
        if share is not None:
            covered = (part @ share)[:, ::-1].cumsum(axis=1)
            found["aupro"] = pro_area(fp / fp[:, -1:], covered / covered[:, -1:])  # the last is the number of lesions
        return found

    return _joined(figures(part) for part in _chunks(weights, pixels.normal.shape[1]))
