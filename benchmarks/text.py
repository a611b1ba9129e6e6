"""Does a model detect disease, or the text that is burned into its images?

    python benchmarks/text.py BUNDLE DATA/manifest.csv [--out text.json]

Paints words and caliper crosses into the normal test images, in a bitmap font that no training sees, and compares how many are
flagged with how many were before; then AUC and pixel AP on the test images in which no marks are suspected.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont
from numpy.typing import NDArray

from reshift.data.manifest import Case, load_cases
from reshift.data.marks import stroke_count, suspected
from reshift.data.prepare import prepare_mask
from reshift.data.read import read_image, read_mask
from reshift.evaluation.metrics.image import roc_auc
from reshift.evaluation.metrics.pixels import PixelMetrics
from reshift.inference.model import Model, load_model

WORDS = ("LEFT BREAST", "RT 10 OCL", "1.84 cm", "D1 12mm", "SAG", "+ 0.93", "L", "2D 57%", "AXILLA")


def painted(pixels: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """One to three words and two crosses on a network input ``(C, S, S)``."""
    canvas = PIL.Image.new("L", pixels.shape[1:][::-1])
    draw, font, size = PIL.ImageDraw.Draw(canvas), PIL.ImageFont.load_default_imagefont(), canvas.width
    for _ in range(rng.integers(1, 4)):
        draw.text(tuple(rng.integers(0, size - 12, 2).tolist()), str(rng.choice(WORDS)), 255, font)
    for x, y in rng.integers(6, size - 6, (2, 2)).tolist():
        draw.line((x - 3, y, x + 3, y), 255)
        draw.line((x, y - 3, x, y + 3), 255)
    cover = np.asarray(canvas, dtype=np.float32) / 255.0
    return np.asarray(pixels * (1.0 - cover) + rng.uniform(0.6, 1.0) * cover, dtype=np.float32)


def run(model: Model, pixels: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    parts = [model.run(pixels[start : start + model.batch]) for start in range(0, len(pixels), model.batch)]
    return np.array([score for scores, _ in parts for score in scores]), np.concatenate([maps for _, maps in parts])


def unmarked(cases: list[Case]) -> NDArray[np.bool_]:
    """Which images show no suspicion of marks, judged by the normals among them."""
    counts = [stroke_count(read_image(case.image).pixels.mean(-1)) for case in cases]
    return ~suspected(counts, [count for count, case in zip(counts, cases, strict=True) if case.label == 0])


def clean_figures(model: Model, cases: list[Case], ready: list[Any]) -> dict[str, Any]:
    """AUC and pixel AP over all test images, and over those without suspected marks."""
    scores, maps = run(model, np.stack([item.pixels for item in ready]))
    labels, clean = np.array([case.label == 1 for case in cases]), unmarked(cases)
    found: dict[str, Any] = {}
    for name, chosen in (("all", np.ones_like(clean)), ("without marks", clean)):
        pixels = PixelMetrics(None)
        for i in np.flatnonzero(chosen):
            case = cases[i]
            mask = prepare_mask(read_mask(case.mask), ready[i].geometry, len(maps[i])) if case.mask else None
            if mask is not None or case.label == 0:
                pixels.add(maps[i], mask)
        counted = {"normal": int((chosen & ~labels).sum()), "abnormal": int((chosen & labels).sum())}
        found[name] = {"n": counted, "auc": roc_auc(labels[chosen], scores[chosen]), "ap_pix": pixels.result()["ap"]}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    model = load_model(args.bundle)
    if model.bundle.calibration is None:
        raise SystemExit("the bundle has no calibration")
    cases = [case for case in load_cases(args.data) if case.split == "test"]
    ready = [model.prepare(read_image(case.image)) for case in cases]
    normals = np.stack([item.pixels for item, case in zip(ready, cases, strict=True) if case.label == 0])
    rng = np.random.default_rng(0)
    before, _ = run(model, normals)
    after, maps = run(model, marked := np.stack([painted(image, rng) for image in normals]))
    limit = model.bundle.calibration.reference
    strokes = np.abs(marked - normals).mean(1) > 0.2
    hot = maps > limit.pixel_threshold
    result = {
        "dataset": args.data.resolve().parent.name, "normals": len(normals),
        "flagged": float((before > limit.image_threshold).mean()),
        "flagged_with_text": float((after > limit.image_threshold).mean()),
        "auc_of_text": roc_auc(np.repeat([False, True], len(normals)), np.concatenate([before, after])),
        "text_pixels_above_threshold": float(hot[strokes].mean()), "other_pixels_above_threshold": float(hot[~strokes].mean()),
        "test": clean_figures(model, cases, ready),
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
