"""Time a few steps of a training and a prediction, to estimate what a configuration costs on this machine."""

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from reshift.bench.cells import Spec, digest
from reshift.bench.compute import training_config, training_split
from reshift.config import Config, merge, parse
from reshift.data.cases import Case, expand_volumes
from reshift.data.manifest import load_cases
from reshift.data.source import Source
from reshift.evaluation.evaluate import normative_indices
from reshift.inference.bundle import Bundle, build
from reshift.inference.model import Model
from reshift.methods.detector import Detector, Stage
from reshift.reports.report import evaluate_with_report
from reshift.system.device import Rank, pick_device
from reshift.training.loop import batch_size, fit

TRIED_STEPS = {"cpu": 7, "cuda": 8}  # of each stage; the first half warms up, and on a GPU records a graph
LEAST_STEPS = 3
TRIED_PREDICTIONS = 5
SLOW_SECONDS = 10.0  # predictions are not repeated for longer
PROBE = 2  # images: a batch that shows on a CPU whether whole batches take too long to try
PATIENCE = 8.0  # seconds for the tried steps of a stage; where the least of them take longer, PROBE images are scaled up
FEW_TESTS, MANY_TESTS = 4, 20  # images of two short evaluations: what one more image costs, and what a cell costs once


class Rate(NamedTuple):
    """Seconds that the parts of a method take, and how they were found."""

    step: float  # an optimiser step, on average over the stages
    start: float  # per training image, before the first step
    image: float  # a prediction
    source: str
    by_stage: tuple[tuple[str, float], ...] = ()  # seconds of a step of each stage, where they are known
    by_predict: tuple[tuple[str, float], ...] = ()  # seconds of a prediction with other settings, see predict_key
    beside: float = 0.0  # per image beside its prediction: reading, features of the acquisition check, metrics, thumbnails
    cell: float = 0.0  # once per cell: intervals and the report
    batch: int = 0  # images of such a step on a CPU, where its time is nearly in proportion to them; 0 on a GPU

    def of(self, stage: str, batch: int) -> float:
        """Seconds of a step of one stage with ``batch`` images."""
        return dict(self.by_stage).get(stage, self.step) * (batch / self.batch if self.batch else 1.0)

    def image_of(self, predict: Mapping[str, Any]) -> float:
        """Seconds of a prediction with a cell's own prediction settings."""
        return dict(self.by_predict).get(predict_key(predict), self.image)


def predict_key(predict: Mapping[str, Any]) -> str:
    """Prediction settings without those that change thresholds only."""
    return digest({name: value for name, value in predict.items() if name != "calibrate"})


def measure(specs: Sequence[Spec], device: str) -> Rate:
    """Time a few steps of every stage, and predictions and an evaluation with the settings of each of ``specs``.

    They differ in these only, and share a training.
    """
    spec = specs[0]
    trial = {"cache": "off", "tensorboard": False, "patience": 0}
    config = parse(Config, merge(training_config(spec, device).model_dump(), {"train": trial}))
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
    others = {predict_key(other.predict): other.predict for other in specs if other.predict}
    by_predict = tuple((key, _image_seconds(_with(detector, config, p), source, config, device)) for key, p in others.items())
    found = Rate(weighted / max(1, total), start, image, "from a few steps and predictions tried now", tuple(known), by_predict)
    found = found._replace(batch=len(source) if place.type == "cpu" else 0)
    tests = expand_volumes([case for case in load_cases(Path(spec.test_path)) if case.split == "test"], config.data, [])
    model = _InstantModel(Bundle(detector.eval(), config, None, {}, ""), device)
    return _add_evaluation(found, model, tests, kept if spec.normative and model.detector.restores else [])


def _with(detector: Any, config: Config, predict: Mapping[str, Any]) -> Any:
    """The detector with other prediction settings."""
    found: Any = build(parse(Config, merge(config.model_dump(), dict(predict))))
    found.load_state_dict(detector.state_dict())
    return found


def _time_steps(detector: Any, stage: Stage, source: "TimedSource", config: Config, count: int) -> tuple[float, float]:
    """Seconds of one step, and those before the first. On a CPU a step takes nearly in proportion to its images."""
    if source.device.type == "cpu" and stage.folds == 1 and len(source) > PROBE and count > 1:
        few = TimedSource(source.cases[:PROBE], config, source.device)
        step, begin = _time_stage(detector, stage, few, config, LEAST_STEPS)
        whole = step * len(source) / len(few)
        if whole * min(count, LEAST_STEPS) > PATIENCE:
            return whole, begin * len(source) / len(few)
        count = min(count, max(LEAST_STEPS, int(PATIENCE / max(whole, 1e-6))))
    return _time_stage(detector, stage, source, config, count)


