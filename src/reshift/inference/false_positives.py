"""How often normal images and pixels are called abnormal: what thresholds from normals of several subjects promise.

Images of one subject resemble each other, so a thousand slices of twenty subjects say less than a thousand subjects
do. Here every subject has a weight of one, shared by its images, and how much a subject's images say beyond the first
is measured.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reshift.evaluation.metrics.bootstrap import percentiles
from reshift.evaluation.metrics.floatbits import edges, ordered
from reshift.evaluation.metrics.subjects import COARSE_DROP, Sparse, SubjectTally
from reshift.inference.beta import beta_quantile

Floats = NDArray[np.float64]
Owners = NDArray[np.intp]  # the number of each image's subject

LEVEL = 0.95  # of the range of an image's false-positive rate
DRAWS = 1000
MIN_SUBJECTS = 10  # fewer say nothing about how much subjects differ
MAX_SUBJECTS = 2000  # whose pixels are counted one by one; more would hardly narrow the range


def subject_weights(owners: Owners) -> Floats:
    """The weight of each image: one over the number of its subject's images."""
    weights: Floats = 1.0 / np.bincount(owners)[owners]
    return weights


def own_share(owners: Owners, rate: float) -> float:
    """How much of its subject's weight a high-scoring image stands for; ``owners`` in the order of ascending scores.

    1 if each subject has one image, or if a subject's images all score alike; 1/n if the n images of each subject are as
    different as those of others. In between by the intraclass correlation, of the ranks or of being among the highest
    ``2 rate``, whichever is larger: a few subjects who are odd in all their images show in the second alone.
    """
    count, subjects = len(owners), int(owners.max()) + 1
    if subjects in (1, count):
        return 1.0
    single = float(np.mean(1.0 / np.bincount(owners)))
    ranks: Floats = np.arange(count) / count
    highest = (ranks >= 1.0 - min(0.5, 2.0 * rate)).astype(np.float64)
    alike = max(_intraclass_correlation(ranks, owners), _intraclass_correlation(highest, owners))
    return single + alike * (1.0 - single)


def image_threshold(scores: Floats, owners: Owners, rate: float) -> float:
    """The score that a random image of a new subject exceeds with probability ``rate``, from sorted scores of normals.

    It is chosen so that the weight above it is ``rate`` (K + c) - c, with K subjects and c their ``own_share``, between two
    scores if need be; that is the highest score where K is too small. What holds for subjects that are exchangeable
    with the new one, the rate being the mean over all calibrations and subjects:

    - One image per subject: the rate is exactly ``rate`` if scores were uniform between two neighbours, and less if
      their density falls there, as it does in an upper tail. It is never more than ``rate`` + 1/(K + 1).
    - Several images: about ``rate``; never more than ``rate`` + 2/(K + 1), however alike a subject's images are.
    - Any image with a p-value of at most ``rate`` lies above the threshold.

    Not promised: the rate of one calibration (``rate_range`` has it), of one subject, or of images of another kind.
    """
    own, subjects = own_share(owners, rate), int(owners.max()) + 1
    weight_above = round(rate * (subjects + own) - own, 9)
    return float(np.interp(-weight_above, -_weight_after(owners), scores))


def weight_above(scores: Floats, owners: Owners, threshold: float) -> float:
    """The weight of the normals above ``threshold``, interpolated as ``image_threshold`` does."""
    last = np.append(np.diff(scores) > 0.0, True)  # of equal scores the last counts
    return float(-np.interp(threshold, scores[last], -_weight_after(owners)[last]))


