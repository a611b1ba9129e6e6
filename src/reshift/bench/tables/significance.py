"""Is a row better than the best baseline, or is it the choice of patients? Paired tests over subjects, Holm's correction.

Image metrics: a bootstrap with the same draws of subjects for both rows. A metric is computed per seed on each draw and averaged
over seeds, so the test is about the mean that the table prints. Pixel metrics are kept per image: each image's value is
averaged over seeds, and the test is about the mean over the images with a lesion. If two rows are alike, the sign of a subject's
difference is random, so signs are flipped at random. Between rows of pure noise, a bootstrap over 6 (20) subjects found a
difference at 5 % in 18 (10) % of 200 trials, sign flips in 3.3 (4.8) % of 1500.
"""

from collections.abc import Mapping, MutableMapping, Sequence

import numpy as np

from reshift.bench.tables.summary import Cell, Column, Row, Table, Verdict
from reshift.evaluation.metrics.bootstrap import Floats, Images, draw_for_images, owners
from reshift.evaluation.metrics.confidence import ROUNDING, bootstrap_p_value, image_samples, known_image_metrics
from reshift.evaluation.metrics.table import METRICS, Metric

DRAWS = 4000
LEVEL = 0.05
MIN_SUBJECTS = 6  # with disease: with fewer, all signs are equal by chance in more than 5 % (2 · 2⁻⁵)

Samples = MutableMapping[str, dict[str, Floats]]  # drawn image metrics of cells, by key: computed once per table


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values so that the chance of any false mark among them stays below the level."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, running = [1.0] * len(p_values), 0.0
    for place, i in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - place) * p_values[i]))
        adjusted[i] = running
    return adjusted


def mark_differences(table: Table, group: str, references: Sequence[str]) -> Table:
    """Compare every row of ``group`` with the best of the ``references`` rows in each column, and mark the differences."""
    known = [row for row in table.rows if row.label in references]
    best = {column: row for column in table.columns if has_test(column[1]) and (row := _best(known, column)) is not None}
    samples: Samples = {}
    notes, rows = dict[str, None](), []
    for row in table.rows:
        found, refused = _verdicts(row, best, samples) if row.group == group else ({}, [])
        notes |= dict.fromkeys(refused)
        adjusted = holm([verdict.p_value for verdict in found.values()])
        entries = dict(row.entries)
        for (column, verdict), p_value in zip(found.items(), adjusted, strict=True):
            printed = (row.entries[column].mean or 0.0) - (best[column].entries[column].mean or 0.0)
            entries[column] = entries[column]._replace(verdict=_marked(verdict._replace(adjusted=p_value), printed, column[1]))
        rows.append(row._replace(entries=entries))
    return table._replace(rows=tuple(rows), notes=(*table.notes, *notes))


def has_test(metric: Metric) -> bool:
    """Whether cells keep what a test of this metric needs."""
    return metric.samples is not None if metric.level == "image" else metric.per_image is not None


def compare_cells(ours: Sequence[Cell], theirs: Sequence[Cell], metric: Metric, samples: Samples) -> tuple[float, float] | str:
    """Return difference and two-sided p-value, or the reason why there is none."""
    if not all(cell.get("paired") for cell in (*ours, *theirs)):
        return "a cell lacks its scores per image"
    if len({_test_images(cell) for cell in (*ours, *theirs)}) > 1:
        return "not the same test images"
    if _ill_subjects(ours[0]) < MIN_SUBJECTS:
        return f"fewer than {MIN_SUBJECTS} subjects with disease"
    if metric.level == "image":
        return _bootstrap(ours, theirs, metric.name, samples)
    return _sign_flips(ours, theirs, metric.image_column)


def _test_images(cell: Cell) -> tuple[tuple[str, str, int], ...]:
    paired = cell["paired"]
    return tuple(sorted(zip(paired["inputs"], paired["subjects"], paired["labels"], strict=True)))


def _ill_subjects(cell: Cell) -> int:
    paired = cell["paired"]
    return len({subject for subject, label in zip(paired["subjects"], paired["labels"], strict=True) if label})


