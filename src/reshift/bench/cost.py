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

from reshift.bench.cells import Spec, Task, deciding_config, digest
from reshift.bench.compute import count_updates, machine, training_split
from reshift.bench.trial import Rate, measure, predict_key
from reshift.config import Config, DataConfig, parse
from reshift.data.cases import expand_volumes
from reshift.data.manifest import load_cases
from reshift.errors import Stopped, UserError, reason
from reshift.inference.bundle import build
from reshift.system.device import pick_device

MAX_SECONDS = 120  # for trying one configuration


class StageCost(NamedTuple):
    """One stage of a training."""

    name: str
    steps: int
    facts: str  # what decides it and the stages before it, see Stage.decided_by; empty if it cannot be shared


class Size(NamedTuple):
    """How much work a task is."""

    images: int  # to train on
    batch: int
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
        kinds.setdefault(digest(_speed_settings(task.cells[0].method, task.cells[0].config)), []).append(task)
    total, unknown, trained = 0.0, 0, set[str]()
    for alike in kinds.values():
        cells = [spec for task in alike for spec in task.cells]
        rate = _rate(cells, done, places[0])
        seconds = sum(_seconds(task, rate, trained) for task in alike) if isinstance(rate, Rate) else 0.0
        total, unknown = total + seconds, unknown + (0 if isinstance(rate, Rate) else len(cells))
        known = f"about {duration(seconds)}, {rate.source}" if isinstance(rate, Rate) else f"unknown: {rate}"
        yield f"cost: {cells[0].row}, {_count(cells, 'cell')} in {_count(alike, 'training')}: {known}"
    if tasks:
        at_once = min(len(places), len(tasks))
        without = f", without {unknown} cells of unknown cost" if unknown else ""
        yield f"cost: about {duration(total / at_once)} in all, in {at_once} process{'es' * (at_once > 1)}{without}"


def _count(things: Sequence[Any], name: str) -> str:
    return f"{len(things)} {name}{'s' * (len(things) != 1)}"


def estimate_task(task: Task, device: str) -> float | str:
    """Seconds of one task, from what is tried now; or why that is unknown."""
    rate = _rate(task.cells, [], device)
    return _seconds(task, rate) if isinstance(rate, Rate) else rate


def _speed_settings(method: str, config: Mapping[str, Any]) -> list[Any]:
    """The settings that decide the speed; the length of the training does not."""
    model = {name: value for name, value in config["model"].items() if not name.endswith("epochs")}
    data = {name: value for name, value in config["data"].items() if name != "holdout"}
    return [method, model, data, config["train"]["batch"], config["train"]["amp"]]


def _rate(specs: Sequence[Spec], done: Sequence[Mapping[str, Any]], device: str) -> Rate | str:
    """What the parts of these cells take, or why that is unknown; they differ in data, seed, length and prediction only."""
    sizes = {spec.trained_on: _size(spec) for spec in specs}
    if same := _comparable(specs[0], done, device, sizes):
        return _finished_rate(same, sizes)
    try:
        with redirect_stderr(io.StringIO()), _time_limit(MAX_SECONDS):  # hides the progress bar
            return measure(specs, device)
    except (Stopped, KeyboardInterrupt):
        raise
    except TimeoutError:
        return f"a few steps and one batch of predictions take longer than {MAX_SECONDS} s on this machine"
    except Exception as err:  # the cell will fail with the same message
        return reason(err).splitlines()[0]


def _comparable(spec: Spec, done: Sequence[Mapping[str, Any]], device: str, sizes: Mapping[str, Size]) -> list[Mapping[str, Any]]:
    """Finished cells of the same sets with the same speed settings, of a machine like this one."""
    wanted, here = digest(_speed_settings(spec.method, deciding_config(spec.config))), machine(pick_device(device))
    return [
        cell for cell in done
        if cell["images_per_second"] and cell["trained_on"] in sizes
        and digest(_speed_settings(cell["method"], cell["config"])) == wanted
        and all(cell["machine"][part] == here[part] for part in ("cpu", "gpu"))
    ]  # fmt: skip


def _finished_rate(cells: Sequence[Mapping[str, Any]], sizes: Mapping[str, Size]) -> Rate:
    """Medians over finished cells."""
    on_cpu = cells[0]["machine"]["gpu"] is None
    learned, start, images = list[float](), list[float](), dict[str, list[float]]()
    for cell in cells:
        size = sizes[cell["trained_on"]]
        if cell["steps"]:
            learned.append(cell["train_seconds"] / cell["steps"] / (size.batch if on_cpu else 1))
        else:
            start.append(cell["train_seconds"] / size.images)
        images.setdefault(predict_key(cell["predict"]), []).append(1.0 / cell["images_per_second"])
    medians = {key: statistics.median(seconds) for key, seconds in images.items()}
    return Rate(
        step=statistics.median(learned or [0.0]),
        start=statistics.median(start or [0.0]),
        image=medians.get(predict_key({}), statistics.median(medians.values())),
        source=f"from {_count(cells, 'finished cell')}",
        by_predict=tuple(medians.items()),
        beside=statistics.median(_beside(cell) for cell in cells),
        batch=1 if on_cpu else 0,
    )


def _beside(cell: Mapping[str, Any]) -> float:
    """Seconds per test image of a finished cell that its evaluation took beside predictions and restorations."""
    passes = 2 if cell["metrics"].get("normative") else 1
    seconds: float = cell["metrics"]["seconds"] / len(cell["paired"]["scores"]) - passes / cell["images_per_second"]
    return max(0.0, seconds)


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
        seconds += sum(stage.steps * rate.of(stage.name, size.batch) for stage in new) + size.normals * (rate.image + rate.beside)
        seconds += size.images * rate.start if new or not size.stages else 0.0
        known |= {key for key in keys if key}
    for spec in task.cells:
        tests = _count_tests(spec.test_path, json.dumps(spec.config["data"]))
        normals = size.normals if spec.predict else 0  # other settings need their own thresholds
        predictions = normals + tests * (2 if spec.normative and size.restores else 1)
        seconds += predictions * rate.image_of(spec.predict) + (normals + tests) * rate.beside + rate.cell
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
def _count_tests(data: str, settings: str) -> int:
    """Test images; every slice of a volume is one."""
    tests = [case for case in load_cases(Path(data)) if case.split == "test"]
    return len(expand_volumes(tests, parse(DataConfig, json.loads(settings)), []))


@cache
def _size_of(data: str, settings: str) -> Size:
    config = parse(Config, json.loads(settings))
    kept, held = training_split(Path(data), config)
    batch, normals = min(config.train.batch, len(kept)), len(held) + min(len(kept), config.calibrate.training_sample)
    try:
        detector = build(config)
    except UserError:
        return Size(len(kept), batch, normals, (), restores=False)
    updates, facts, stages = count_updates(detector, len(kept), config.train.batch), list[Any](), list[StageCost]()
    for stage in detector.stages():
        facts.append([stage.name, stage.epochs, stage.steps, stage.decided_by and dict(stage.decided_by)])
        shared = all(fact[3] is not None for fact in facts)
        stages.append(StageCost(stage.name, updates[stage.name], json.dumps(facts, sort_keys=True) if shared else ""))
    return Size(len(kept), batch, normals, tuple(stages), restores=detector.overrides("pseudo_healthy"))
