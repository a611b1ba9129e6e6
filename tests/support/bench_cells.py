"""Hand-made cells of a benchmark, as ``reshift bench`` writes them."""

from typing import Any

import numpy as np

PER_SUBJECT = 2  # images


def scored(scores: list[float]) -> dict[str, Any]:
    """What a cell keeps per image: every other subject is ill; each image's pixel metrics are its score."""
    n = len(scores)
    labels = [(i // PER_SUBJECT) % 2 for i in range(n)]
    lesion = [score if label else None for score, label in zip(scores, labels, strict=True)]
    return {
        "inputs": [f"image{i:03d}" for i in range(n)],
        "subjects": [f"s{i // PER_SUBJECT}" for i in range(n)],
        "labels": labels,
        "scores": scores,
        "dice": lesion,
        "pixel_ap": lesion,
    }


def drawn(shift: float, seed: int, n: int = 80) -> list[float]:
    """Scores that lie ``shift`` higher for ill images."""
    noise = np.random.default_rng(seed).normal(size=n)
    return [float(x + shift * ((i // PER_SUBJECT) % 2)) for i, x in enumerate(noise)]


def cell(row: str, dataset: str = "lgg_flair", seed: int = 0, **change: Any) -> dict[str, Any]:
    """One finished cell; ``image``, ``pixel`` and ``normative`` are its metrics, ``intervals`` theirs, the rest its fields."""
    levels = {level: change.pop(level, None) for level in ("image", "pixel", "normative")}
    metrics: dict[str, Any] = {"image": {}, "pixel": {}, **{k: v for k, v in levels.items() if v is not None}}
    metrics["intervals"] = change.pop("intervals", None)
    found: dict[str, Any] = {
        "key": f"{row}/{dataset}/{seed}", "suite": "test", "row": row, "method": "dae", "group": "baseline", "caveat": None,
        "dataset": dataset, "trained_on": dataset, "seed": seed, "setting": None, "status": "done", "error": None,
        "code": "c", "data": "d", "config": {"model": {}}, "predict": {}, "metrics": metrics, "paired": None,
        "train_seconds": 10.0, "images_per_second": 50.0, "machine": {"gpu": None, "cpu": "a processor", "cores": 2},
        "date": "2026-01-01",
    }  # fmt: skip
    return {**found, **change}


def broken(row: str, dataset: str = "lgg_flair", seed: int = 0, **change: Any) -> dict[str, Any]:
    """A cell that failed."""
    nothing = {"metrics": None, "paired": None, "train_seconds": None, "images_per_second": None, "machine": None}
    return cell(row, dataset, seed) | nothing | {"status": "failed", "error": "out of memory | at step 3"} | change
