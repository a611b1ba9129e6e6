"""What is left to do will cost: from finished cells of the same method, or else from a few steps and predictions tried now."""

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
from reshift.bench.work import running, steps
from reshift.config import Config, merge, parse
from reshift.data.manifest import Case, expand, load_cases
from reshift.data.source import Source
from reshift.errors import Stopped, UserError, reason
from reshift.inference.bundle import Bundle, build
from reshift.inference.model import Model
from reshift.methods.detector import Stage
from reshift.system.device import Rank, pick_device
from reshift.training.loop import batch_size, fit
from reshift.training.run import split_normals

TRIED = {"cpu": 3, "cuda": 8}  # steps of each stage; on a GPU the first ones warm up and record

SLOW = 10.0  # seconds; what takes longer is not done twice
PATIENCE = 60  # seconds for trying a configuration out


class Rate(NamedTuple):
    """Seconds of a method's parts, and where they are from."""

    step: float  # an optimiser step, on average over the stages
    start: float  # per training image, before the first step
    image: float  # a prediction
    source: str


class Size(NamedTuple):
    """How much a task has to do."""

    images: int  # to train on
    normals: int  # to calibrate with
    steps: int


def estimate(tasks: Sequence[Task], done: Sequence[Mapping[str, Any]], workers: int, device: str) -> Iterator[str]:
    """One line per kind of task, and the sum."""
    from reshift.bench.engine import devices
    from reshift.bench.view import span

    places = devices(workers, device)
    kinds: dict[str, list[Task]] = {}
    for task in tasks:
        kinds.setdefault(digest(_kind(task.cells[0])), []).append(task)
    total = 0.0
    for alike in kinds.values():
        spec, cells = alike[0].cells[0], sum(len(task.cells) for task in alike)
        rate = _rate(spec, done, places[0])
        seconds = sum(_seconds(task, rate) for task in alike) if isinstance(rate, Rate) else 0.0
        total += seconds
        known = f"about {span(seconds)}, {rate.source}" if isinstance(rate, Rate) else f"unknown: {rate}"
        yield f"cost: {spec.row}, {cells} cells in {len(alike)} trainings: {known}"
    if tasks:
        at_once = min(len(places), len(tasks))
        yield f"cost: about {span(total / at_once)} in all, in {at_once} process{'es' * (at_once > 1)}"


def _kind(spec: Spec) -> list[Any]:
    """What decides the speed: settings, but not how long training lasts."""
    model = {name: value for name, value in spec.config["model"].items() if not name.endswith("epochs")}
    return [spec.method, model, spec.config["data"], spec.config["train"]["batch"]]


def _rate(spec: Spec, done: Sequence[Mapping[str, Any]], device: str) -> Rate | str:
    same = [cell for cell in done if cell["method"] == spec.method and cell["images_per_second"]]
    if not same:
        try:
            with redirect_stderr(io.StringIO()), _at_most(PATIENCE):  # the progress of a few steps is none
                return calibrated(spec, device)
        except (Stopped, KeyboardInterrupt):
            raise
        except TimeoutError:
            return f"a few steps and one batch of predictions take longer than {PATIENCE} s on this machine"
        except Exception as err:  # a configuration that cannot work will fail as a cell, too, and say the same
            return reason(err).splitlines()[0]
    learned = [cell["train_seconds"] / cell["steps"] for cell in same if cell["steps"]]
    image = statistics.median(1.0 / cell["images_per_second"] for cell in same)
    start = 0.0 if learned else statistics.median(cell["train_seconds"] for cell in same) / _size(spec).images
    source = f"from {len(same)} finished cell{'s' * (len(same) > 1)}"
    return Rate(statistics.median(learned) if learned else 0.0, start, image, source)


@contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """Give up after a while, where the system can tell: what a chain of a thousand networks costs, nobody wants to wait for."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(_number: int, _frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _seconds(task: Task, rate: Rate) -> float:
    size, seconds = _size(task.cells[0]), 0.0
    trained = (task.folder / "bundle" / "config.json").exists()
    if not trained:
        seconds += size.steps * rate.step + size.images * rate.start + size.normals * rate.image
    for spec in task.cells:
        tests = sum(case.split == "test" for case in load_cases(Path(spec.test_path)))
        seconds += (tests + (size.normals if spec.predict else 0)) * rate.image
    return seconds


def _split(data: Path, config: Config) -> tuple[list[Case], list[Case]]:
    learned = [case for case in load_cases(data, config.data.subject) if case.split != "test"]
    return split_normals(expand(learned, config.data), config, data)


def _size(spec: Spec) -> Size:
    """The same for every seed, or nearly so."""
    return _size_of(spec.train_path, json.dumps({**spec.config, "seed": 0}))


@cache
def _size_of(data: str, settings: str) -> Size:
    config = parse(Config, json.loads(settings))
    kept, held = _split(Path(data), config)
    normals = len(held) + min(len(kept), config.calibrate.training_sample)
    try:
        count = steps(build(config), len(kept), config.train.batch)
    except UserError:
        count = 0
    return Size(len(kept), normals, count)


def calibrated(spec: Spec, device: str) -> Rate:
    """Try some steps of every stage and a prediction on one batch of images."""
    config = parse(Config, merge(running(spec, device).model_dump(), {"train": {"cache": "off", "tensorboard": False}}))
    kept, _ = _split(Path(spec.train_path), config)
    place = pick_device(device)
    source = Timed(kept[: batch_size(config.train.batch, len(kept), 1)], config, place)
    detector: Any = build(config)
    per_epoch = math.ceil(len(kept) / len(source))
    total, weighted, start = 0, 0.0, 0.0
    for stage in detector.stages():
        count = stage.epochs * per_epoch if stage.steps is None else stage.steps
        step, begin = _tried(detector, stage, source, config, min(count, TRIED[place.type]))
        total, weighted, start = total + count, weighted + count * step, start + begin / len(source)
    model = Model(Bundle(detector.eval(), config, None, {}, ""), device)
    pixels = source.batch(range(min(len(source), model.batch))).cpu().numpy()
    image = _predicted(model, pixels)
    if image < SLOW:  # the first one warms up
        image = _predicted(model, pixels)
    return Rate(weighted / max(1, total), start, image / len(pixels), "from a few steps and predictions tried now")


def _tried(detector: Any, stage: Stage, source: "Timed", config: Config, count: int) -> tuple[float, float]:
    """Seconds of one step, and those before the first; the real loop runs, for a few steps."""
    source.marks.clear()
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        fit(_Short(detector, stage._replace(steps=count)), source, config, Path(folder), Rank(0, 1))
        source.mark()
    between = np.diff(source.marks)
    before = source.marks[0] - begun
    return (float(np.median(between[-2:])) if len(between) else 0.0), before


def _predicted(model: Model, pixels: Any) -> float:
    begun = time.perf_counter()
    model.run(pixels)
    return time.perf_counter() - begun


class Timed(Source):
    """A small source that notes when each training batch is taken."""

    def __init__(self, cases: Sequence[Case], config: Config, device: torch.device) -> None:
        super().__init__(cases, config.data, device)
        self.marks = list[float]()

    def mark(self) -> None:
        """Note the time once the device has done all it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.marks.append(time.perf_counter())

    def stream(self, chosen: Iterable[Sequence[int]]) -> Iterator[Tensor]:
        """Batch after batch, as every source gives them."""
        for batch in super().stream(chosen):
            self.mark()
            yield batch


class _Short(nn.Module):
    """A detector with a single short stage."""

    detector: Any

    def __init__(self, detector: nn.Module, stage: Stage) -> None:
        super().__init__()
        self.detector, self.stage = detector, stage

    def stages(self) -> Sequence[Stage]:
        return (self.stage,)

    def predict(self, x: Tensor) -> Any:
        return self.detector.predict(x)
