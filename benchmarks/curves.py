"""Do bf16, recorded steps and our own kernels learn what float32 learns, launched kernel by kernel? Loss against step, for DMD.

    python benchmarks/curves.py DATA/manifest.csv --out curves.json [--epochs 40 40] [--seed 0] [--device auto]
    python benchmarks/curves.py --draw curves.json docs/figures/loss-curves      (.png and .pdf)

Both runs see the same batches, masks and noise: what differs is rounding.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from measure import machine
from reshift.reports.figures.style import ABNORMAL, NORMAL, PAGE, blank, save, style
from reshift.system.device import pick_device
from reshift.training.run import resolve, train_run

WAYS: dict[str, dict[str, Any]] = {"default": {}, "eager float32": {"amp": "off", "graphs": False}}
LABELS = {"default": "default: bf16, recorded, fused", "eager float32": "float32, kernel by kernel"}
LOSSES = {"autoencoder": ("loss", "Stage I: reconstruction, codebook, commitment"),
          "restoration": ("diffusion", "Stage II: noise prediction behind the mask")}  # fmt: skip


def losses(data: Path, way: str, epochs: list[int], seed: int, device: str) -> dict[str, list[tuple[int, float]]]:
    """Train once; step and loss of each stage."""
    train = {**WAYS[way], "log_every": 5, "cache": "off", "device": device}
    model = dict(zip(("stage1_epochs", "stage2_epochs"), epochs, strict=True))
    config = resolve("dmd", "paper", [{"seed": seed, "train": train, "model": model, "calibrate": {"features": "off"}}])
    with tempfile.TemporaryDirectory() as folder:
        train_run(config, data, Path(folder) / "run")
        return read((Path(folder) / "run" / "log.jsonl").read_text().splitlines())


def read(lines: list[str]) -> dict[str, list[tuple[int, float]]]:
    """Step and loss of each stage from a run's log."""
    records = [json.loads(line) for line in lines]
    return {stage: [(r["step"], r[name]) for r in records if r["stage"] == stage] for stage, (name, _) in LOSSES.items()}


def draw(found: dict[str, Any], path: Path) -> Path:
    """One panel for each stage."""
    with style():
        figure = blank(PAGE, 2.2)
        for ax, (stage, (_, title)) in zip(figure.subplots(1, len(LOSSES)), LOSSES.items(), strict=True):
            for way, colour in zip(WAYS, (NORMAL, ABNORMAL), strict=True):
                steps, values = zip(*found[way][stage], strict=True)
                ax.semilogy(steps, values, color=colour, lw=0.8, label=LABELS[way])
            ax.set(xlabel="step", ylabel="loss", title=title)
        figure.axes[0].legend(frameon=False)
        return save(figure, path)


def main() -> None:
    """Train both ways, or draw what an earlier call wrote."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--epochs", type=int, nargs=2, default=(40, 40), metavar=("STAGE1", "STAGE2"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--draw", type=Path, nargs=2, metavar=("JSON", "FIGURE"))
    options = parser.parse_args()
    if options.draw:
        print(draw(json.loads(options.draw[0].read_text()), options.draw[1]))
        return
    if options.data is None or options.out is None:
        parser.error("name a manifest and --out, or --draw")
    about = {**machine(pick_device(options.device)), "epochs": list(options.epochs), "seed": options.seed}
    found = {way: losses(options.data, way, list(options.epochs), options.seed, options.device) for way in WAYS}
    options.out.write_text(json.dumps({"machine": about, "data": options.data.resolve().parent.name, **found}) + "\n")


if __name__ == "__main__":
    main()