def _time_stage(detector: Any, stage: Stage, source: "TimedSource", config: Config, count: int) -> tuple[float, float]:
    """Return the seconds of one step and those before the first step; this runs the real training loop."""
    source.times.clear()
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        fit(_OneStage(detector, stage._replace(steps=count)), source, config, Path(folder), Rank(0, 1))
        source.mark()
    return warm_median(np.diff(source.times).tolist()), source.times[0] - begun


def warm_median(seconds: Sequence[float]) -> float:
    """The median of the later half: the first ones warm up, and a single one may have waited for other programs."""
    return statistics.median(seconds[len(seconds) // 2 :]) if seconds else 0.0


def _image_seconds(detector: Any, source: "TimedSource", config: Config, device: str) -> float:
    """Seconds of one prediction: of a batch on a GPU, of one image on a CPU, where long chains are cut short and added up."""
    model = Model(Bundle(detector.eval(), config, None, {}, ""), device)
    on_cpu = model.device.type == "cpu"
    pixels = source.batch(range(1 if on_cpu else min(len(source), model.batch))).cpu().numpy()
    return repeat(lambda: _time_prediction(model, pixels, cut=on_cpu)) / len(pixels)


def repeat(timed: Callable[[], float]) -> float:
    """The median of some repeats after one that warms up; a slow one is repeated less often, or not at all."""
    first, found = timed(), list[float]()
    while first < SLOW_SECONDS and len(found) < TRIED_PREDICTIONS and sum(found) < SLOW_SECONDS:
        found.append(timed())
    return statistics.median(found or [first])


def _time_prediction(model: Model, pixels: Any, *, cut: bool) -> float:
    chains = _CutChains()
    if cut:
        model.detector.track = chains
    begun = time.perf_counter()
    model.launch(pixels)()
    return time.perf_counter() - begun + chains.left_out


class _CutChains:
    """Takes the place of ``Detector.track``: runs five steps, and adds up the time of the others by the median of the middle."""

    def __init__(self) -> None:
        self.left_out = 0.0

    def __call__(self, steps: Sequence[Any], _label: str) -> Iterator[Any]:
        if len(steps) <= 5:
            yield from steps
            return
        yield steps[0]
        times = [time.perf_counter()]
        for step in steps[1:4]:
            yield step
            times.append(time.perf_counter())
        self.left_out += (len(steps) - 5) * statistics.median(np.diff(times).tolist())
        yield steps[-1]


def _add_evaluation(rate: Rate, model: "_InstantModel", tests: Sequence[Case], normals: Sequence[Case]) -> Rate:
    """Add what an evaluation costs beside the predictions, from two short ones without them.

    With ``normals``, restorations are judged, by features of as many of them as there are tests.
    """
    few, many = ((_spaced(tests, count), _spaced(normals, count)) for count in (FEW_TESTS, MANY_TESTS))
    _time_evaluation(model, *few)  # imports and reads weights
    beside, cell = straight_line((len(few[0]), _time_evaluation(model, *few)), (len(many[0]), _time_evaluation(model, *many)))
    return rate._replace(beside=beside, cell=cell)


def _spaced(cases: Sequence[Case], count: int) -> list[Case]:
    """Some cases at even places of the list, so that normal and abnormal ones are among them."""
    return [cases[i] for i in np.linspace(0, len(cases) - 1, min(count, len(cases))).round().astype(int)]


def _time_evaluation(model: "_InstantModel", tests: Sequence[Case], normals: Sequence[Case]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        indices = normative_indices(model, normals) if normals else None
        evaluate_with_report(model, tests, Path(folder), "trial", indices, keep_arrays=False)
        return time.perf_counter() - begun


def straight_line(few: tuple[int, float], many: tuple[int, float]) -> tuple[float, float]:
    """Seconds of one more image and those of none, from the seconds of two numbers of images; neither is below zero."""
    slope = max(0.0, (many[1] - few[1]) / max(1, many[0] - few[0]))
    return slope, max(0.0, few[1] - slope * few[0])


class _InstantModel(Model):
    """A model whose predictions and restorations cost nothing: grey values stand for the heat-map."""

    def launch(
        self,
        pixels: NDArray[np.float32],
        without: int | None = None,  # noqa: ARG002 (nothing is predicted)
    ) -> Callable[[], tuple[list[float], NDArray[np.float32]]]:
        heatmaps = np.abs(pixels[:, 0])
        return lambda: (heatmaps.mean((1, 2)).tolist(), heatmaps)

    def restored(self, x: Tensor) -> Tensor:
        return x


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
