"""Inference speed of the network alone: DMD beside the plain loop over masks, every method, and how time and memory
grow.

    python benchmarks/inference.py [--only variants methods growth] [--methods dmd reshift] [--images 32] [--device cpu]

The plain loop is Algorithm 2 as printed: float32, torch's own kernels, one mask after the other, the whole image
decoded for each. Networks have random weights. A batch counts from prepared images in memory to scores and
heat-maps in memory.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from measure import Rows, exponent, noise, options, peak_mib, predict, timed, untrained
from reshift import methods
from reshift.inference.model import Model

PLAIN = {"RESHIFT_KERNELS": "off", "RESHIFT_AMP": "off"}
VARIANTS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {  # environment, settings of [model]
    "plain loop over masks": (PLAIN, {"inference_rows": 1}),
    "all masks at once, torch's kernels": (PLAIN, {}),
    "float32": ({"RESHIFT_AMP": "off"}, {}),
    "bf16": ({"RESHIFT_AMP": "bf16"}, {}),
    "default": ({}, {}),
}
CHAINS = ("ddpm", "anoddpm", "autoddpm", "thor-gaussian", "thor-simplex", "diffuse")  # here they take every fifth step
WARMUP = 5  # calls before the clock: a GPU records a prediction at the fourth
GRIDS = {16: (8, 8), 49: (8, 4), 169: (8, 2), 400: (13, 1)}  # masks on the 32×32 grid of 256-pixel images: (side, stride)
WIDTHS = {0.5: [64, 96, 128], 1.0: [128, 192, 256], 2.0: [256, 384, 512]}


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the time of a block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def variants(rows: Rows, device: str, size: int) -> None:
    """Images per second of DMD, and the largest difference of its heat-maps (range 0 to 2) from the plain loop's."""
    slowest, x = 0.0, noise(2, size)
    expected: NDArray[np.float32] | None = None
    for name, (variables, settings) in VARIANTS.items():
        with environment(variables):
            model = untrained("dmd", device, {"data": {"size": size}, "model": settings})
            if "torch's" in name or "plain" in name:
                model.replays = None
            found = predict(model, x)
            batches = [1] if not slowest or model.device.type == "cpu" else [1, model.batch, 4 * model.batch]
            for batch in batches:
                timing = timed(partial(run, model, batch), repeats=3, warmup=1 if model.device.type == "cpu" else WARMUP)
                rate = rows.rate("variants", f"{name}, batch {batch}", batch, timing)
                slowest = slowest or rate
                rows.add("variants", f"{name}, batch {batch}", rate / slowest, "× plain loop")
        expected = found if expected is None else expected
        rows.add("variants", f"{name}: largest difference", float(np.abs(found - expected).max()), "of 2")


def run(model: Model, images: int) -> None:
    """One call with a batch of this size."""
    model.launch(noise(images, model.bundle.config.data.size))()


def every_method(rows: Rows, device: str, names: list[str]) -> None:
    """Images per second of each method, paper profile, in its own batches."""
    for name in names:
        chain = name in CHAINS
        model = untrained(name, device, *([{"model": {"stride": 5}}] if chain else []))
        timing = timed(partial(run, model, model.batch), repeats=1 if chain else 5, warmup=1 if chain else WARMUP)
        rows.rate("methods", f"{name}, batch {model.batch}", model.batch, timing)
        del model


def growth(rows: Rows, device: str, images: int) -> None:
    """Seconds and peak memory of DMD against the number of images, their size, the masks and the denoiser's width."""
    cuda = device != "cpu" and torch.cuda.is_available()

    def dmd(size: int = 128, **settings: Any) -> Model:
        return untrained("dmd", device, {"data": {"size": size}, "model": settings})

    def by_size(size: int) -> Callable[[], object]:
        stride = size // 64  # side and stride follow the latent grid, so that every size has 49 masks
        model = dmd(size, mask_side=size // 8 - 6 * stride, mask_stride=stride)
        return lambda: predict(model, noise(images, size))

    def by_masks(masks: int) -> Callable[[], object]:
        model = dmd(256, mask_side=GRIDS[masks][0], mask_stride=GRIDS[masks][1])
        return lambda: predict(model, noise(images, 256))

    def by_width(factor: float) -> Callable[[], object]:
        model = dmd(unet_widths=WIDTHS[factor])
        return lambda: predict(model, noise(images))

    model = dmd()
    grow(rows, "images", [images, 2 * images, 4 * images, 8 * images], lambda n: lambda: predict(model, noise(n)))
    grow(rows, "size", [64, 128, 256, 512] if cuda else [64, 128], by_size)
    if cuda:
        grow(rows, "masks", list(GRIDS), by_masks)
        grow(rows, "width of the denoiser", list(WIDTHS), by_width)


def grow(rows: Rows, what: str, values: list[Any], work: Callable[[Any], Callable[[], object]]) -> None:
    """One quantity grows, the others stay."""
    seconds = []
    for value in values:
        job = work(value)
        rows.add(
            "growth",
            f"{what} = {value}: peak",
            peak_mib(job, torch.device("cuda" if torch.cuda.is_available() else "cpu")),
            "MiB",
        )
        timing = timed(job, repeats=3)
        seconds.append(timing.median)
        rows.add("growth", f"{what} = {value}", timing.median, "s", timing.low, timing.high)
    rows.add("growth", f"seconds against {what}", exponent(values, seconds), "exponent")


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=["variants", "methods", "growth"], default=["variants", "methods", "growth"])
    parser.add_argument("--methods", nargs="+", help="default: all, on a CPU dmd and reshift")
    parser.add_argument("--size", type=int, default=128, help="of the images of variants")
    parser.add_argument("--images", type=int, help="of growth; default: 32, on a CPU 1")
    given = parser.parse_args()
    rows, cuda = Rows(), given.device != "cpu" and torch.cuda.is_available()
    images = given.images or (32 if cuda else 1)
    if "variants" in given.only:
        variants(rows, given.device, given.size)
    if "methods" in given.only:
        every_method(rows, given.device, given.methods or (list(methods.METHODS) if cuda else ["dmd", "reshift"]))
    if "growth" in given.only:
        growth(rows, given.device, images)
    rows.print(given.device, given.out)


if __name__ == "__main__":
    main()
