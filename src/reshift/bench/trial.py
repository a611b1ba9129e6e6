"""Time a few steps of a training and a prediction, to estimate what a configuration costs on this machine."""

import math
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from reshift.bench.cells import Spec
from reshift.bench.compute import training_config, training_split
from reshift.config import Config, merge, parse
from reshift.data.cases import Case
from reshift.data.source import Source
from reshift.inference.bundle import Bundle, build
from reshift.inference.model import Model
from reshift.methods.detector import Detector, Stage
from reshift.system.device import Rank, pick_device
from reshift.training.loop import batch_size, fit

TRIED_STEPS = {"cpu": 3, "cuda": 8}  # of each stage; on a GPU the first ones warm up and record a graph
SLOW_SECONDS = 10.0  # a prediction that takes longer is not repeated
PROBE = 2  # images: a batch that shows on a CPU whether whole batches take too long to try
PATIENCE = 8.0  # seconds for the tried steps of a stage; where they would take longer, a step is scaled up from PROBE images


class Rate(NamedTuple):
    """Seconds that the parts of a method take, and how they were found."""

    step: float  # an optimiser step, on average over the stages
    start: float  # per training image, before the first step
    image: float  # a prediction
    source: str
    by_stage: tuple[tuple[str, float], ...] = ()  # seconds of a step of each stage, where they are known

    def of(self, stage: str) -> float:
        """Seconds of a step of one stage."""
        return dict(self.by_stage).get(stage, self.step)


def measure(spec: Spec, device: str) -> Rate:
    """Time a few steps of every stage and a prediction."""
    config = parse(Config, merge(training_config(spec, device).model_dump(), {"train": {"cache": "off", "tensorboard": False}}))
    kept, _ = training_split(Path(spec.train_path), config)
    place = pick_device(device)
    source = TimedSource(kept[: batch_size(config.train.batch, len(kept), 1)], config, place)
    detector: Any = build(config)
    per_epoch = math.ceil(len(kept) / len(source))
    total, weighted, start, known = 0, 0.0, 0.0, list[tuple[str, float]]()
    for stage in detector.stages():
        count = stage.epochs * per_epoch if stage.steps is None else stage.steps
        step, begin = _time_steps(detector, stage, source, config, min(count, TRIED_STEPS[place.type]))
        total, weighted, start = total + count, weighted + count * step, start + begin / len(source)
        known.append((stage.name, step))
    image = _image_seconds(detector, source, config, device)
    return Rate(weighted / max(1, total), start, image, "from a few steps and predictions tried now", tuple(known))


def _time_steps(detector: Any, stage: Stage, source: "TimedSource", config: Config, count: int) -> tuple[float, float]:
    """Seconds of one step, and those before the first. On a CPU a step takes nearly in proportion to its images."""
    if source.device.type == "cpu" and stage.folds == 1 and len(source) > PROBE and count > 1:
        few = TimedSource(source.cases[:PROBE], config, source.device)
        step, begin = _time_stage(detector, stage, few, config, 3)
        whole = step * len(source) / len(few)
        if whole * count > PATIENCE:
            return whole, begin * len(source) / len(few)
    return _time_stage(detector, stage, source, config, count)


def _time_stage(detector: Any, stage: Stage, source: "TimedSource", config: Config, count: int) -> tuple[float, float]:
    """Return the seconds of one step and those before the first step; this runs the real training loop."""
    source.times.clear()
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        fit(_OneStage(detector, stage._replace(steps=count)), source, config, Path(folder), Rank(0, 1))
        source.mark()
    between = np.diff(source.times)
    before = source.times[0] - begun
    return (float(np.min(between[-2:])) if len(between) else 0.0), before  # the other may have waited for other programs


def _image_seconds(detector: Any, source: "TimedSource", config: Config, device: str) -> float:
    """Seconds of one prediction: of a batch on a GPU, of one image on a CPU, where long chains are cut short and added up."""
    model = Model(Bundle(detector.eval(), config, None, {}, ""), device)
    on_cpu = model.device.type == "cpu"
    pixels = source.batch(range(1 if on_cpu else min(len(source), model.batch))).cpu().numpy()
    seconds = _time_prediction(model, pixels, cut=on_cpu)
    if seconds < SLOW_SECONDS:  # the first one warms up
        seconds = _time_prediction(model, pixels, cut=on_cpu)
    return seconds / len(pixels)


def _time_prediction(model: Model, pixels: Any, *, cut: bool) -> float:
    chains = _CutChains()
    if cut:
        model.detector.track = chains
    begun = time.perf_counter()
    model.launch(pixels)()
    return time.perf_counter() - begun + chains.left_out


class _CutChains:
    """Takes the place of ``Detector.track``: runs the first two steps and the last one, and adds up the time of the others."""

    def __init__(self) -> None:
        self.left_out = 0.0

    def __call__(self, steps: Sequence[Any], _label: str) -> Iterator[Any]:
        if len(steps) <= 3:
            yield from steps
            return
        yield steps[0]
        begun = time.perf_counter()
        yield steps[1]
        self.left_out += (len(steps) - 3) * (time.perf_counter() - begun)
        yield steps[-1]


class TimedSource(Source):
    """A source of images that records when each training batch is taken."""

    def __init__(self, cases: Sequence[Case], config: Config, device: torch.device) -> None:
        super().__init__(cases, config.data, device)
        self.times = list[float]()

    def mark(self) -> None:
        """Record the time when the device has finished its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.times.append(time.perf_counter())

    def stream(self, chosen: Iterable[Sequence[int]]) -> Iterator[Tensor]:
        """Yield the batches."""
        for batch in super().stream(chosen):
            self.mark()
            yield batch


class _OneStage(Detector):
    """A detector with one of its stages."""

    def __init__(self, detector: nn.Module, stage: Stage) -> None:
        super().__init__()
        self.detector, self.stage = detector, stage

    def stages(self) -> Sequence[Stage]:
        return (self.stage,)
