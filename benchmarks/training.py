"""Training speed: milliseconds per step of every stage, in the real training loop, beside plain PyTorch on a GPU.

    python benchmarks/training.py [--method dmd] [--steps 400] [--data manifest.csv]
    python benchmarks/training.py --recipe          # DMD's whole training as in the paper: 4,211 images, 250 + 300 epochs

Phantom images, one batch per epoch; the second half of the steps counts. The mean loss of the last quarter shows
that all variants learn the same: they see the same batches and random numbers, and differ only by rounding.
"""

import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from measure import MIB, Rows, options
from reshift.data.phantom import write_phantom
from reshift.training.run import resolve, train_run

VARIANTS: dict[str, tuple[dict[str, Any], str]] = {  # settings of [train], RESHIFT_KERNELS
    "plain PyTorch, float32": ({"amp": "off", "graphs": False}, "off"),
    "plain PyTorch, autocast": ({"graphs": False}, "off"),
    "default": ({}, "auto"),
}


class StageLog(NamedTuple):
    """What a stage logged: its steps, the seconds since training began, its losses."""

    steps: list[int]
    seconds: list[float]
    losses: list[float]

    @property
    def step_ms(self) -> float:
        """Milliseconds per step over the second half."""
        middle = len(self.steps) // 2
        return 1e3 * (self.seconds[-1] - self.seconds[middle]) / (self.steps[-1] - self.steps[middle])

    @property
    def final_loss(self) -> float:
        """Mean loss of the last quarter."""
        return statistics.mean(self.losses[-max(1, len(self.losses) // 4) :])


def train(method: str, data: Path, out: Path, *layers: dict[str, Any]) -> dict[str, StageLog]:
    """Train once and read the log."""
    quiet = {"calibrate": {"features": "off", "training_sample": 8}, "data": {"holdout": 0.0}, "train": {"cache": "off"}}
    train_run(resolve(method, "paper", [quiet, *layers]), data, out)
    stages = dict[str, StageLog]()
    for line in (out / "log.jsonl").read_text().splitlines():
        record = json.loads(line)
        stage = stages.setdefault(record["stage"], StageLog([], [], []))
        stage.steps.append(record["step"])
        stage.seconds.append(record["seconds"])
        stage.losses.append(record["loss"])
    return stages


def lengths(method: str, epochs: int) -> dict[str, int]:
    """Settings that make every stage this long."""
    return {name: epochs for name in resolve(method, "paper", []).model if name.endswith("epochs") or name == "steps"}


def compare(rows: Rows, method: str, data: Path, folder: Path, steps: int, device: str) -> None:
    """Every variant in turn; on a CPU there is only the default."""
    cuda = device != "cpu" and torch.cuda.is_available()
    model = {"train": {"device": device, "log_every": max(1, steps // 20)}, "model": lengths(method, steps)}
    plain = dict[str, float]()
    for variant, (settings, kernels) in VARIANTS.items() if cuda else [("default", VARIANTS["default"])]:
        os.environ["RESHIFT_KERNELS"] = kernels
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        for stage, log in train(method, data, folder / variant, model, {"train": settings}).items():
            rows.add("training", f"{method}, {stage}: {variant}", log.step_ms, "ms per step")
            rows.add("training", f"{method}, {stage}: {variant}, loss at the end", log.final_loss, "")
            if variant == "default" and stage in plain:
                rows.add("training", f"{method}, {stage}: default", plain[stage] / log.step_ms, "× plain PyTorch, float32")
            plain.setdefault(stage, log.step_ms)
        if cuda:
            rows.add("training", f"{method}: {variant}, peak", torch.cuda.max_memory_allocated() / MIB, "MiB")


def recipe(rows: Rows, folder: Path, device: str) -> None:
    """Both stages of DMD as long as in the paper; seconds count from the first step's preparation on."""
    data = write_phantom(folder / "data", train=4211, test_normal=0, test_abnormal=0, size=128)
    begun = time.perf_counter()
    epochs = {"stage1_epochs": 250, "stage2_epochs": 300}
    stages = train("dmd", data, folder / "run", {"train": {"device": device}, "model": epochs})
    total, before = time.perf_counter() - begun, 0.0
    for stage, log in stages.items():
        rows.add("recipe", stage, log.seconds[-1] - before, "s")
        before = log.seconds[-1]
    rows.add("recipe", "with reading, thresholds and the bundle", total, "s")


def main() -> None:
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument("--method", default="dmd")
    parser.add_argument("--steps", type=int, help="per stage; default: 400, on a CPU 12")
    parser.add_argument("--data", type=Path, help="manifest or folder of your own; --steps then counts epochs")
    parser.add_argument("--recipe", action="store_true", help="the paper's whole training, once")
    given = parser.parse_args()
    rows, cuda = Rows(), given.device != "cpu" and torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.recipe:
            recipe(rows, folder, given.device)
        else:
            batch = resolve(given.method, "paper", []).train.batch
            data = given.data or write_phantom(folder / "data", train=batch, test_normal=0, test_abnormal=0, size=128)
            compare(rows, given.method, data, folder, given.steps or (400 if cuda else 12), given.device)
    rows.print(given.device, given.out)


if __name__ == "__main__":
    main()
