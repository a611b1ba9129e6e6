"""Further tables of the evaluation report: subgroups, and lesions by size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from reshift.evaluation.metrics.image import roc_auc
from reshift.evaluation.metrics.lesions import SIZES

LESION_CLASSES = [*pairwise(SIZES), (SIZES[-1], None)]  # [from, to) of lesion pixels, at network resolution


@dataclass(frozen=True)
class ReportTable:
    """A further table: subgroups, lesions by size, findings."""

    title: str
    note: str  # one sentence under the title
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


def subgroup_table(rows: Sequence[dict[str, Any]]) -> ReportTable:
    """Abnormal images by the manifest's note and by lesion size, each against all normals."""
    abnormal = [row for row in rows if row["label"] == 1]
    notes = sorted({row["note"] for row in abnormal if row["note"]})
    groups = [(note, [row for row in abnormal if row["note"] == note]) for note in notes if len(notes) <= 12]
    for low, end in LESION_CLASSES:
        inside = [row for row in abnormal if row["lesion_pixels"] and low <= row["lesion_pixels"] < (end or math.inf)]
        groups.append((f"lesion {low}–{end - 1} px" if end else f"lesion ≥ {low} px", inside))
    normal = [row["score"] for row in rows if row["label"] == 0]
    return ReportTable(
        "Subgroups",
        "Abnormal images by note and by lesion size (pixels at network resolution); AUC is against all normal test images.",
        ("Subgroup", "Images", "Sensitivity", "AUC"),
        [_subgroup(name, group, normal) for name, group in groups if group],
    )


def _subgroup(name: str, group: Sequence[dict[str, Any]], normal: Sequence[float]) -> tuple[str, ...]:
    flags = [row["flag"] for row in group if row["flag"] is not None]
    scores = np.array([*normal, *(row["score"] for row in group)])
    auc = roc_auc(np.arange(len(scores)) >= len(normal), scores)
    return name, str(len(group)), f"{np.mean(flags):.1%}" if flags else "–", f"{auc:.3f}" if auc is not None else "–"


def lesion_table(found: dict[str, Any] | None) -> ReportTable:
    """How many lesions were found, by their size."""
    rows = list[tuple[str, ...]]()
    for part in (found or {}).get("by_size", ()):
        size = f"{part['from']}–{part['to']} px" if part["to"] else f"≥ {part['from']} px"
        if part["n"]:
            rows.append((size, str(part["n"]), str(part["detected"]), f"{part['rate']:.1%}"))
    return ReportTable(
        "Lesions found",
        "Connected lesions; one counts as found when at least a tenth of its pixels exceeds the calibrated pixel threshold.",
        ("Size", "Lesions", "Found", "Rate"),
        rows,
    )
