"""``reshift select``: rank configurations by what they find of synthetic shifts in normals that they were not trained on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.config import Config
from reshift.data.manifest import expand, load_cases
from reshift.data.read import read_picture
from reshift.errors import UserError
from reshift.evaluation.metrics.image import roc_auc
from reshift.evaluation.metrics.pixels import PixelMetrics
from reshift.evaluation.shift_bank import KINDS, plant
from reshift.inference.model import Model, load_model
from reshift.system.files import atomic_json, atomic_text, writable_folder
from reshift.system.progress import progress
from reshift.training.run import split_normals, train_run

LEAST = 48  # shifted images per kind; few normals are used several times, each time shifted elsewhere


class Candidate(NamedTuple):
    """A configuration and the name it is ranked under."""

    name: str
    config: Config


def select(candidates: Sequence[Candidate], data: Path, out: Path, *, seed: int = 0) -> list[dict[str, Any]]:
    """Train what is not trained yet, judge all, write ``select.json`` and ``select.md``; best first.

    No test image is read. Candidates must agree on the held-out normals, or they would be judged on different ones.
    """
    names = [candidate.name for candidate in candidates]
    if len(set(names)) < len(names):
        raise UserError(f"two candidates are called '{max(names, key=names.count)}'; give every configuration a name of its own")
    splits = {(c.config.seed, c.config.data.holdout, c.config.data.subject) for c in candidates}
    if len(splits) > 1:
        raise UserError("the candidates hold out different normals; give all the same seed, data.holdout and data.subject")
    writable_folder(out)
    rows = []
    for candidate in candidates:
        bundle = train_run(candidate.config, data, out / candidate.name, resume=True)
        rows.append({"name": candidate.name, "method": candidate.config.method, **judge(load_model(bundle), data, seed)})
        atomic_json(out / candidate.name / "select.json", rows[-1])
    rows.sort(key=lambda row: -row["ap"])
    atomic_json(out / "select.json", {"seed": seed, "ranking": rows})
    atomic_text(out / "select.md", table(rows))
    return rows


def judge(model: Model, data: Path, seed: int = 0) -> dict[str, Any]:
    """Pixel AP and image AUC on shifted held-out normals, by kind and on average."""
    config = model.bundle.config
    learned = [case for case in load_cases(data, config.data.subject) if case.split != "test"]
    kept, held = split_normals(expand(learned, config.data), config, data)
    if not held:
        raise UserError(f"{data}: no normals are held out to judge on; set data.holdout above 0")
    normals = np.stack([model.prepare(read_picture(case.image, case.slice)).pixels for case in held])
    rounds = -(-LEAST // len(normals))
    with progress(f"judging on {len(normals)} normals", 1 + len(KINDS)) as advance:
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
        planted = [plant(image, kind, (seed, again, i)) for i, image in enumerate(normals)]
        found, maps = _run(model, np.stack([item.pixels for item in planted]))
        scores += found
        for heatmap, item in zip(maps, planted, strict=True):
            pixels.add(heatmap, item.mask)
    labels = np.array([False] * len(plain) + [True] * len(scores))
    auc = roc_auc(labels, np.array(plain + scores))
    return {"ap": pixels.result()["ap"] or 0.0, "auc": auc if auc is not None else 0.5}


def _run(model: Model, pixels: NDArray[np.float32]) -> tuple[list[float], NDArray[np.float32]]:
    parts = [model.run(pixels[start : start + model.batch]) for start in range(0, len(pixels), model.batch)]
    return [score for scores, _ in parts for score in scores], np.concatenate([maps for _, maps in parts])


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The ranking as Markdown."""
    head = ["candidate", "AP", "AUC", *KINDS]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        cells = [row["name"], f"{row['ap']:.3f}", f"{row['auc']:.3f}", *(f"{row['kinds'][kind]['ap']:.3f}" for kind in KINDS)]
        lines.append("| " + " | ".join(cells) + " |")
    note = f"Pixel AP (columns by kind too) and image AUC on synthetic shifts in {rows[0]['normals']} held-out normals."
    return "\n".join([*lines, "", note]) + "\n"