def _bootstrap(ours: Sequence[Cell], theirs: Sequence[Cell], name: str, samples: Samples) -> tuple[float, float] | str:
    known = [[known_image_metrics(_images(cell)).get(name) for cell in cells] for cells in (ours, theirs)]
    if any(value is None for values in known for value in values):
        return "the metric rests on one subject of a class"
    drawn = [np.mean([_samples(cell, samples)[name] for cell in cells], axis=0) for cells in (ours, theirs)]
    means = [float(np.mean([value for value in values if value is not None])) for values in known]
    return means[0] - means[1], bootstrap_p_value(drawn[0] - drawn[1])


def _images(cell: Cell) -> Images:
    """The cell's scores in the order of image names, so that cells of the same images get the same draws."""
    paired = cell["paired"]
    order = sorted(range(len(paired["inputs"])), key=lambda i: str(paired["inputs"][i]))
    labels = np.array([bool(paired["labels"][i]) for i in order])
    scores = np.array([paired["scores"][i] for i in order], dtype=np.float64)
    threshold = METRICS["image.threshold"].read(cell["metrics"])
    return Images(labels, scores, threshold, owners(labels, [str(paired["subjects"][i]) for i in order]))


def _samples(cell: Cell, samples: Samples) -> dict[str, Floats]:
    key = str(cell["key"])
    if key not in samples:
        images = _images(cell)
        samples[key] = image_samples(images, draw_for_images(images, DRAWS, 0))
    return samples[key]


def _sign_flips(ours: Sequence[Cell], theirs: Sequence[Cell], column: str) -> tuple[float, float] | str:
    first, second = _per_image(ours, column), _per_image(theirs, column)
    if not first or set(first) != set(second):
        return "not the same images have the metric"
    subject = dict(zip(ours[0]["paired"]["inputs"], ours[0]["paired"]["subjects"], strict=True))
    names = sorted(first)
    apart = np.array([first[image] - second[image] for image in names])
    groups, owner = np.unique([str(subject[image]) for image in names], return_inverse=True)
    if len(groups) < MIN_SUBJECTS:
        return f"fewer than {MIN_SUBJECTS} subjects with a lesion mask"
    total = np.bincount(owner, apart)
    signs = np.random.default_rng(0).choice((-1.0, 1.0), size=(DRAWS, len(groups)))
    as_far = np.abs(signs @ total) >= abs(total.sum()) - ROUNDING
    return float(apart.mean()), (1 + int(as_far.sum())) / (DRAWS + 1)


def _per_image(cells: Sequence[Cell], column: str) -> dict[str, float]:
    """The value of each image that has one with every seed, averaged over seeds."""
    found: dict[str, list[float]] = {}
    for cell in cells:
        for image, value in zip(cell["paired"]["inputs"], cell["paired"].get(column) or (), strict=False):
            if value is not None:
                found.setdefault(str(image), []).append(float(value))
    return {image: sum(values) / len(values) for image, values in found.items() if len(values) == len(cells)}


def _verdicts(row: Row, best: Mapping[Column, Row], samples: Samples) -> tuple[dict[Column, Verdict], list[str]]:
    """Compare one row column by column; also return what could not be compared, and why."""
    found, refused = dict[Column, Verdict](), list[str]()
    for (dataset, metric), other in best.items():
        if row.label == other.label or row.entries[dataset, metric].mean is None:
            continue
        result = compare_cells(_measured(row, dataset, metric), _measured(other, dataset, metric), metric, samples)
        if isinstance(result, str):
            refused.append(f"No test of {row.label} against {other.label} on {dataset}, {metric.caption}: {result}.")
        else:
            found[dataset, metric] = Verdict(other.label, *result, adjusted=1.0)
    return found, refused


def _marked(verdict: Verdict, printed: float, metric: Metric) -> Verdict:
    """Mark a test that passes, unless the printed means say the opposite of what was tested."""
    if verdict.adjusted >= LEVEL or verdict.difference * printed <= 0.0:
        return verdict
    return verdict._replace(mark="+" if (verdict.difference > 0.0) == (metric.better == "higher") else "-")


def _best(rows: Sequence[Row], column: Column) -> Row | None:
    known = [row for row in rows if row.entries[column].mean is not None]
    sign = -1.0 if column[1].better == "lower" else 1.0
    return max(known, key=lambda row: sign * (row.entries[column].mean or 0.0), default=None)


def _measured(row: Row, dataset: str, metric: Metric) -> list[Cell]:
    """The cells behind an entry of the table."""
    return [cell for cell in row.cells[dataset] if cell["status"] == "done" and metric.read_cell(cell) is not None]
