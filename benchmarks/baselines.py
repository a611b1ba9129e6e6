"""Every method on real sets, trained for a stated number of updates: quality, training time, images a second.

    python benchmarks/baselines.py DATA OUT --sets lgg_flair busi [--methods dae patchcore …] [--seeds 0] [--smoke]
    python benchmarks/baselines.py DATA OUT --sets lgg_flair busi --methods my.toml other.toml [--bank]

A method is one of the table below, or a config file, which is named by its stem; ``--bank`` adds what ``reshift select`` says.
DATA holds a folder per set with its manifest.csv. Each cell is one JSON file in OUT; finished cells are not run again. The
authors' numbers of epochs (configs/) are far more than these: the updates are in the table below and in every cell.
"""

import argparse
import io
import json
import multiprocessing
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import redirect_stderr
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from measure import machine
from reshift.config import Config, merge, read_toml
from reshift.data.manifest import Case, load_cases
from reshift.data.prepare import prepare_mask
from reshift.data.read import read_image, read_mask
from reshift.metrics.confidence import image_intervals, pixel_intervals
from reshift.metrics.image import image_metrics
from reshift.metrics.pixels import PixelMetrics
from reshift.pipeline import resolve, split_normals, train_run
from reshift.predict import Model, load_model
from reshift.select import judge


class Recipe(NamedTuple):
    """Updates by the setting that counts their epochs, and what else differs from the authors' config."""

    updates: dict[str, int]
    change: Mapping[str, Any] = MappingProxyType({})


COSINE = {"train": {"schedule": "cosine"}}
STRIDE = {"model": {"stride": 5}}  # every fifth step of the chains
FAMILY = Recipe({"epochs": 1500}, merge(COSINE, STRIDE))
RECIPES: dict[str, Recipe] = {
    "brightness": Recipe({}),
    "area": Recipe({}),
    "patchcore": Recipe({}),
    "ae": Recipe({"epochs": 1500}),
    "vae": Recipe({"epochs": 1500}),
    "dae": Recipe({"epochs": 2000}),
    "fanogan": Recipe({"gan_epochs": 1500, "encoder_epochs": 750}),
    "ddpm": FAMILY,
    "autoddpm": FAMILY,
    "thor-gaussian": FAMILY,
    "diffuse": Recipe({"epochs": 1500}, merge(COSINE, {"model": {"stride": 25}})),
    "cddpm": Recipe({"pretraining_epochs": 300, "denoiser_epochs": 600}, {"train": {"batch": 16, "schedule": "cosine"}}),
    # In so few updates the mask head learns nothing at the authors' weight of 0.001.
    "madad": Recipe(
        {"autoencoder_epochs": 1000, "denoiser_epochs": 2000},
        {"train": {"batch": 32, "lr": 2e-4}, "model": {"mask_weight": 1.0}},
    ),
    "anoddpm": FAMILY,
    "thor-simplex": FAMILY,
}


class Truth(NamedTuple):
    """The test split: network inputs, masks, labels and subjects."""

    pixels: NDArray[np.float32]  # (n, C, S, S)
    masks: list[NDArray[np.bool_] | None]
    labels: NDArray[np.bool_]
    subjects: list[str]


