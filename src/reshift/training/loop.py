"""The training loop: one function over a method's stages. Exact resume, bf16, several processes; no trainer class."""

import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from threading import Event, current_thread, main_thread
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reshift.config import Config, TrainConfig
from reshift.data.source import Source, folds
from reshift.errors import Stopped, UserError
from reshift.kernels.bf16_weights import Halves
from reshift.kernels.graphs import Recorder
from reshift.methods.detector import Detector, Stage, Step
from reshift.system.cache import cache_folder
from reshift.system.device import AsyncCopy, Rank, device_scope, half_precision, to_device
from reshift.system.progress import progress
from reshift.training.checkpoint import Position, load_checkpoint, restore_model, restore_optimiser, save_checkpoint
from reshift.training.log import RunLog
from reshift.training.stage_cache import Identity, identity, load_stage, save_stage
from reshift.training.step import Trained, afterwards, learning_rate, one_step, optimisers, set_rate

CHECKPOINT = "checkpoint.safetensors"


class _Run(NamedTuple):
    """What stays the same over all stages."""

    module: nn.Module
    source: Source
    batch: int
    config: Config
    folder: Path
    place: Rank
    log: RunLog


def fit(detector: Detector, source: Source, config: Config, folder: Path, place: Rank, data: str = "") -> float:
    """Train every stage, from ``folder``'s checkpoint if there is one; return the seconds it took, over all resumes.

    The result does not depend on interruptions: on the CPU it is the same to the bit. ``data`` is the fingerprint of the
    images; with it, stages that another run has trained are taken from the cache, and their seconds counted.
    """
    with device_scope(source.device):
        return _fit(detector, source, config, folder, place, data)


def _fit(detector: Detector, source: Source, config: Config, folder: Path, place: Rank, data: str) -> float:
    module = to_device(as_module(detector), source.device)
    batch = batch_size(config.train.batch, len(source), place.world)
    tensors, position = load_checkpoint(folder / CHECKPOINT) if (folder / CHECKPOINT).exists() else ({}, Position())
    if tensors:
        restore_model(module, tensors)
    with RunLog(folder, config.train.tensorboard, active=place.rank == 0) as log, _stop_signals() as stopped:
        log.rewind(position)
        run = _Run(module, source, batch, config, folder, place, log)
        stages = detector.stages()
        for number, stage in list(enumerate(stages))[position.stage :]:
            shared = _shared(run, stages[: number + 1], data)
            if position.step or not _take(run, stage, shared):
                _train_stage(run, number, stage, position.step, tensors, stopped)
                _keep(run, shared)
            position, tensors = Position(number + 1, 0, log.seconds), {}
            _save(run, (), position)
    module.eval().requires_grad_(False)
    return log.seconds


def _train_stage(run: _Run, number: int, stage: Stage, first: int, tensors: dict[str, Tensor], stopped: Event) -> None:
    config, place = run.config.train, run.place
    total = stage.epochs * math.ceil(len(run.source) / run.batch) if stage.steps is None else stage.steps
    groups = folds(run.source.cases, stage.folds, run.config.seed)
    trained = _prepare(stage, run.module, run.source, groups, config, fresh=first == 0)
    for i, pair in enumerate(trained if first else ()):
        restore_optimiser(pair.optimiser, i, tensors)
    step = Step(torch.Generator(run.source.device), place.rank, place.world)
    recorder = Recorder(step.generator, enabled=config.graphs and place.world == 1)
    lr = partial(learning_rate, config, total)
    saved, unread = time.monotonic(), None
    with progress(stage.name, total, first, quiet=place.rank > 0) as advance:
        for index, images in _stream(run, number, groups, first, total):
            step.generator.manual_seed(_mix(run.config.seed, number, index))
            due = tuple(pair for pair in trained if index % pair.objective.every == 0)
            if index == first or lr(index) != lr(index - 1):
                set_rate(trained, lr(index))
            logs = recorder(due, partial(one_step, due, step=step, config=config), images)
            if unread is not None:  # numbers of the step before, while this one runs
                advance(0, unread())
            afterwards(due, step)
            stop = _agree(stopped.is_set(), index, run)
            save = stop or _agree(time.monotonic() - saved >= config.checkpoint_seconds, index, run)
            last = index + 1 == total
            logged = index % config.log_every == 0 or last or save
            unread = _log(run, stage, index, total, logs, lr(index)) if logged else None
            if unread is not None and (last or save):
                advance(0, unread())
                unread = None
            if save and not last:
                _save(run, [pair.optimiser for pair in trained], Position(number, index + 1, run.log.seconds))
                saved = time.monotonic()
            if stop:
                raise Stopped(f"stopped after step {index + 1} of {total} of stage '{stage.name}'; --resume continues from here")
            advance()


@contextmanager
def _stop_signals() -> Iterator[Event]:
    """Ctrl-C and SIGTERM set an event that the loop honours between steps; a second Ctrl-C stops at once, as always."""
    stopped = Event()
    if current_thread() is not main_thread():
        yield stopped
        return

    def stop(_number: int, _frame: object) -> None:
        stopped.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _prepare(
    stage: Stage, module: nn.Module, source: Source, groups: Sequence[Sequence[int]], config: TrainConfig, *, fresh: bool
) -> list[Trained]:
    """Freeze what this stage does not train, let it look at the data once, and make one AdamW per objective."""
    module.eval().requires_grad_(False)
    if fresh and stage.begin is not None:
        with torch.no_grad():
            for k, group in enumerate(groups):
                stage.begin(source.batches(group), *([k] if len(groups) > 1 else []))
    for objective in stage.objectives:
        for part in objective.modules:
            part.train().requires_grad_(True)
    halves = Halves(module) if half_precision(source.device, config.amp) else None
    return optimisers(stage.objectives, halves, config, source.device)


