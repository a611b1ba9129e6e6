"""The paper's whole recipe, once: both stages of DMD on as many images as the paper's largest set has, by the clock.

    python benchmarks/recipe.py [--images 4211] [--epochs 250 300] [--device auto] [--out recipe.json] [--set train.amp=off …]

Phantom pictures, since only their number and size matter here. Seconds count from the first step's preparation to the last step;
reading 4,211 files, and thresholds and the bundle afterwards, are in "all in all" only.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import machine
from reshift.config import assignment
from reshift.data.phantom import write_phantom
from reshift.system.device import pick_device
from reshift.training.run import resolve, train_run


def seconds_by_stage(log: Path) -> dict[str, float]:
    """When each stage logged last, less the stage before."""
    ends = dict[str, float]()
    for line in log.read_text().splitlines():
        record = json.loads(line)
        ends[record["stage"]] = record["seconds"]
    starts = [0.0, *list(ends.values())[:-1]]
    return {stage: end - start for (stage, end), start in zip(ends.items(), starts, strict=True)}


def main() -> None:
    """Train, and say how long it took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=4211)
    parser.add_argument("--epochs", type=int, nargs=2, default=(250, 300), metavar=("STAGE1", "STAGE2"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    options = parser.parse_args()
    os.environ["RESHIFT_CACHE"] = "off"  # a stage that is taken from a cache takes no time
    epochs = dict(zip(("stage1_epochs", "stage2_epochs"), options.epochs, strict=True))
    config = resolve("dmd", "paper", [
        {"data": {"holdout": 0.0}, "train": {"device": options.device}, "model": epochs},
        *map(assignment, options.settings),
    ])  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        data = write_phantom(Path(folder) / "data", train=options.images, test_normal=0, test_abnormal=0, size=128)
        begun = time.perf_counter()
        train_run(config, data, Path(folder) / "run")
        total = time.perf_counter() - begun
        found: dict[str, Any] = {**seconds_by_stage(Path(folder) / "run" / "log.jsonl"), "all in all": total}
    for name, seconds in found.items():
        print(f"{name:24s} {seconds:8.1f} s", flush=True)
    if options.out:
        about = {**machine(pick_device(options.device)), "images": options.images, "epochs": list(options.epochs)}
        options.out.write_text(json.dumps({**about, "settings": options.settings, "seconds": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
