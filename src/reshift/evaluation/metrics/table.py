"""Every metric, one row each: how it is computed, named, shown and compared.

``evaluate``, the report, ``compare``, the benchmark tables, the command line and docs/evaluation.md all follow this table.
A new metric is a row here and the function that the row names.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Literal

from reshift.evaluation.metrics.bootstrap import Floats, ImageDraws, Interval, PixelDraws
from reshift.evaluation.metrics.cost import Cost
from reshift.evaluation.metrics.image import ImageScores, Labels, Scores
from reshift.evaluation.metrics.one_image import LesionImage
from reshift.evaluation.metrics.pixels import PixelMetrics

Level = Literal["image", "pixel", "normative", "cost"]
Place = Literal["summary", "tables", "ablation", "sweep", "progress"]
EVERYWHERE: tuple[Place, ...] = ("summary", "tables", "ablation", "sweep")


@dataclass(frozen=True)
class Metric:
    """One metric. ``level`` and ``name`` say where its value stands in metrics.json; ``cost`` is kept in benchmark cells."""

    level: Level
    name: str
    caption: str  # heading in tables
    description: str  # for the report and the docs
    title: str = ""  # heading in the report, where it differs from the caption
    needs: str = ""  # what the test set must have; shown where there is no value
    value: Callable[[Any], float | None] | None = None  # of ImageScores, PixelMetrics, normative.Ingredients or Cost
    samples: Callable[[Any], Floats | None] | None = None  # of ImageDraws or PixelDraws: interval and paired test by bootstrap
    interval: Callable[[PixelMetrics], Interval | None] | None = None  # an interval of its own, without paired test
    classes: tuple[str, ...] = ("normal", "abnormal")  # of which the bootstrap needs several subjects
    better: Literal["higher", "lower"] | None = "higher"
    oracle: bool = False  # the threshold is chosen with the test labels
    delong: bool = False  # 'compare' tests it by DeLong instead of the bootstrap
    per_image: Callable[[LesionImage], float | None] | None = None  # kept in benchmark cells, for paired tests over subjects
    column: str = ""  # where a cell keeps ``per_image``; if empty, "level_name"
    places: tuple[Place, ...] = ()  # summary: top of the report; tables: compare and benchmark; the others: benchmark
    page: Literal["fraction", "percent", "complement", "number"] = "fraction"  # in the report; complement: 1 - value
    unit: float = 100.0  # benchmark tables show the value times this …
    digits: int = 1  # … with so many decimals

    @property
    def key(self) -> str:
        """Level and name, as in ``image.auc``."""
        return f"{self.level}.{self.name}"

    @property
    def heading(self) -> str:
        """The name in full, for the report."""
        return self.title or self.caption

    @property
    def image_column(self) -> str:
        """The name under which a benchmark cell keeps the values per image."""
        return self.column or f"{self.level}_{self.name}"

    @property
    def axis(self) -> str:
        """The caption with its unit, for figures."""
        return f"{self.caption} [%]" if self.unit == 100.0 else self.caption

    def measure(self, data: object) -> float | None:
        """The value; None where it cannot be computed."""
        return self.value(data) if self.value is not None else None

    def sample(self, draws: ImageDraws | PixelDraws) -> Floats | None:
        """The value in each draw of the bootstrap."""
        return self.samples(draws) if self.samples is not None else None

    def read(self, metrics: Mapping[str, Any]) -> float | None:
        """The value in the content of metrics.json."""
        found = (metrics.get(self.level) or {}).get(self.name)
        return None if found is None else float(found)

    def read_cell(self, cell: Mapping[str, Any]) -> float | None:
        """The value in a benchmark cell, which has its cost beside the metrics; None where it is not finite."""
        found = self.read({**(cell.get("metrics") or {}), "cost": cell})
        return found if found is not None and math.isfinite(found) else None

    def read_interval(self, metrics: Mapping[str, Any]) -> Interval | None:
        """The interval in the content of metrics.json."""
        found = ((metrics.get("intervals") or {}).get(self.level) or {}).get(self.name)
        return (float(found[0]), float(found[1])) if found else None

    def page_text(self, value: float) -> str:
        """The value as the report shows it."""
        share = 1.0 - value if self.page == "complement" else value
        if self.page in ("percent", "complement"):
            return f"{100 * share:.1f}\u202f%"
        return f"{value:.4g}" if self.page == "number" else f"{value:.3f}"

    def page_interval(self, interval: Interval) -> str:
        """The interval as the report shows it."""
        low, high = interval[::-1] if self.page == "complement" else interval
        return f"{self.page_text(low)} – {self.page_text(high)}"

    def table_text(self, value: float) -> str:
        """The value as benchmark tables print it."""
        return f"{value * self.unit:.{self.digits}f}"

    def table_spread(self, value: float) -> str:
        """A standard deviation as benchmark tables print it, with one more digit where the paper has one more."""
        return f"{value * self.unit:.{min(2, self.digits + 1)}f}"


BOTH, MASKS = "needs normal and abnormal images", "needs ground-truth masks"
CALIBRATED = f"{MASKS} and a calibrated pixel threshold"
ORACLE = "threshold chosen with the test labels. An upper bound, not attainable in use."
RESTORED = "Quality of restorations, in our reading of Bercea et al. 2025 (0 to 1)"

_ROWS = (
    Metric(
        "image", "auc", "AUC", needs=BOTH, value=ImageScores.auc, samples=ImageDraws.auc, delong=True,
        places=(*EVERYWHERE, "progress"),
        description="Chance that an abnormal image scores higher than a normal one. 0.5 is a coin toss, 1 is perfect.",
    ),
    Metric(
        "image", "ap", "AP", title="Average precision", needs=BOTH, value=ImageScores.ap, samples=ImageDraws.ap,
        places=("tables", "ablation"),
        description="Area under the precision–recall curve. A useless score gets the share of abnormal images.",
    ),
    Metric(
        "image", "threshold", "Threshold", needs="no threshold was calibrated", value=lambda images: images.threshold,
        better=None, page="number",
        description="Images scoring above it are flagged. Set on healthy images only, before looking at the test set.",
    ),
    Metric(
        "image", "tpr", "TPR", title="Sensitivity", needs="needs abnormal images and a calibrated threshold",
        value=ImageScores.tpr, samples=ImageDraws.tpr, classes=("abnormal",), places=("summary",), page="percent",
        description="Share of abnormal images that are flagged.",
    ),
    Metric(
        "image", "fpr", "FPR", title="Specificity", needs="needs normal images and a calibrated threshold",
        value=ImageScores.fpr, samples=ImageDraws.fpr, classes=("normal",), better="lower", places=("summary",),
        page="complement", description="Share of normal images that are not flagged.",
    ),
    Metric(
        "image", "f1", "F1", needs=f"{BOTH} and a calibrated threshold", value=ImageScores.f1, samples=ImageDraws.f1,
        places=("tables", "ablation"), description="Balance of precision and sensitivity at the calibrated threshold.",
    ),
    Metric(
        "image", "f1_max", "F1-max", title="Best F1", needs=BOTH, value=ImageScores.f1_max, samples=ImageDraws.f1_max,
        oracle=True, description=ORACLE,
    ),
    Metric(
        "pixel", "ap", "AP_pix", title="Average precision", needs=MASKS, value=PixelMetrics.ap, samples=PixelDraws.ap,
        per_image=LesionImage.ap, places=("tables", "ablation", "sweep", "progress"),
        description="How well the map ranks lesion pixels above all others, over every threshold.",
    ),
    Metric(
        "pixel", "threshold", "Threshold", needs="no pixel threshold was calibrated", value=lambda pixels: pixels.threshold,
        better=None, page="number", description="Map values above it count as abnormal.",
    ),
    Metric(
        "pixel", "dice", "Dice", needs=CALIBRATED, value=PixelMetrics.dice, samples=PixelDraws.dice,
        per_image=LesionImage.dice, column="dice", places=EVERYWHERE,
        description="Overlap with the ground truth at that threshold, all pixels pooled. 0 is none, 1 is exact.",
    ),
    Metric(
        "pixel", "dice_per_image", "Dice per image", needs=CALIBRATED, value=PixelMetrics.mean_dice,
        interval=PixelMetrics.mean_dice_interval,
        description="The same overlap, image by image, then averaged: small lesions count as much as large ones.",
    ),
    Metric(
        "pixel", "threshold_quantile", "Threshold P99.5", title="Quantile threshold", needs="no pixel threshold was calibrated",
        value=lambda pixels: pixels.threshold_quantile, better=None, page="number",
        description="The paper's rule: the quantile of normal pixels, P99.5 unless set otherwise.",
    ),
    Metric(
        "pixel", "dice_quantile", "Dice P99.5", title="Dice by the paper's rule", needs=CALIBRATED,
        value=PixelMetrics.dice_quantile,
        description="Overlap at the quantile of normal pixels, for comparison with the paper.",
    ),
    Metric(
        "pixel", "aupro", "AUPRO", needs=MASKS, value=PixelMetrics.aupro, samples=PixelDraws.aupro, places=("tables",),
        description="Share of each lesion covered, averaged over lesions of any size, up to 30 % false-positive pixels.",
    ),
    Metric(
        "pixel", "dice_max", "⌈Dice⌉", title="Best Dice", needs=MASKS, value=PixelMetrics.dice_max,
        samples=PixelDraws.dice_max, oracle=True, description=ORACLE,
    ),
    Metric(
        "normative", "rqi", "RQI", value=methodcaller("rqi"), places=("tables",), unit=1.0, digits=2,
        description=f"{RESTORED}: how close restorations of normal images are to them, by LPIPS.",
    ),
    Metric(
        "normative", "rqi_features", "RQI (features)", value=methodcaller("rqi_features"), places=("tables",), unit=1.0, digits=2,
        description=f"{RESTORED}: as RQI, but by a distance of other features, where LPIPS is missing. Not the paper's RQI.",
    ),
    Metric(
        "normative", "ahi_features", "AHI (features)", value=methodcaller("ahi_features"), places=("tables",), unit=1.0, digits=2,
        description=f"{RESTORED}: how far restorations of abnormal images have moved to the training normals, "
        "by features of another network than the FID's. Not the paper's AHI.",
    ),
    Metric(
        "normative", "caci", "CACI", value=methodcaller("caci"), places=("tables",), unit=1.0, digits=2,
        description=f"{RESTORED}: healthy tissue kept and lesions changed.",
    ),
    Metric(
        "cost", "train_seconds", "training [s]", value=lambda cost: cost.train_seconds, better=None, places=("tables",), unit=1.0,
        description="Training time in seconds, without calibration.",
    ),
    Metric(
        "cost", "images_per_second", "images/s", value=lambda cost: cost.images_per_second, better=None, places=("tables",),
        unit=1.0, description="Test images predicted per second, the first batch left out.",
    ),
)  # fmt: skip
METRICS: dict[str, Metric] = {metric.key: metric for metric in _ROWS}


def select_metrics(*levels: str, place: Place | None = None) -> list[Metric]:
    """The metrics of these levels in the order of the table; only those shown at ``place``, if one is given."""
    return [m for m in METRICS.values() if m.level in levels and (place is None or place in m.places)]


def image_metrics(labels: Labels, scores: Scores, threshold: float | None) -> dict[str, float | None]:
    """Every image metric by name. ``threshold`` comes from normals; an image is called abnormal above it."""
    images = ImageScores(labels, scores, threshold)
    return {metric.name: metric.measure(images) for metric in select_metrics("image")}


def pixel_metrics(pixels: PixelMetrics) -> dict[str, float | None]:
    """Every pixel metric by name."""
    return {metric.name: metric.measure(pixels) for metric in select_metrics("pixel")}


def cost_metrics(cost: Cost) -> dict[str, float | None]:
    """Every cost metric by name."""
    return {metric.name: metric.measure(cost) for metric in select_metrics("cost")}


def metric_lines(metrics: Mapping[str, Any]) -> list[str]:
    """The content of metrics.json in two lines, for the command line."""
    lines = []
    for level in ("image", "pixel"):
        found = [(metric.name, metric.read(metrics)) for metric in select_metrics(level) if metric.better]
        lines.append(f"{level}: {', '.join(f'{name} –' if value is None else f'{name} {value:.3f}' for name, value in found)}")
    return lines
