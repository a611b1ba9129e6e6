"""How well do synthetic shifts, which `reshift select` ranks configurations by, agree with real lesions?

    python benchmarks/bank.py RUN/bundle DATA/manifest.csv [--out bank.json]

The bundle is of the method `reshift` and has held-out normals. Its witnesses are combined in every way; each combination is a
configuration, which is measured on shifts planted in the held-out normals and on the labelled test split, which needs masks. The
script prints the rank correlation of the two, and what is lost on real lesions by choosing the bank's best.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from measure import judge_bundle
from reshift.data.cases import Case, expand_volumes
from reshift.data.manifest import load_cases
from reshift.data.prepare import Prepared, prepare, prepare_mask
from reshift.data.read import read_image, read_mask
from reshift.evaluation.metrics.image import roc_auc
from reshift.evaluation.metrics.pixels import PixelMetrics
from reshift.evaluation.shift_bank import KINDS, apply_shift
from reshift.inference.model import Model, load_model
from reshift.methods.reshift.fusion import Fusion
from reshift.training.run import split_normals

SHIFTED = 48  # shifted images per kind, at least


class Maps:
    """What the witnesses say of some images, once for all combinations, and where the truth is."""

    def __init__(self, model: Model, pixels: Sequence[NDArray[np.float32]], masks: Sequence[NDArray[np.bool_]]) -> None:
        self.masks = masks
        with torch.inference_mode():
            self.said = [model.detector.witness_maps(torch.from_numpy(image[None])) for image in pixels]

    def judge(self, fusion: Fusion) -> tuple[float | None, float | None]:
        """AUC and pixel AP."""
        pixels, scores = PixelMetrics(None), list[float]()
        with torch.inference_mode():
            for (maps, inside), mask in zip(self.said, self.masks, strict=True):
                score, heatmap = fusion(maps, inside)
                scores.append(float(score))
                pixels.add(heatmap[0].numpy(), mask)
        return roc_auc(np.array([bool(mask.any()) for mask in self.masks]), np.array(scores)), pixels.ap()


def combined(model: Model, normals: Maps) -> Iterator[tuple[str, Fusion]]:
    """Every combination of witnesses, measured over the held-out normals."""
    detector = model.detector
    kinds = [str(witness.kind) for witness in detector.witnesses]
    settings, named = detector.settings, [kind for kind in dict.fromkeys(kinds) if kind != "overall"]
    for chosen in chain.from_iterable(combinations(named, n) for n in range(1, len(named) + 1)):
        heard = [kind in (*chosen, "overall") for kind in kinds]
        share = {"top": settings.top, "map_share": settings.map_share, "overall_share": settings.share_of_overall}
        fusion = Fusion(kinds, heard, dict(settings.weights), dict(settings.score_weights), **share)
        fusion.fit((maps, inside) for maps, inside in normals.said)
        yield " + ".join(chosen), fusion


def mask_of(case: Case, image: Prepared) -> NDArray[np.bool_]:
    """The lesion on the network's grid."""
    size = image.pixels.shape[-1]
    if case.label == 0:
        return np.zeros((size, size), bool)
    if case.mask is None:
        raise SystemExit(f"{case.name} has no mask")
    return prepare_mask(read_mask(case.mask, case.image, case.slice), image.geometry, size)


def rank_correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Spearman's, of values without ties."""
    return float(np.corrcoef(a.argsort().argsort(), b.argsort().argsort())[0, 1])


def collect(model: Model, data: Path) -> tuple[Maps, list[Maps], Maps]:
    """The held-out normals, the bank made of them, kind by kind, and the test images."""
    config = model.bundle.config

    def read(case: Case) -> Prepared:
        return prepare(read_image(case.image, case.slice, config.data.max_pixels), config.data)

    cases = load_cases(data, config.data.subject)
    learned = expand_volumes([case for case in cases if case.split != "test"], config.data)
    held = [read(case).pixels for case in split_normals(learned, config, data)[1]]
    normals = Maps(model, held, [np.zeros(image.shape[1:], bool) for image in held])
    print(f"{len(held)} held-out normals", flush=True)
    bank = list[Maps]()
    for kind in KINDS:
        found = [apply_shift(x, kind, (0, again, i)) for again in range(-(-SHIFTED // len(held))) for i, x in enumerate(held)]
        bank.append(Maps(model, [item.pixels for item in found], [item.mask for item in found]))
        print(kind, flush=True)
    tests = [(case, read(case)) for case in expand_volumes([case for case in cases if case.split == "test"], config.data)]
    return normals, bank, Maps(model, [image.pixels for _, image in tests], [mask_of(case, image) for case, image in tests])


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """How the bank's ranking agrees with the real ones."""
    planted, *real = np.array([[row["bank AP"], row["AP_pix"], row["AUC"]] for row in rows]).T
    best, found = int(planted.argmax()), dict[str, float](configurations=len(rows))
    for name, values in zip(("AP_pix", "AUC"), real, strict=True):
        found[f"rank correlation with {name}"] = rank_correlation(planted, values)
        found[f"{name} lost by the bank's choice"] = float(values.max() - values[best])
    return found


def rank(bundle: Path, data: Path) -> dict[str, Any]:
    """Every combination by the bank and by real lesions, and how the two agree."""
    model, rows = load_model(bundle, "cpu"), list[dict[str, Any]]()
    normals, bank, real = collect(model, data)
    for name, fusion in combined(model, normals):
        auc, ap = real.judge(fusion)
        planted = float(np.mean([maps.judge(fusion)[1] or 0.0 for maps in bank]))
        rows.append({"witnesses": name, "bank AP": planted, "AP_pix": ap, "AUC": auc})
    return {"rows": rows, **summary(rows)}


if __name__ == "__main__":
    judge_bundle(__doc__, rank)
