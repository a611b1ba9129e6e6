"""Estimate how long the missing cells take: from finished cells of the same method, or by trying a few steps now."""

import io
import json
import math
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from reshift.bench.cells import Spec, Task, digest
from reshift.bench.compute import count_steps, training_config, training_split
from reshift.config import Config, merge, parse
from reshift.data.cases import Case
from reshift.data.manifest import load_cases
from reshift.data.source import Source
from reshift.errors import Stopped, UserError, reason
from reshift.inference.bundle import Bundle, build
from reshift.inference.model import Model
from reshift.methods.detector import Detector, Stage
from reshift.system.device import Rank, pick_device
from reshift.training.loop import batch_size, fit

TRIED_STEPS = {"cpu": 3, "cuda": 8}  # of each stage; on a GPU the first ones warm up and record a graph
SLOW_SECONDS = 10.0  # a prediction that takes longer is not repeated
MAX_SECONDS = 60  # for trying one configuration


class Rate(NamedTuple):
    """Seconds that the parts of a method take, and how they were found."""

    step: float  # an optimiser step, on average over the stages
    start: float  # per training image, before the first step
    image: float  # a prediction
    source: str


class Size(NamedTuple):
    """How much work a task is."""

    images: int  # to train on
    normals: int  # to calibrate with
    steps: int


def estimate(tasks: Sequence[Task], done: Sequence[Mapping[str, Any]], workers: int, device: str) -> Iterator[str]:
    """Yield one line per kind of task, and the sum."""
    from reshift.bench.local_engine import devices
    from reshift.bench.view import duration

    places = devices(workers, device)
    kinds: dict[str, list[Task]] = {}
    for task in tasks:
        kinds.setdefault(digest(_speed_settings(task.cells[0])), []).append(task)
    total = 0.0
    for alike in kinds.values():
        spec, cells = alike[0].cells[0], sum(len(task.cells) for task in alike)
        rate = _rate(spec, done, places[0])
        seconds = sum(_seconds(task, rate) for task in alike) if isinstance(rate, Rate) else 0.0
        total += seconds
        known = f"about {duration(seconds)}, {rate.source}" if isinstance(rate, Rate) else f"unknown: {rate}"
        yield f"cost: {spec.row}, {cells} cells in {len(alike)} trainings: {known}"
    if tasks:
        at_once = min(len(places), len(tasks))
        yield f"cost: about {duration(total / at_once)} in all, in {at_once} process{'es' * (at_once > 1)}"


def _speed_settings(spec: Spec) -> list[Any]:
    """The settings that decide the speed; the length of the training does not."""
    model = {name: value for name, value in spec.config["model"].items() if not name.endswith("epochs")}
    return [spec.method, model, spec.config["data"], spec.config["train"]["batch"]]


def _rate(spec: Spec, done: Sequence[Mapping[str, Any]], device: str) -> Rate | str:
    same = [cell for cell in done if cell["method"] == spec.method and cell["images_per_second"]]
    if not same:
        try:
            with redirect_stderr(io.StringIO()), _time_limit(MAX_SECONDS):  # hides the progress bar
                return measure(spec, device)
        except (Stopped, KeyboardInterrupt):
            raise
        except TimeoutError:
            return f"a few steps and one batch of predictions take longer than {MAX_SECONDS} s on this machine"
        except Exception as err:  # the cell will fail with the same message
            return reason(err).splitlines()[0]
    learned = [cell["train_seconds"] / cell["steps"] for cell in same if cell["steps"]]
    image = statistics.median(1.0 / cell["images_per_second"] for cell in same)
    start = 0.0 if learned else statistics.median(cell["train_seconds"] for cell in same) / _size(spec).images
    source = f"from {len(same)} finished cell{'s' * (len(same) > 1)}"
    return Rate(statistics.median(learned) if learned else 0.0, start, image, source)


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    """Raise ``TimeoutError`` after some seconds, on systems that have a timer: a few methods need minutes per image."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _seconds(task: Task, rate: Rate) -> float:
    size, seconds = _size(task.cells[0]), 0.0
    if not task.trained:
        seconds += size.steps * rate.step + size.images * rate.start + size.normals * rate.image
    for spec in task.cells:
        tests = sum(case.split == "test" for case in load_cases(Path(spec.test_path)))
        seconds += (tests + (size.normals if spec.predict else 0)) * rate.image
    return seconds


def _size(spec: Spec) -> Size:
    """The size for seed 0; other seeds differ little."""
    return _size_of(spec.train_path, json.dumps({**spec.config, "seed": 0}))


@cache
def _size_of(data: str, settings: str) -> Size:
    config = parse(Config, json.loads(settings))
    kept, held = training_split(Path(data), config)
    normals = len(held) + min(len(kept), config.calibrate.training_sample)
    try:
        count = count_steps(build(config), len(kept), config.train.batch)
    except UserError:
        count = 0
    return Size(len(kept), normals, count)


def measure(spec: Spec, device: str) -> Rate:
    """Time a few steps of every stage and the prediction of one batch."""
    config = parse(Config, merge(training_config(spec, device).model_dump(), {"train": {"cache": "off", "tensorboard": False}}))
    kept, _ = training_split(Path(spec.train_path), config)
    place = pick_device(device)
    source = TimedSource(kept[: batch_size(config.train.batch, len(kept), 1)], config, place)
    detector: Any = build(config)
    per_epoch = math.ceil(len(kept) / len(source))
    total, weighted, start = 0, 0.0, 0.0
    for stage in detector.stages():
        count = stage.epochs * per_epoch if stage.steps is None else stage.steps
        step, begin = _time_stage(detector, stage, source, config, min(count, TRIED_STEPS[place.type]))
        total, weighted, start = total + count, weighted + count * step, start + begin / len(source)
    model = Model(Bundle(detector.eval(), config, None, {}, ""), device)
    pixels = source.batch(range(min(len(source), model.batch))).cpu().numpy()
    image = _time_prediction(model, pixels)
    if image < SLOW_SECONDS:  # the first one warms up
        image = _time_prediction(model, pixels)
    return Rate(weighted / max(1, total), start, image / len(pixels), "from a few steps and predictions tried now")


def _time_stage(detector: Any, stage: Stage, source: "TimedSource", config: Config, count: int) -> tuple[float, float]:
    """Return the seconds of one step and those before the first step; this runs the real training loop."""
    source.times.clear()
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        fit(_OneStage(detector, stage._replace(steps=count)), source, config, Path(folder), Rank(0, 1))
        source.mark()
    between = np.diff(source.times)
    before = source.times[0] - begun
    return (float(np.median(between[-2:])) if len(between) else 0.0), before


def _time_prediction(model: Model, pixels: Any) -> float:
    begun = time.perf_counter()
    model.launch(pixels)()
    return time.perf_counter() - begun


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
