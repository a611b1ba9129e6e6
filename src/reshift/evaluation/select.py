"""``reshift select``: rank configurations by how well they find synthetic shifts in held-out normals."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.config import Config
from reshift.data.cases import expand_volumes
from reshift.data.manifest import load_cases
from reshift.data.prepare import Prepared, prepare
from reshift.data.read import read_image
from reshift.errors import UserError
from reshift.evaluation.metrics.image import roc_auc
from reshift.evaluation.metrics.pixels import PixelMetrics
from reshift.evaluation.shift_bank import KINDS, apply_shift
from reshift.inference.model import Model, load_model
from reshift.inference.stream import NOTHING, Sample, grouped, predict_batches
from reshift.system.files import atomic_json, atomic_text, create_output_folder
from reshift.system.progress import progress
from reshift.training.run import split_normals, train_run

MIN_SHIFTED = 48  # images per kind; few normals are used several times, each time shifted in another region


class Candidate(NamedTuple):
    """A configuration and the name it is ranked under."""

    name: str
    config: Config


def select(candidates: Sequence[Candidate], data: Path, out: Path, *, seed: int = 0) -> list[dict[str, Any]]:
    """Train candidates that are not trained yet, rank all, write ``select.json`` and ``select.md``; best first.

    No test image is read. Candidates must have the same held-out normals, since they are ranked on these.
    """
    names = [candidate.name for candidate in candidates]
    if len(set(names)) < len(names):
        raise UserError(f"two candidates are called '{max(names, key=names.count)}'; give every configuration a name of its own")
    splits = {(c.config.seed, c.config.data.holdout, c.config.data.subject) for c in candidates}
    if len(splits) > 1:
        raise UserError("the candidates hold out different normals; give all the same seed, data.holdout and data.subject")
    create_output_folder(out)
    rows = []
    for candidate in candidates:
        bundle = train_run(candidate.config, data, out / candidate.name, resume=True)
        rows.append({"name": candidate.name, "method": candidate.config.method, **measure(load_model(bundle), data, seed)})
        atomic_json(out / candidate.name / "select.json", rows[-1])
    rows.sort(key=lambda row: -row["ap"])
    atomic_json(out / "select.json", {"seed": seed, "ranking": rows})
    atomic_text(out / "select.md", table(rows))
    return rows


def measure(model: Model, data: Path, seed: int = 0) -> dict[str, Any]:
    """Pixel AP and image AUC on shifted held-out normals, by kind and on average."""
    config = model.bundle.config
    learned = [case for case in load_cases(data, config.data.subject) if case.split != "test"]
    kept, held = split_normals(expand_volumes(learned, config.data), config, data)
    if not held:
        raise UserError(f"{data}: no normals are held out to judge on; set data.holdout above 0")
    limit = config.data.max_pixels
    normals = np.stack([prepare(read_image(case.image, case.slice, limit), config.data).pixels for case in held])
    rounds = -(-MIN_SHIFTED // len(normals))
    with progress(f"measuring on {len(normals)} normals", 1 + len(KINDS)) as advance:
        plain, _ = _run(model, normals)
        advance()
        kinds = {}
        for kind in KINDS:
            kinds[kind] = _kind(model, normals, plain, kind, rounds, seed)
            advance()
    means = {name: float(np.mean([found[name] for found in kinds.values()])) for name in ("ap", "auc")}
    return {**means, "kinds": kinds, "normals": len(normals), "trained_on": len(kept)}


def _kind(model: Model, normals: NDArray[np.float32], plain: list[float], kind: str, rounds: int, seed: int) -> dict[str, float]:
    pixels, scores = PixelMetrics(None), list[float]()
    for again in range(rounds):
        shifted = [apply_shift(image, kind, (seed, again, i)) for i, image in enumerate(normals)]
        found, maps = _run(model, np.stack([item.pixels for item in shifted]))
        scores += found
        for heatmap, item in zip(maps, shifted, strict=True):
            pixels.add(heatmap, item.mask)
    labels = np.array([False] * len(plain) + [True] * len(scores))
    auc = roc_auc(labels, np.array(plain + scores))
    return {"ap": pixels.ap() or 0.0, "auc": auc if auc is not None else 0.5}


def _run(model: Model, pixels: NDArray[np.float32]) -> tuple[list[float], NDArray[np.float32]]:
    samples = (Sample(i, prepared=Prepared(image, NOTHING.geometry)) for i, image in enumerate(pixels))
    done = list(chain.from_iterable(predict_batches(model, grouped(samples, model.batch))))
    return [sample.score for sample in done], np.stack([sample.heatmap for sample in done])


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The ranking as Markdown."""
    head = ["candidate", "AP", "AUC", *KINDS]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        cells = [row["name"], f"{row['ap']:.3f}", f"{row['auc']:.3f}", *(f"{row['kinds'][kind]['ap']:.3f}" for kind in KINDS)]
        lines.append("| " + " | ".join(cells) + " |")
    note = f"Pixel AP (columns by kind too) and image AUC on synthetic shifts in {rows[0]['normals']} held-out normals."
    return "\n".join([*lines, "", note]) + "\n"
