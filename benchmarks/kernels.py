"""What every fast part of ``reshift.kernels`` is worth: each is left out in turn, and torch.compile is tried in place of them.

    PYTHONPATH=src python3 benchmarks/kernels.py --out kernels.json --minutes 8
    PYTHONPATH=src python3 benchmarks/kernels.py --device cpu --tiny          # does the script work?

Every variant runs in a process of its own. Steps are those of the training loop (losses, backward pass, clipping, AdamW, CUDA
graphs) on one batch that stays on the device; scoring includes the copies to the device and back. Networks are untrained.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from measure import machine, noise
from reshift.config import Config
from reshift.errors import UserError
from reshift.inference.bundle import Bundle, build
from reshift.inference.model import Model
from reshift.kernels import accelerate
from reshift.kernels.available import VARIABLE
from reshift.kernels.graphs import Recorder
from reshift.kernels.table import OTHERS, TWINS
from reshift.methods.detector import Stage, Step
from reshift.system.device import device_scope, pick_device, to_device
from reshift.training.run import resolve
from reshift.training.step import after_step, make_optimisers, one_step

NAMES = list(dict.fromkeys(row.name for row in TWINS))
COMPILED = "torch.compile, all twins off"
VARIANTS = {  # name → what RESHIFT_KERNELS leaves out; the most important first
    "all on": "auto",
    "all twins off": ",".join(NAMES),
    COMPILED: ",".join([*NAMES, "bf16_weights"]),
    **{f"without {name}": name for name in (*NAMES, *OTHERS)},
}
SMALL_DMD = {"widths": [8, 16], "d_z": 8, "codes": 16, "unet_widths": [16, 32], "classifier_widths": [8], "classifier_hidden": 8}
TINY: dict[str, dict[str, Any]] = {
    "dmd": {"data": {"size": 32}, "train": {"batch": 4}, "model": SMALL_DMD},
    "reshift": {
        "data": {"size": 32},
        "train": {"batch": 4},
        "model": {"widths": [8, 8, 8, 8], "denoising_widths": [8, 8, 8], "folds": 2},
    },
}  # fmt: skip
Row = dict[str, Any]


def measured(work: Callable[[], object], device: torch.device, *, quick: bool, calls: int) -> list[float]:
    """Seconds per call in some blocks of calls, sorted. On a GPU the first calls compile kernels and record graphs."""
    repeats, calls = (3, max(1, calls // 5)) if quick else (7, calls)
    for _ in range(6 if device.type == "cuda" else 1):
        work()
    seconds = []
    for _ in range(repeats):
        _finish(device)
        begun = time.perf_counter()
        for _ in range(calls):
            work()
        _finish(device)
        seconds.append((time.perf_counter() - begun) / calls)
    return sorted(seconds)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def row(metric: str, seconds: list[float], images: int | None = None) -> Row:
    """Milliseconds per step or, with ``images`` per call, images per second: median, lowest and highest."""
    values = sorted(images / s if images else 1e3 * s for s in seconds)
    return {"metric": metric, "value": values[len(values) // 2], "low": values[0], "high": values[-1]}


def configured(method: str, *, tiny: bool) -> Config:
    """The paper profile; without pretrained features where they are not installed."""
    layers = [TINY[method]] if tiny else []
    try:
        build(resolve(method, "paper", layers))
    except UserError as err:
        print(f"{method}: {err}", file=sys.stderr)
        layers = [*layers, {"model": {"features": "off"}}]
    return resolve(method, "paper", layers)


def compile_networks(detector: nn.Module) -> None:
    """``torch.compile`` for every network, in place."""
    for name, network in detector.named_modules():
        if name.split(".")[-1] in ("encoder", "decoder", "denoiser", "shift") or "members" in name.split(".")[-2:-1]:
            network.compile()


def step_seconds(detector: Any, stage: Stage, config: Config, device: torch.device, *, quick: bool) -> list[float]:
    """Seconds of one training step of a stage."""
    detector.eval().requires_grad_(False)
    for part in (part for objective in stage.objectives for part in objective.modules):
        part.train().requires_grad_(True)
    trained = make_optimisers(stage.objectives, detector, config.train, device)
    step = Step(torch.Generator(device))
    recorder = Recorder(step.generator, enabled=config.train.graphs)
    batch = config.train.batch // stage.folds * stage.folds
    x = torch.rand(batch, 1, config.data.size, config.data.size, device=device) * 2.0 - 1.0
    run: Callable[[Tensor], dict[str, Tensor]] = partial(one_step, trained, step=step, config=config.train)

    def work() -> None:
        step.generator.manual_seed(0)
        recorder("step", run, x)
        after_step(trained, step)

    return measured(work, device, quick=quick, calls=50 if device.type == "cuda" else 1)


def measure_method(method: str, device: torch.device, *, compiled: bool, tiny: bool, quick: bool) -> Iterator[Row]:
    """A training step of every stage that has one, and scoring."""
    config, gpu = configured(method, tiny=tiny), device.type == "cuda"
    detector: Any = accelerate(to_device(build(config), device), device)
    if compiled:
        compile_networks(detector)
    stages = [stage for stage in detector.stages() if stage.objectives]
    for stage in stages if method == "dmd" else stages[-1:]:  # the first stages of reshift are those of dmd
        yield row(f"{method}, {stage.name}: ms per step", step_seconds(detector, stage, config, device, quick=quick))
    model = Model(Bundle(detector.eval().requires_grad_(False), config, None, {}, ""), str(device))
    pixels = noise(model.batch, config.data.size)

    def score() -> None:
        model.launch(pixels)()

    seconds = measured(score, device, quick=quick, calls=10 if gpu else 1)
    yield row(f"{method}, scoring: images per second", seconds, len(pixels))


def run_variant(options: argparse.Namespace) -> None:
    """Measure one variant in this process and print its rows as they come, one JSON object per line."""
    device, compiled = pick_device(options.device), options.variant == COMPILED
    for method in ("dmd", "reshift"):
        try:
            with device_scope(device):
                for found in measure_method(method, device, compiled=compiled, tiny=options.tiny, quick=options.quick):
                    print(json.dumps(found), flush=True)
        except Exception as err:  # a variant that fails is a result, too
            print(json.dumps({"metric": method, "error": f"{type(err).__name__}: {err}"[:500]}), flush=True)


def start_variant(name: str, options: argparse.Namespace, seconds: float) -> list[Row]:
    """Run a variant in a process of its own, for at most so many seconds."""
    flags = [flag for flag in ("--tiny", "--quick") if getattr(options, flag[2:])]
    command = [sys.executable, __file__, "--variant", name, "--device", options.device, *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, VARIABLE: VARIANTS[name]})
    try:
        out, _ = process.communicate(timeout=seconds)
        ended = [] if process.returncode == 0 else [{"metric": "all", "error": f"exit code {process.returncode}"}]
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        ended = [{"metric": "all", "error": f"stopped after {seconds:.0f} s"}]
    return [{"variant": name, **each} for each in (*map(json.loads, out.splitlines()), *ended)]


def main() -> None:
    """Measure the variants in their order until the time is up; rows are written after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, …")
    parser.add_argument("--out", type=Path, help="also write the rows to this JSON file")
    parser.add_argument("--minutes", type=float, default=30.0, help="start no variant after this time")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds for one variant at most")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--tiny", action="store_true", help="small networks and images, to try the script")
    parser.add_argument("--only", nargs="+", default=list(VARIANTS), metavar="VARIANT", help=" | ".join(VARIANTS))
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.variant:
        run_variant(options)
        return
    begun, rows = time.monotonic(), list[Row]()
    for name in options.only:
        if time.monotonic() - begun > 60.0 * options.minutes:
            break
        rows += start_variant(name, options, options.timeout)
        for each in rows:
            if each["variant"] == name:
                print(f"{name:<32} {each['metric']:<40} {each.get('error') or format(each['value'], '.4g')}", flush=True)
        if options.out:
            facts = {"machine": machine(options.device), "quick": options.quick, "rows": rows}
            options.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
