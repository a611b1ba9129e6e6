"""Do thresholds and p-values keep their promises? Synthetic calibrations, of which the true rates are known.

    python benchmarks/false_positives.py [--calibrations 2000] [--only images|pixels] [--quick] [--json]

Images: scores of K subjects with some images each. The threshold for 5 % false positives is taken from them, and with
it the range in which the true rate should lie. Columns: the mean true rate, the share of calibrations whose range holds
it (stated: at least 95 %), the mean range, and how many images of new subjects have p ≤ 0.05 (stated: at most 5 %).
Pixels: maps whose spread differs by subject and image; the threshold for a share of 0.5 %; stated: at least 90 %.
"""

import argparse
import json
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.inference.false_positives import image_threshold, own_share, rate_range, share_range, subject_weights, weight_above

Floats = NDArray[np.float64]
RATE, ODD, FAR = 0.05, 0.08, 3.0  # promised; share of odd subjects, and how far their scores lie from the others'
TESTED = 20  # new subjects per calibration

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


class Scores(NamedTuple):
    """Standard normal scores; ``alike`` is the correlation of a subject's images. Odd subjects are high in all of them."""

    subjects: int
    images: int  # of each subject; on average, if uneven
    alike: float = 0.0
    odd: bool = False
    uneven: bool = False

    def draw(self, rng: np.random.Generator, subjects: int) -> tuple[Floats, NDArray[np.intp]]:
        """Scores, and the number of each one's subject."""
        sizes = rng.integers(1, 2 * self.images, subjects) if self.uneven else np.full(subjects, self.images)
        owners = np.repeat(np.arange(subjects), sizes)
        own, shared = rng.normal(size=len(owners)), rng.normal(size=subjects)[owners]
        shift = FAR * (rng.random(subjects) < ODD)[owners] if self.odd else 0.0
        return math.sqrt(1.0 - self.alike) * own + math.sqrt(self.alike) * shared + shift, owners

    def rate(self, threshold: Floats) -> Floats:
        """The true share of images above a threshold."""
        plain, shifted = (0.5 * _erfc((threshold - shift) / math.sqrt(2.0)) for shift in (0.0, FAR))
        return np.asarray((1.0 - ODD) * plain + ODD * shifted if self.odd else plain)


class Maps(NamedTuple):
    """Half-normal pixels, with a factor per subject and one per image, both log-normal with these spreads."""

    subjects: int
    images: int
    by_subject: float
    by_image: float


SCORES = (
    Scores(8, 1), Scores(20, 1), Scores(50, 1), Scores(200, 1), Scores(2000, 1),
    Scores(8, 10, 0.5), Scores(20, 10), Scores(20, 10, 0.5), Scores(20, 10, 0.95), Scores(50, 8, 0.5), Scores(200, 10, 0.5),
    Scores(50, 8, 0.5, uneven=True), Scores(20, 10, odd=True), Scores(50, 8, odd=True), Scores(200, 10, odd=True),
)  # fmt: skip
SPREADS = ((0, 0), (0.1, 0.1), (0.3, 0.1), (0.5, 0.2))
MAPS = tuple(Maps(*size, *spread) for size in ((20, 1), (20, 5), (50, 5), (200, 1)) for spread in SPREADS)
FEW_SCORES = (Scores(20, 1), Scores(200, 1), Scores(20, 5, 0.5), Scores(20, 5, odd=True), Scores(100, 20, 0.3))
FEW_MAPS = (Maps(20, 1, 0.1, 0.1), Maps(20, 3, 0.3, 0.1))


def simulate_images(kind: Scores, calibrations: int, seed: int = 0) -> dict[str, float]:
    """Many calibrations, and images of new subjects after each."""
    rng, found, small, flagged = np.random.default_rng([seed, *map(int, kind[:2])]), [], 0.0, 0.0
    for _ in range(calibrations):
        scores, owners = kind.draw(rng, kind.subjects)
        order = np.argsort(scores)
        scores, owners = scores[order], owners[order]
        threshold = image_threshold(scores, owners, RATE)
        found.append((threshold, weight_above(scores, owners, threshold), own_share(owners, RATE), len(scores)))
        fresh, their = kind.draw(rng, TESTED)
        weights = subject_weights(their) / TESTED
        tails = np.append(subject_weights(owners)[::-1].cumsum()[::-1], 0.0)
        p = (1.0 + tails[np.searchsorted(scores, fresh)]) / (1.0 + kind.subjects)
        small, flagged = small + float(weights[p <= RATE].sum()), flagged + float(weights[fresh > threshold].sum())
    thresholds, above, own, images = np.array(found).T
    rate = kind.rate(thresholds)
    low, high = rate_range(above, own, kind.subjects, images)
    return {
        "rate": float(rate.mean()), "held": float(((low <= rate) & (rate <= high)).mean()), "low": float(low.mean()),
        "high": float(high.mean()), "p ≤ 0.05": small / calibrations, "flagged": flagged / calibrations,
    }  # fmt: skip


def simulate_pixels(kind: Maps, calibrations: int, pixels: int, share: float, seed: int = 0) -> dict[str, float]:
    """Many calibrations; the true share follows from the factors' distribution, by 4,000 of its quantiles."""
    rng, rates, ranges = np.random.default_rng([seed, *map(int, kind[:2])]), [], []
    middle = (np.arange(4000) + 0.5) / 4000
    spread = math.hypot(kind.by_subject, kind.by_image)
    factors = np.exp(spread * math.sqrt(2.0) * _inverse_erf(2.0 * middle - 1.0))
    for _ in range(calibrations):
        by_image = rng.normal(size=(kind.subjects, kind.images, 1))
        factor = np.exp(kind.by_subject * rng.normal(size=(kind.subjects, 1, 1)) + kind.by_image * by_image)
        maps = (np.abs(rng.normal(size=(kind.subjects, kind.images, pixels))) * factor).reshape(kind.subjects, -1)
        threshold = float(np.quantile(maps, 1.0 - share))
        above = (maps > threshold).sum(axis=1).astype(np.float64)
        found = share_range(above, np.full(kind.subjects, float(maps.shape[1])), float(above.sum()) / maps.size)
        if found is not None:
            ranges.append(found)
            rates.append(float(_erfc(threshold / factors / math.sqrt(2.0)).mean()))
    low, high = np.array(ranges).T
    rate = np.array(rates)
    held = float(((low <= rate) & (rate <= high)).mean())
    return {"rate": float(rate.mean()), "held": held, "low": float(low.mean()), "high": float(high.mean())}


def _inverse_erf(x: Floats) -> Floats:
    from statistics import NormalDist

    return np.array([NormalDist().inv_cdf((v + 1.0) / 2.0) for v in x]) / math.sqrt(2.0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Do thresholds and p-values keep their promises?")
    parser.add_argument("--calibrations", type=int, default=2000)
    parser.add_argument("--only", choices=("images", "pixels"))
    parser.add_argument("--quick", action="store_true", help="a few settings with few pixels: seconds")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    given = parser.parse_args()
    scores, maps = (FEW_SCORES, FEW_MAPS) if given.quick else (SCORES, MAPS)
    pixels, share = (64, 0.05) if given.quick else (400, 0.005)
    rows = [] if given.only == "pixels" else [{**k._asdict(), **simulate_images(k, given.calibrations)} for k in scores]
    if given.only != "images":
        rows += [{**k._asdict(), **simulate_pixels(k, given.calibrations, pixels, share)} for k in maps]
    if given.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print("| " + " | ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()) + " |")


if __name__ == "__main__":
    main()