def config_of(method: str, seed: int, data: Path, *, smoke: bool) -> Config:
    """The authors' profile with this file's number of updates, or a config file's settings."""
    layer = {"seed": seed, "calibrate": {"features": "off", "training_sample": 64}}
    if method not in RECIPES:
        return resolve(None, "paper", [read_toml(Path(method)), layer])
    recipe = RECIPES[method]
    base = resolve(method, "paper", [layer, dict(recipe.change)])
    kept, _ = split_normals(load_cases(data), base, data)
    per_epoch = -(-len(kept) // min(base.train.batch, len(kept)))
    epochs = {name: -(-(12 if smoke else updates) // per_epoch) for name, updates in recipe.updates.items()}
    return resolve(method, "paper", [layer, dict(recipe.change), {"model": epochs}])


def load_truth(model: Model, cases: Sequence[Case]) -> Truth:
    """Read the test images as the model wants them."""
    pixels, masks = [], list[NDArray[np.bool_] | None]()
    for case in cases:
        ready = model.prepare(read_image(case.image))
        pixels.append(ready.pixels)
        size = model.bundle.config.data.size
        masks.append(prepare_mask(read_mask(case.mask), ready.geometry, size) if case.mask else None)
    return Truth(np.stack(pixels), masks, np.array([case.label == 1 for case in cases]), [case.subject for case in cases])


def score(model: Model, truth: Truth) -> tuple[NDArray[np.float64], NDArray[np.float32], float]:
    """Scores, maps and images a second, the first batch left out of the clock."""
    model.run(truth.pixels[: model.batch])
    scores, maps, begun = list[float](), [], time.perf_counter()
    for start in range(0, len(truth.pixels), model.batch):
        part, heat = model.run(truth.pixels[start : start + model.batch])  # brings results back, hence waits for them
        scores += part
        maps.append(heat)
    return np.array(scores), np.concatenate(maps), len(scores) / (time.perf_counter() - begun)


def measured(cell: Path, about: dict[str, Any], truth: Truth, scores: NDArray[np.float64], maps: NDArray[np.float32]) -> None:
    """Compute the figures and write the cell; runs beside the next method's training."""
    thresholds = about.pop("thresholds")
    pixels = PixelMetrics(thresholds["pixel"])
    for heat, mask, label, subject in zip(maps, truth.masks, truth.labels, truth.subjects, strict=True):
        if mask is not None or not label:
            pixels.add(heat, mask, subject=subject)
    by_subject = pixels.by_subject() if pixels.lesion else None
    intervals = {"image": image_intervals(truth.labels, scores, truth.subjects, thresholds["image"])}
    if by_subject is not None:
        intervals["pixel"] = pixel_intervals(by_subject)
    flat = np.sort(maps.reshape(len(maps), -1), axis=1)
    top = flat[:, -round(0.02 * flat.shape[1]) :].mean(axis=1, dtype=np.float64)
    figures = {
        "image": image_metrics(truth.labels, scores, thresholds["image"]),
        "image_by_top": image_metrics(truth.labels, top, None),  # the mean of the map's highest 2 % as another image score
        "pixel": pixels.result(),
    }
    cell.write_text(json.dumps({**about, **figures, "intervals": intervals}, indent=1) + "\n")


def run_cell(
    pool: ProcessPoolExecutor, cell: Path, method: str, data: Path, seed: int, *, smoke: bool, bank: bool
) -> Future[None]:
    """Train and score one method on one set."""
    config = config_of(method, seed, data, smoke=smoke)
    with tempfile.TemporaryDirectory() as run, redirect_stderr(io.StringIO()):
        model = load_model(train_run(config, data, Path(run) / "run"))
    reference = model.bundle.calibration.reference if model.bundle.calibration else None
    cases = [case for case in load_cases(data) if case.split == "test"]
    truth = load_truth(model, cases[:40] if smoke else cases)
    scores, maps, speed = score(model, truth)
    recipe = RECIPES.get(method, Recipe({}))
    about = {
        "method": Path(method).stem, "dataset": data.parent.name, "seed": seed, "machine": machine(model.device),
        "updates": recipe.updates, "changed": dict(recipe.change), "config": config.model_dump(mode="json"),
        "bank": judge(model, data) if bank else None,
        "train_seconds": model.bundle.facts["seconds"], "images_per_second": round(speed, 1),
        "thresholds": {"image": reference.image_threshold, "pixel": reference.pixel_threshold} if reference else {},
    }  # fmt: skip
    return pool.submit(measured, cell, about, truth, scores, maps)


def main() -> None:
    """Run what is missing; a method that fails is named, and the rest goes on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sets", nargs="+", required=True)
    parser.add_argument("--methods", nargs="+", default=list(RECIPES), help=f"config files, or of {', '.join(RECIPES)}")
    parser.add_argument("--bank", action="store_true", help="also judge on synthetic shifts in held-out normals")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--smoke", action="store_true", help="a dozen updates and 40 images each: does it run at all?")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(4, multiprocessing.get_context("spawn")) as pool:
        for name, seed, method in ((n, s, m) for n in args.sets for s in args.seeds for m in args.methods):
            cell, begun = args.out / f"{name}-{Path(method).stem}-{seed}.json", time.perf_counter()
            if cell.exists():
                continue
            try:
                run_cell(pool, cell, method, args.data / name / "manifest.csv", seed, smoke=args.smoke, bank=args.bank)
                print(f"{name} {method} {seed}: {time.perf_counter() - begun:.1f} s", flush=True)
            except Exception:
                print(f"{name} {method} {seed} failed:\n{traceback.format_exc(limit=-3)}", flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
