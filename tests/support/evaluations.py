"""Evaluation folders on disk, as ``reshift evaluate`` leaves them, without a model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshift.evaluation.results import Results, load_results

SIZE = 32


def disc(radius: float, at: tuple[float, float] = (0.6, 0.45), size: int = SIZE) -> NDArray[np.bool_]:
    y, x = np.mgrid[:size, :size] / size
    inside: NDArray[np.bool_] = (y - at[0]) ** 2 + (x - at[1]) ** 2 < radius**2
    return inside


def draw_image(rng: np.random.Generator, lesion: NDArray[np.bool_], size: int = SIZE) -> NDArray[np.uint8]:
    head = disc(0.42, (0.5, 0.5), size) * 110.0 + disc(0.2, (0.5, 0.5), size) * 40.0
    image: NDArray[np.uint8] = np.clip(head + lesion * 70.0 + rng.normal(0, 6, (size, size)), 0, 255).astype(np.uint8)
    return image


def folder(
    root: Path, method: str, *, normal: int = 30, abnormal: int = 20, gain: float = 2.0, size: int = SIZE, features: bool = True
) -> Results:
    """Write an evaluation as ``reshift evaluate`` does; a higher ``gain`` is a better method. Images do not depend on it."""
    out = root / method
    (out / "arrays").mkdir(parents=True)
    rng, own = np.random.default_rng(1), np.random.default_rng(int(gain * 10))
    reference = np.sort(own.normal(0, 1, 60))
    maps, lesions, rows, embedded = [], [], [], []
    for i in range(normal + abnormal):
        ill = i >= normal
        lesion = disc(0.04 + 0.01 * (i - normal), size=size) if ill else np.zeros((size, size), dtype=bool)
        image = draw_image(rng, lesion, size)
        heatmap = np.abs(own.normal(0, 0.05, (size, size)) + lesion * 0.1 * gain).astype(np.float32)
        maps.append(heatmap.ravel())
        lesions.append(lesion.ravel())
        score = float(own.normal(gain * ill, 1))
        path = f"arrays/{i:04d}.npz"
        arrays: dict[str, Any] = {"image": image, "heatmap": heatmap.astype(np.float16), **({"mask": lesion} if ill else {})}
        np.savez_compressed(out / path, **arrays)
        p_value = (1 + int((reference >= score).sum())) / (1 + len(reference))
        known = {"input": f"case{i:03d}.png", "label": int(ill), "subject": f"s{i}", "note": "", "score": score}
        flag = score > reference[-4]
        rows.append(
            {**known, "p_value": p_value, "flag": bool(flag), "lesion_pixels": int(lesion.sum()) if ill else None, "arrays": path}
        )
        embedded.append(own.normal(0, 1, 8) + gain * ill)
    if abnormal:
        values, at = np.unique(np.concatenate(maps), return_inverse=True)
        bad = np.bincount(at, weights=np.concatenate(lesions)).astype(np.int64)
        np.savez(out / "pixels.npz", values=values, normal=np.bincount(at) - bad, abnormal=bad)
    if features:
        np.save(out / "features.npy", np.array(embedded, dtype=np.float32))
    image_level = {"threshold": float(reference[-4])}
    metrics = {"image": image_level, "pixel": {"threshold": 0.14}, "method": method, "dataset": "phantom", "seed": 0}
    return write(out, metrics, rows)


def write(out: Path, metrics: dict[str, Any], rows: list[dict[str, Any]]) -> Results:
    (out / "metrics.json").write_text(json.dumps(metrics))
    (out / "cases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_results(out)


def changed(run: Results, **metrics: Any) -> Results:
    return run._replace(metrics={**run.metrics, **metrics})
