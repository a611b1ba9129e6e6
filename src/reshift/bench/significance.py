"""Is a row better than the best baseline, or is it the choice of patients? Paired tests over subjects, Holm's correction.

AUC, AP and F1: a bootstrap that weighs the subjects anew, the same way for both rows; they are computed per seed on each draw and
averaged over seeds, so that the test is about the very mean that the table prints. Pixel figures are kept per image: each
image's is averaged over seeds, and the test is about the mean over the images with a lesion. There a subject's difference has one
sign or the other by chance if the rows are alike, so signs are flipped at random: between rows of pure noise, a bootstrap
over 6 (20) subjects found a difference at 5 % in 18 (10) % of 200 trials, the signs in 3.3 (4.8) % of 1500.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from reshift.bench.summary import Column, Entry, Figure, Row, Table, Verdict, value_of
from reshift.evaluation.metrics.bootstrap import Floats, Images, draw_for_images, image_samples, known_figures, owners
from reshift.evaluation.metrics.confidence import ROUNDING

Cell = Mapping[str, Any]
DRAWS = 4000
LEVEL = 0.05
LEAST = 6  # subjects with disease: of fewer, even the same sign in all comes by chance in more than 5 % (2 · 2⁻⁵)
IMAGE, PIXEL = ("auc", "ap", "f1"), {"ap": "pixel_ap", "dice": "dice"}

Memory = MutableMapping[str, dict[str, Floats]]  # draws of a cell's image figures, by its key


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values so that the chance of any false mark among them stays below the level."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, running = [1.0] * len(p_values), 0.0
    for place, i in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - place) * p_values[i]))
        adjusted[i] = running
    return adjusted


def compare(ours: Sequence[Cell], theirs: Sequence[Cell], figure: Figure, memory: Memory) -> tuple[float, float] | str:
    """Return difference and two-sided p-value, or the reason why there is none."""
    if not all(cell.get("paired") for cell in (*ours, *theirs)):
        return "a cell lacks its scores per image"
    if len({_identity(cell) for cell in (*ours, *theirs)}) > 1:
        return "not the same test images"
    if _ill_subjects(ours[0]) < LEAST:
        return f"fewer than {LEAST} subjects with disease"
    if figure.level == "image":
        return _image(ours, theirs, figure.name, memory)
    return _pixel(ours, theirs, PIXEL[figure.name])


def can_judge(figure: Figure) -> bool:
    """Whether cells keep what a test of this figure needs."""
    return figure.name in (IMAGE if figure.level == "image" else PIXEL if figure.level == "pixel" else ())


def _identity(cell: Cell) -> tuple[tuple[str, str, int], ...]:
    paired = cell["paired"]
    return tuple(sorted(zip(paired["inputs"], paired["subjects"], paired["labels"], strict=True)))


def _ill_subjects(cell: Cell) -> int:
    paired = cell["paired"]
    return len({subject for subject, label in zip(paired["subjects"], paired["labels"], strict=True) if label})


def _image(ours: Sequence[Cell], theirs: Sequence[Cell], name: str, memory: Memory) -> tuple[float, float] | str:
    known = [[known_figures(_images(cell)).get(name) for cell in cells] for cells in (ours, theirs)]
    if any(value is None for values in known for value in values):
        return "a figure that rests on one subject of a class"
    samples = [np.mean([_samples(cell, memory)[name] for cell in cells], axis=0) for cells in (ours, theirs)]
    means = [float(np.mean([value for value in values if value is not None])) for values in known]
    return means[0] - means[1], _p_value(samples[0] - samples[1])


def _images(cell: Cell) -> Images:
    """The cell's scores by image name, so that cells of the same images get the same draws."""
    paired = cell["paired"]
    order = sorted(range(len(paired["inputs"])), key=lambda i: str(paired["inputs"][i]))
    labels = np.array([bool(paired["labels"][i]) for i in order])
    scores = np.array([paired["scores"][i] for i in order], dtype=np.float64)
    threshold = (cell["metrics"].get("image") or {}).get("threshold")
    return Images(labels, scores, threshold, owners(labels, [str(paired["subjects"][i]) for i in order]))


def _samples(cell: Cell, memory: Memory) -> dict[str, Floats]:
    key = str(cell["key"])
    if key not in memory:
        images = _images(cell)
        memory[key] = image_samples(images, draw_for_images(images, DRAWS, 0))
    return memory[key]


