"""Does a model detect disease, or the text that is burned into its images?

    python benchmarks/text.py BUNDLE DATA/manifest.csv [--out text.json]

Paints words and caliper crosses into the normal test images, in a bitmap font that no training sees, and compares
how many are flagged before and after; then AUC and pixel AP on all test images and on those in which no marks are
suspected.
"""

from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont
from numpy.typing import NDArray

import reshift
from measure import judge_bundle
from reshift.data.burned_in import stroke_count, suspected
from reshift.data.cases import Case
from reshift.data.manifest import load_cases
from reshift.data.prepare import Prepared, prepare, prepare_mask
from reshift.data.read import read_image, read_mask
from reshift.evaluation.metrics.image import roc_auc
from reshift.evaluation.metrics.pixels import PixelHistogram
from reshift.inference.model import Model

WORDS = ("LEFT BREAST", "RT 10 OCL", "1.84 cm", "D1 12mm", "SAG", "+ 0.93", "L", "2D 57%", "AXILLA")


def paint(pixels: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """One to three words and two crosses on a prepared image ``(C, S, S)``."""
    canvas = PIL.Image.new("L", pixels.shape[1:][::-1])
    draw, font, size = PIL.ImageDraw.Draw(canvas), PIL.ImageFont.load_default_imagefont(), canvas.width
    for _ in range(rng.integers(1, 4)):
        draw.text(tuple(rng.integers(0, size - 12, 2).tolist()), str(rng.choice(WORDS)), 255, font)
    for x, y in rng.integers(6, size - 6, (2, 2)).tolist():
        draw.line((x - 3, y, x + 3, y), 255)
        draw.line((x, y - 3, x, y + 3), 255)
    cover = np.asarray(canvas, dtype=np.float32) / 255.0
    return np.asarray(pixels * (1.0 - cover) + rng.uniform(0.6, 1.0) * cover, dtype=np.float32)


def predict(model: Model, pixels: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Scores and heat-maps of prepared images."""
    parts = [model.launch(pixels[i : i + model.batch])() for i in range(0, len(pixels), model.batch)]
    return np.array([score for scores, _ in parts for score in scores]), np.concatenate([maps for _, maps in parts])


def unmarked(cases: list[Case]) -> NDArray[np.bool_]:
    """Which images show no suspicion of marks, judged by the normals among them."""
    counts = [stroke_count(read_image(case.image).pixels.mean(-1)) for case in cases]
    return ~suspected(counts, [count for count, case in zip(counts, cases, strict=True) if case.label == 0])


def test_metrics(model: Model, cases: list[Case], prepared: list[Prepared]) -> dict[str, Any]:
    """AUC and pixel AP over all test images, and over those without suspected marks."""
    scores, heatmaps = predict(model, np.stack([item.pixels for item in prepared]))
    labels, clean = np.array([case.label == 1 for case in cases]), unmarked(cases)
    found: dict[str, Any] = {}
    for name, chosen in (("all", np.ones_like(clean)), ("without marks", clean)):
        pixels = PixelHistogram()
        for i in np.flatnonzero(chosen):
            case = cases[i]
            mask = prepare_mask(read_mask(case.mask), prepared[i].geometry, len(heatmaps[i])) if case.mask else None
            if mask is not None or case.label == 0:
                pixels.add(heatmaps[i], mask)
        counts = {"normal": int((chosen & ~labels).sum()), "abnormal": int((chosen & labels).sum())}
        found[name] = {"n": counts, "auc": roc_auc(labels[chosen], scores[chosen]), "ap_pix": pixels.average_precision()}
    return found


def measure(bundle: Path, data: Path) -> dict[str, Any]:
    """All numbers of one model on one dataset."""
    model = reshift.load(bundle)
    if model.bundle.calibration is None:
        raise SystemExit(f"{bundle}: has no calibration; run reshift calibrate first")
    limit, rng = model.bundle.calibration.reference, np.random.default_rng(0)
    cases = [case for case in load_cases(data) if case.split == "test"]
    prepared = [prepare(read_image(case.image), model.bundle.config.data) for case in cases]
    normals = np.stack([item.pixels for item, case in zip(prepared, cases, strict=True) if case.label == 0])
    painted = np.stack([paint(image, rng) for image in normals])
    (before, _), (after, heatmaps) = predict(model, normals), predict(model, painted)
    text, above = np.abs(painted - normals).mean(1) > 0.2, heatmaps > limit.pixel_threshold
    return {
        "dataset": data.resolve().parent.name,
        "normals": len(normals),
        "flagged": float((before > limit.image_threshold).mean()),
        "flagged_with_text": float((after > limit.image_threshold).mean()),
        "auc_of_text": roc_auc(np.repeat([False, True], len(normals)), np.concatenate([before, after])),
        "text_pixels_above_threshold": float(above[text].mean()),
        "other_pixels_above_threshold": float(above[~text].mean()),
        "test": test_metrics(model, cases, prepared),
    }


if __name__ == "__main__":
    judge_bundle(__doc__, measure)