def _stream(run: _Run, stage: int, groups: Sequence[list[int]], first: int, total: int) -> Iterator[tuple[int, Tensor]]:
    """Yield this process's share of every batch. Batches are cut from an endless row of shuffles, so all have the same size.

    Which images a step sees follows from its number alone; that is what makes resuming exact. Of several groups, each gives
    the same number of images to every batch, one group after the other.
    """
    share = max(1, run.batch // len(groups) // run.place.world)  # images of one group for one process

    def mine(step: int) -> list[int]:
        begin = (step * run.place.world + run.place.rank) * share
        return [i for k, group in enumerate(groups) for i in _cut(group, begin, share, (run.config.seed, stage), k)]

    steps = range(first, total)
    yield from zip(steps, run.source.stream(map(mine, steps)), strict=True)


def _cut(group: Sequence[int], begin: int, count: int, seed: tuple[int, int], k: int) -> list[int]:
    """``count`` images from place ``begin`` of the endless row of shuffles of one group."""
    n = len(group)
    return [group[_shuffled((*seed, i // n, *([k] if k else [])), n)[i % n]] for i in range(begin, begin + count)]


@lru_cache(maxsize=32)  # a step touches at most a few neighbouring epochs of each group
def _shuffled(seed: tuple[int, ...], n: int) -> list[int]:
    order: list[int] = np.random.default_rng(seed).permutation(n).tolist()
    return order


def _mix(seed: int, stage: int, step: int) -> int:
    """Return one 63-bit seed per (seed, stage, step), far apart for neighbouring steps."""
    return int(np.random.SeedSequence([seed, stage, step]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _agree(mine: bool, step: int, run: _Run) -> bool:
    """One process's wish is everybody's: all take a checkpoint, or none. Asked every 8th step, as asking costs a round trip."""
    if run.place.world == 1:
        return mine
    if step % 8:
        return False
    flag = torch.tensor([float(mine)], device=run.source.device)
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag.item())


def _log(run: _Run, stage: Stage, step: int, total: int, logs: dict[str, Tensor], lr: float) -> Callable[[], str]:
    """Ask for the numbers of a step; what this returns writes them down, once they are wanted."""
    names, numbers = list(logs), AsyncCopy(_mean_over_processes(list(logs.values()), run.place.world))

    def write() -> str:
        values = dict(zip(names, numbers.read(), strict=True))
        if not math.isfinite(values["loss"]):
            raise UserError(
                f"training diverged: the loss of stage '{stage.name}' is {values['loss']} at step {step}; "
                f"lower train.lr (now {run.config.train.lr:g}) or set train.clip, and start again"
            )
        epoch = step * run.batch // len(run.source) + 1
        run.log.write({"stage": stage.name, "epoch": epoch, "step": step, "steps": total, **values, "lr": lr})
        return f"loss {values['loss']:.4f}"

    return write


def _mean_over_processes(values: Sequence[Tensor], world: int) -> Tensor:
    stacked = torch.stack([value.float() for value in values])
    if world > 1:
        dist.all_reduce(stacked)
    return stacked / world


def _shared(run: _Run, stages: Sequence[Stage], data: str) -> Identity | None:
    """What decides the last of ``stages``; None where it cannot be shared.

    Not among several processes, which would have to agree on what each of them finds.
    """
    if not data or run.place.world > 1 or any(stage.decided_by is None for stage in stages):
        return None
    deciding = ("lr", "weight_decay", "schedule", "warmup", "clip", "amp")
    return identity(
        run.module,
        data=data,
        seed=run.config.seed,
        images=run.config.data.model_dump(exclude={"memory_gb", "consensus"}),  # neither decides what is learned
        train={"batch": run.batch, "device": run.source.device.type} | run.config.train.model_dump(include=set(deciding)),
        stages=[[stage.name, stage.epochs, stage.steps, stage.folds, dict(stage.decided_by or {})] for stage in stages],
    )


def _take(run: _Run, stage: Stage, shared: Identity | None) -> bool:
    """Take a stage from the cache, if another run has left it there."""
    folder = cache_folder(run.config.train.cache)
    if shared is None or folder is None or (seconds := load_stage(folder, shared, run.module)) is None:
        return False
    run.log.before += max(0.0, seconds - run.log.seconds)
    run.log.write({"stage": stage.name, "cached": shared.key})
    return True


def _keep(run: _Run, shared: Identity | None) -> None:
    folder = cache_folder(run.config.train.cache)
    if shared is not None and folder is not None:
        save_stage(folder, shared, run.module, run.log.seconds)


def _save(run: _Run, optimisers: Sequence[torch.optim.Optimizer], position: Position) -> None:
    if run.place.rank == 0:
        save_checkpoint(run.folder / CHECKPOINT, run.module, optimisers, position)


def batch_size(wanted: int, images: int, world: int) -> int:
    """Return the global batch: as configured, but no more than there are images, and the same share for every process."""
    batch = min(wanted, images - images % world)
    if batch < world or batch % world:
        raise UserError(
            f"train.batch {batch} cannot be shared equally by {world} processes; set train.batch to a multiple of {world}"
        )
    return batch


def as_module(detector: Any) -> nn.Module:
    """Every detector is an ``nn.Module``; Python's protocols cannot say so."""
    if not isinstance(detector, nn.Module):
        raise TypeError(f"{type(detector).__name__} must be an nn.Module to be trained and saved")
    return detector