def _pixel(ours: Sequence[Cell], theirs: Sequence[Cell], name: str) -> tuple[float, float] | str:
    first, second = _per_image(ours, name), _per_image(theirs, name)
    if not first or set(first) != set(second):
        return "not the same images have the figure"
    subject = dict(zip(ours[0]["paired"]["inputs"], ours[0]["paired"]["subjects"], strict=True))
    names = sorted(first)
    apart = np.array([first[image] - second[image] for image in names])
    groups, owner = np.unique([str(subject[image]) for image in names], return_inverse=True)
    if len(groups) < LEAST:
        return f"fewer than {LEAST} subjects with a lesion mask"
    total = np.bincount(owner, apart)
    signs = np.random.default_rng(0).choice((-1.0, 1.0), size=(DRAWS, len(groups)))
    as_far = np.abs(signs @ total) >= abs(total.sum()) - ROUNDING
    return float(apart.mean()), (1 + int(as_far.sum())) / (DRAWS + 1)


def _per_image(cells: Sequence[Cell], name: str) -> dict[str, float]:
    """The figure of each image that has it with every seed, averaged over seeds."""
    found: dict[str, list[float]] = {}
    for cell in cells:
        for image, value in zip(cell["paired"]["inputs"], cell["paired"].get(name) or (), strict=False):
            if value is not None:
                found.setdefault(str(image), []).append(float(value))
    return {image: sum(values) / len(values) for image, values in found.items() if len(values) == len(cells)}


def _p_value(samples: Floats) -> float:
    """As in ``metrics.confidence``: the one added keeps p above 0, which no number of draws can show."""
    samples = np.where(np.abs(samples) < ROUNDING, 0.0, samples)
    tail = 1 + min(int((samples <= 0.0).sum()), int((samples >= 0.0).sum()))
    return min(1.0, 2.0 * tail / (len(samples) + 1))


def judge(table: Table, group: str, references: Sequence[str]) -> Table:
    """Compare every row of ``group`` with the best of the ``references`` rows in each column, and mark it."""
    columns = [(name, figure) for name in table.datasets for figure in table.figures if can_judge(figure)]
    known = [row for row in table.rows if row.label in references]
    best = {column: row for column in columns if (row := _best(known, column)) is not None}
    memory: Memory = {}
    notes, rows = dict[str, None](), []
    for row in table.rows:
        found, refused = _verdicts(row, best, memory) if row.group == group else ({}, [])
        notes |= dict.fromkeys(refused)
        adjusted = holm([verdict.p_value for verdict in found.values()])
        entries = dict(row.entries)
        for (column, verdict), p_value in zip(found.items(), adjusted, strict=True):
            printed = _apart(row.entries[column], best[column].entries[column])
            entries[column] = entries[column]._replace(verdict=_marked(verdict._replace(adjusted=p_value), printed))
        rows.append(row._replace(entries=entries))
    return table._replace(rows=tuple(rows), notes=(*table.notes, *notes))


def _verdicts(row: Row, best: Mapping[Column, Row], memory: Memory) -> tuple[dict[Column, Verdict], list[str]]:
    """Compare one row column by column; also say what could not be compared, and why."""
    found, refused = dict[Column, Verdict](), list[str]()
    for (dataset, figure), other in best.items():
        if row.label == other.label or row.entries[dataset, figure].mean is None:
            continue
        result = compare(_with(row, dataset, figure), _with(other, dataset, figure), figure, memory)
        if isinstance(result, str):
            refused.append(f"No test of {row.label} against {other.label} on {dataset}, {figure.label}: {result}.")
        else:
            found[dataset, figure] = Verdict(other.label, *result, adjusted=1.0)
    return found, refused


def _marked(verdict: Verdict, printed: float) -> Verdict:
    """Mark a test that passes, unless the printed means say the opposite of what was tested."""
    if verdict.adjusted >= LEVEL or verdict.difference * printed <= 0.0:
        return verdict
    return verdict._replace(mark="+" if verdict.difference > 0.0 else "-")


def _apart(entry: Entry, other: Entry) -> float:
    return (entry.mean or 0.0) - (other.mean or 0.0)


def _best(rows: Sequence[Row], column: Column) -> Row | None:
    known = [row for row in rows if row.entries[column].mean is not None]
    return max(known, key=lambda row: row.entries[column].mean or 0.0, default=None)


def _with(row: Row, dataset: str, figure: Figure) -> list[Cell]:
    """The cells behind a figure of the table."""
    return [cell for cell in row.cells[dataset] if cell["status"] == "done" and value_of(cell, figure) is not None]
