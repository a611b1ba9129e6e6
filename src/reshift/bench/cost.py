"""Estimate how long the missing cells take: from finished cells of the same method, or by trying a few steps now."""

import io
import json
import signal
import statistics
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from reshift.bench.cells import Spec, Task, digest
from reshift.bench.compute import count_updates, training_split
from reshift.bench.trial import Rate, measure
from reshift.config import Config, parse
from reshift.data.manifest import load_cases
from reshift.errors import Stopped, UserError, reason
from reshift.inference.bundle import build

MAX_SECONDS = 120  # for trying one configuration


class StageCost(NamedTuple):
    """One stage of a training."""

    name: str
    steps: int
    facts: str  # what decides it and the stages before it, see Stage.decided_by; empty if it cannot be shared


class Size(NamedTuple):
    """How much work a task is."""

    images: int  # to train on
    normals: int  # to calibrate with
    stages: tuple[StageCost, ...]
    restores: bool  # whether its restorations can be judged, which costs another prediction per test image


def estimate(tasks: Sequence[Task], done: Sequence[Mapping[str, Any]], workers: int, device: str) -> Iterator[str]:
    """Yield one line per kind of task, and the sum. A stage that several trainings share is counted once."""
    from reshift.bench.local_engine import devices
    from reshift.bench.view import duration

    places = devices(workers, device)
    kinds: dict[str, list[Task]] = {}
    for task in tasks:
        kinds.setdefault(digest(_speed_settings(task.cells[0])), []).append(task)
    total, unknown, trained = 0.0, 0, set[str]()
    for alike in kinds.values():
        spec, cells = alike[0].cells[0], sum(len(task.cells) for task in alike)
        rate = _rate(spec, done, places[0])
        seconds = sum(_seconds(task, rate, trained) for task in alike) if isinstance(rate, Rate) else 0.0
        total, unknown = total + seconds, unknown + (0 if isinstance(rate, Rate) else cells)
        known = f"about {duration(seconds)}, {rate.source}" if isinstance(rate, Rate) else f"unknown: {rate}"
        yield f"cost: {spec.row}, {cells} cells in {len(alike)} trainings: {known}"
    if tasks:
        at_once = min(len(places), len(tasks))
        without = f", without {unknown} cells of unknown cost" if unknown else ""
        yield f"cost: about {duration(total / at_once)} in all, in {at_once} process{'es' * (at_once > 1)}{without}"


def _speed_settings(spec: Spec) -> list[Any]:
    """The settings that decide the speed; the length of the training does not."""
    model = {name: value for name, value in spec.config["model"].items() if not name.endswith("epochs")}
    data = {name: value for name, value in spec.config["data"].items() if name != "holdout"}
    return [spec.method, model, data, spec.config["train"]["batch"], spec.config["train"]["amp"]]


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


def _seconds(task: Task, rate: Rate, trained: set[str] | None = None) -> float:
    """Seconds of a task; stages whose key is in ``trained`` are at hand by then, and this task's are added to it."""
    size, seconds = _size(task.cells[0]), 0.0
    if not task.trained:
        known = trained if trained is not None else set[str]()
        keys = shared_stages(task.cells[0])
        new = [stage for stage, key in zip(size.stages, keys, strict=True) if key not in known]
        seconds += sum(stage.steps * rate.of(stage.name) for stage in new) + size.normals * rate.image
        seconds += size.images * rate.start if new or not size.stages else 0.0
        known |= {key for key in keys if key}
    for spec in task.cells:
        tests = sum(case.split == "test" for case in load_cases(Path(spec.test_path)))
        predictions = tests * (2 if spec.normative and size.restores else 1)
        seconds += (predictions + (size.normals if spec.predict else 0)) * rate.image
    return seconds


def shared_stages(spec: Spec) -> list[str]:
    """A key for each stage of a training; two trainings with one key learn the same there. Empty where it cannot be shared."""
    config = spec.config
    common = [spec.train_path, spec.seed, {**config["data"], "consensus": None}, {**config["train"], "cache": None}]
    return [digest([*common, stage.facts]) if stage.facts else "" for stage in _size(spec).stages]


def _size(spec: Spec) -> Size:
    """The size for seed 0; other seeds differ little."""
    return _size_of(spec.train_path, json.dumps({**spec.config, "seed": 0}))


@cache
def _size_of(data: str, settings: str) -> Size:
    config = parse(Config, json.loads(settings))
    kept, held = training_split(Path(data), config)
    normals = len(held) + min(len(kept), config.calibrate.training_sample)
    try:
        detector = build(config)
    except UserError:
        return Size(len(kept), normals, (), restores=False)
    updates, facts, stages = count_updates(detector, len(kept), config.train.batch), list[Any](), list[StageCost]()
    for stage in detector.stages():
        facts.append([stage.name, stage.epochs, stage.steps, stage.decided_by and dict(stage.decided_by)])
        shared = all(fact[3] is not None for fact in facts)
        stages.append(StageCost(stage.name, updates[stage.name], json.dumps(facts, sort_keys=True) if shared else ""))
    return Size(len(kept), normals, tuple(stages), restores=detector.overrides("pseudo_healthy"))
