"""Speed of the default method by torch and by exported models, as ratios of one run.

    python benchmarks/export.py [--profile quick] [--formats onnx openvino torch] [--repeats 7] [--images 4]

The runtimes take turns, so that other programs on the machine slow all of them alike. Images go one by one, as ``reshift
score`` sends them on a CPU. The network has random weights.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from measure import Rows, options
from reshift.export.formats import FORMATS, write_model
from reshift.export.trace import trace_predictor
from reshift.inference.bundle import Bundle, build
from reshift.inference.exported.load import load_openvino, load_runner
from reshift.inference.model import Model
from reshift.training.run import resolve

Run = Callable[[Any], object]


def runners(method: str, profile: str, formats: list[str]) -> tuple[dict[str, Run], int]:
    """What predicts, by name, and the side of the images. The graph is traced before layers get their fast twins."""
    config = resolve(method, profile, [])
    detector = build(config).eval().requires_grad_(False)
    program = trace_predictor(detector, config.data.size, config.data.channels)
    found: dict[str, Run] = {}
    with tempfile.TemporaryDirectory() as aside:
        for kind in ("onnx", "torch"):
            write_model(program, kind, Path(aside))
            if kind in formats:
                found[kind] = load_runner(Path(aside) / FORMATS[kind].model)
        if "openvino" in formats:
            found["openvino"] = load_openvino(Path(aside) / FORMATS["onnx"].model)
    model = Model(Bundle(detector, config, None, {}, ""), "cpu")
    return {"torch, as reshift score": lambda x: model.launch(x)(), **found}, config.data.size


def seconds(run: Run, images: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Wall and CPU seconds for all images, one by one."""
    wall, cpu = time.perf_counter(), time.process_time()
    for image in images:
        run(image[None])
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument("--method", default="reshift")
    parser.add_argument("--profile", default="quick")
    parser.add_argument("--formats", nargs="+", default=["onnx", "openvino", "torch"], choices=["onnx", "openvino", "torch"])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--images", type=int, default=4)
    given = parser.parse_args()
    found, side = runners(given.method, given.profile, given.formats)
    images = np.random.default_rng(0).uniform(-1.0, 1.0, (given.images, 1, side, side)).astype(np.float32)
    for run in found.values():
        run(images[:1])  # what is done once
    times = [{name: seconds(run, images) for name, run in found.items()} for _ in range(given.repeats)]
    rows, first = Rows(), next(iter(found))
    for name in found:
        for kind, i in (("wall", 0), ("CPU", 1)):
            ratios = [turn[first][i] / turn[name][i] for turn in times]
            rows.add("export", f"{name}: {kind}", statistics.median(ratios), "× torch", min(ratios), max(ratios))
        wall = [given.images / turn[name][0] for turn in times]
        rows.add("export", f"{name}", statistics.median(wall), "images/s", min(wall), max(wall))
    rows.print("cpu", given.out)


if __name__ == "__main__":
    main()