def rate_range(above: ArrayLike, own: ArrayLike, subjects: ArrayLike, images: ArrayLike) -> tuple[Floats, Floats]:
    """Ends of a range that holds the true false-positive rate of a threshold in at least 95 % of calibrations.

    With n independent normals, k of them above the threshold, the rate is Beta(k + 1, n - k) for every continuous
    distribution. Images of one subject are not independent, so the range covers three cases: that all of a subject's images
    are one, that they are worth what was measured, and that each counts in full.
    """
    above, own, subjects, images = (np.asarray(v, dtype=np.float64) for v in (above, own, subjects, images))
    n = np.stack(np.broadcast_arrays(subjects, subjects / own, images))
    k = np.minimum(above / subjects, 1.0) * n
    ends = (beta_quantile(end, k + 1.0, np.maximum(n - k, 1e-3)) for end in ((1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0))
    low, high = ends
    return low.min(0), high.max(0)


class SubjectShares:
    """Counts normal pixels subject by subject, so that the share above any threshold is known for each."""

    def __init__(self) -> None:
        self.tally = SubjectTally()

    def add(self, subject: str, heatmap: NDArray[np.float32]) -> None:
        """Count one normal image."""
        if subject in self.tally.calls or len(self.tally.calls) < MAX_SUBJECTS:
            flat = heatmap.reshape(-1)
            self.tally.add(subject, flat, np.zeros(len(flat), bool), (0, 0, 0), np.zeros(0))

    def merge(self, other: "SubjectShares") -> None:
        """Add the counts of other images."""
        self.tally.merge(other.tally)

    def range(self, threshold: float, share: float) -> tuple[float, float] | None:
        """Where the true share of normal pixels above ``threshold`` lies, given that ``share`` of these are."""
        self.tally.flush()
        counts = np.array([_above(parts, threshold) for parts in self.tally.done.values()]).reshape(-1, 2)
        return share_range(counts[:, 0], counts[:, 1], share)


def share_range(above: Floats, pixels: Floats, share: float) -> tuple[float, float] | None:
    """A range that holds the true share in at least nine of ten calibrations: bootstrap-t over subjects.

    ``above`` of a subject's ``pixels`` exceed the threshold. It is computed for 95 %, and falls short of it where few
    subjects have most of the pixels above. None for fewer than ten subjects, or where no two differ.
    """
    subjects = len(above)
    if subjects < MIN_SUBJECTS or not above.sum():
        return None
    apart = (above / above.sum() * share * pixels.sum() - share * pixels) / pixels.mean()  # of mean 0
    spread = float(apart.std(ddof=1))
    drawn = apart[np.random.default_rng(0).integers(0, subjects, (DRAWS, subjects))]
    spreads = drawn.std(axis=1, ddof=1)
    known = spreads > 1e-3 * spread
    if spread == 0.0 or not known.any():
        return None
    low, high = percentiles(drawn.mean(axis=1)[known] / spreads[known], LEVEL)
    return max(0.0, share - high * spread), min(1.0, share - low * spread)


def _weight_after(owners: Owners) -> Floats:
    """The weight of all images after each."""
    weights = subject_weights(owners)
    return np.append(weights[::-1].cumsum()[::-1][1:], 0.0)


def _intraclass_correlation(values: Floats, owners: Owners) -> float:
    """How alike the values of one subject are, 0 to 1, from the mean squares between and within subjects."""
    sizes, total = np.bincount(owners), len(values)
    means = np.bincount(owners, values) / sizes
    within = float(np.square(values - means[owners]).sum()) / (total - len(sizes))
    between = float((sizes * np.square(means - values.mean())).sum()) / (len(sizes) - 1)
    typical = (total - float(np.square(sizes).sum()) / total) / (len(sizes) - 1)  # number of images of a subject
    whole = between + (typical - 1.0) * within
    return min(1.0, max(0.0, (between - within) / whole)) if whole > 0.0 else 0.0


def _above(parts: Sequence[Sparse], threshold: float) -> Floats:
    """How many of a subject's pixels lie above ``threshold``, and how many there are; its own bin counts in part."""
    found = np.zeros(2)
    for raw, normal, *_ in parts:
        keys = ordered(raw, COARSE_DROP)
        low, high = (edges(keys, COARSE_DROP, top=top).astype(np.float64) for top in (False, True))
        share = np.clip((high - threshold) / np.maximum(high - low, 1e-300), 0.0, 1.0)
        found += float((normal * share).sum()), float(normal.sum())
    return found
