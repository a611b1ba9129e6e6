"""Numbers that cells keep beside their metrics, and their tables: thresholds by both rules, other image scores, training."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from reshift.bench.tables.summary import Cell, Table, make_table
from reshift.evaluation.metrics.table import Metric

RULES = {"training": "training normals", "held-out": "unseen normals"}
RULES_NOTE = (
    "P95 of the images and P99.5 of the pixels of training normals is the paper's rule; ours takes normals that were not learned "
    "from. A model that learned from all normals has none, unless it is cross-fitted: the rows that say so held some out."
)
SCORES_NOTE = (
    "The other tables use the method's own image score. It is the mean of the heat-map for all methods but DMD (its classifier), "
    "f-AnoGAN (image and feature error), PatchCore (re-weighted largest distance), Reshift and the two trivial ones."
)
TRAINING_NOTE = (
    "Codes in use: share of the codebook chosen at least once by up to 256 normals. Error: mean |x - D(Q(E(x)))| on [-1, 1], of "
    "training normals and of normal test images."
)


@dataclass(frozen=True)
class CellMetric(Metric):
    """One number of a cell, found by ``path``."""

    path: tuple[str, ...] = ()

    def read_cell(self, cell: Mapping[str, Any]) -> float | None:
        """The value in a benchmark cell; None where it has none."""
        found: Any = cell
        for name in self.path:
            found = found.get(name) if isinstance(found, Mapping) else None
        return float(found) if isinstance(found, int | float) and math.isfinite(found) else None


def cell_metric(
    caption: str, path: str, better: Literal["higher", "lower"] | None = "higher", unit: float = 100.0, digits: int = 1
) -> CellMetric:
    """``path`` is written with slashes, as in ``map_scores/top/auc``."""
    return CellMetric(
        "cost", path, caption, "", better=better, unit=unit, digits=digits, path=tuple(path.split("/"))
    )  # fmt: skip


UPDATES = cell_metric("updates", "steps", better=None, unit=1.0, digits=0)
SCORES = (
    cell_metric("AUC, own score", "metrics/image/auc"),
    cell_metric("AUC, mean of map", "map_scores/mean/auc"),
    cell_metric("AUC, highest 2 %", "map_scores/top/auc"),
    cell_metric("AP, mean of map", "map_scores/mean/ap"),
    cell_metric("AP, highest 2 %", "map_scores/top/ap"),
)
TRAINING = (
    UPDATES,
    cell_metric("codes in use [%]", "training/training/code_usage", better=None),
    cell_metric("perplexity", "training/training/code_perplexity", better=None, unit=1.0),
    cell_metric("error, training", "training/training/reconstruction_error", better=None, unit=1.0, digits=4),
    cell_metric("error, test normals", "training/test/reconstruction_error", better=None, unit=1.0, digits=4),
)
THRESHOLDS = tuple(
    cell_metric(f"{caption}, {text}", f"thresholds/{rule}/{name}", better)  # type: ignore[arg-type]
    for rule, text in RULES.items()
    for caption, name, better in (("F1", "f1", "higher"), ("FPR", "fpr", None), ("TPR", "tpr", None), ("Dice", "dice", "higher"))
)


def extra_tables(cells: Sequence[Cell]) -> list[Table]:
    """The tables that the cells allow; those of older benchmarks allow none."""
    results = [cell for cell in cells if cell["group"] != "sensitivity"]
    coded = [cell for cell in results if (cell.get("training") or {}).get("training")]
    plain = [cell for cell in results if cell["group"] in ("baseline", "ours") and cell.get("map_scores")]
    made = [
        make_table("thresholds", "Thresholds by both rules", results, THRESHOLDS, [RULES_NOTE]),
        make_table("scores", "Image scores made of heat-maps", plain, SCORES, [SCORES_NOTE]),
        make_table("training", "State of the autoencoder", coded, TRAINING, [TRAINING_NOTE]),
    ]
    return [table for table in made if table is not None]
