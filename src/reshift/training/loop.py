"""The training loop: one function over a method's stages. Exact resume, bf16, several ranks; no trainer class."""

import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from threading import Event, current_thread, main_thread
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reshift.config import Config
from reshift.data.cases import Case
from reshift.data.source import Source, folds
from reshift.errors import Stopped, UserError
from reshift.kernels import accelerate
from reshift.kernels.graphs import Recorder
from reshift.methods.detector import Detector, Stage, Step
from reshift.system.cache import cache_folder
from reshift.system.device import AsyncCopy, Rank, device_scope, to_device
from reshift.system.progress import progress
from reshift.system.signals import ending_signals
from reshift.training.checkpoint import Position, load_checkpoint, restore_model, restore_optimiser, save_checkpoint
from reshift.training.flat import HeldOut, Watch
from reshift.training.log import RunLog
from reshift.training.stage_cache import Identity, StageCost, identity, load_stage, save_stage
from reshift.training.step import Trained, after_step, learning_rate, make_optimisers, one_step, set_learning_rate

CHECKPOINT = "checkpoint.safetensors"


class _Run(NamedTuple):
    """What stays the same over all stages."""

    module: nn.Module
    source: Source
    batch: int
    config: Config
    folder: Path
    rank: Rank
    log: RunLog
    held: HeldOut | None  # where stages may end early


def fit(
    detector: Detector, source: Source, config: Config, folder: Path, rank: Rank, data: str = "", held: Sequence[Case] = ()
) -> Position:
    """Train every stage, from ``folder``'s checkpoint if there is one; return the seconds and updates it took, over all resumes.

    The result does not depend on interruptions: on the CPU it is the same to the bit. ``data`` is the fingerprint of the
    images; with it, stages that another run has trained are loaded from the cache, and their seconds are counted. ``held`` are
    the normals that tell when to end a stage (``train.patience``).
    """
    with device_scope(source.device):
        kept_back = HeldOut(held, config, source.device) if config.train.patience else None
        return _fit(detector, source, config, folder, rank, data, kept_back)


def _fit(
    detector: Detector, source: Source, config: Config, folder: Path, rank: Rank, data: str, held: HeldOut | None
) -> Position:
    module = accelerate(to_device(detector, source.device), source.device)
    batch = batch_size(config.train.batch, len(source), rank.world)
    tensors, position = load_checkpoint(folder / CHECKPOINT) if (folder / CHECKPOINT).exists() else ({}, Position())
    if tensors:
        restore_model(module, tensors)
    with RunLog(folder, config.train.tensorboard, active=rank.rank == 0) as log, _stop_signals() as stopped:
        log.rewind(position)
        run = _Run(module, source, batch, config, folder, rank, log, held)
        stages = detector.stages()
        for number, stage in list(enumerate(stages))[position.stage :]:
            cached = _stage_identity(run, stages[: number + 1], data)
            updates = None if position.step else _load_cached(run, stage, cached)
            if updates is None:
                updates = _train_stage(run, stage, position, tensors, stopped)
                _save_cached(run, cached, updates)
            position, tensors = Position(number + 1, 0, log.seconds, (*position.updates, updates)), {}
            _save(run, (), position)
    module.eval().requires_grad_(False)
    return position._replace(seconds=log.seconds)


def _train_stage(run: _Run, stage: Stage, position: Position, tensors: dict[str, Tensor], stopped: Event) -> int:
    """Train a stage from ``position``, and return its updates."""
    config, rank, number, first, total = run.config.train, run.rank, position.stage, position.step, _all_updates(run, stage)
    groups = folds(run.source.cases, stage.folds, run.config.seed)
    trained = _prepare(run, stage, groups, first, tensors)
    watch = Watch(run.held, stage, trained, (run.config.seed, number), position.lowest)
    step = Step(torch.Generator(run.source.device), rank.rank, rank.world)
    recorder = Recorder(step.generator, enabled=config.graphs and rank.world == 1)
    lr = partial(learning_rate, config, total)
    saved, pending = time.monotonic(), None
    with progress(stage.name, total, first, quiet=rank.rank > 0) as advance:
        for index, images in _stream(run, number, groups, first, total):
            step.generator.manual_seed(_step_seed(run.config.seed, number, index))
            due = tuple(pair for pair in trained if index % pair.objective.every == 0)
            if index == first or lr(index) != lr(index - 1):
                set_learning_rate(trained, lr(index))
            logs = recorder(due, partial(one_step, due, step=step, config=config), images)
            if pending is not None:  # log the step before, while this one runs
                advance(0, pending())
            after_step(due, step)
            looked = watch.look(index + 1)
            stop = _any_rank(stopped.is_set(), index, run)
            save = stop or _any_rank(time.monotonic() - saved >= config.checkpoint_seconds, index, run)
            last = index + 1 == total or watch.flat(index + 1)
            logged = index % config.log_every == 0 or last or save or looked
            pending = _log(run, stage, index, total, {**logs, **looked}, lr(index)) if logged else None
            if pending is not None and (last or save):
                advance(0, pending())
                pending = None
            if save and not last:
                here = position._replace(step=index + 1, seconds=run.log.seconds, lowest=watch.lowest)
                _save(run, [pair.optimiser for pair in trained], here)
                saved = time.monotonic()
            if stop:
                raise Stopped(f"stopped after step {index + 1} of {total} of stage '{stage.name}'; --resume continues from here")
            advance()
            if last:
                return index + 1
    return total


def _all_updates(run: _Run, stage: Stage) -> int:
    return stage.epochs * math.ceil(len(run.source) / run.batch) if stage.steps is None else stage.steps


@contextmanager
def _stop_signals() -> Iterator[Event]:
    """Ctrl-C, SIGTERM and SIGHUP set an event that the loop checks between steps; a second Ctrl-C stops at once, as always."""
    stopped = Event()
    if current_thread() is not main_thread():
        yield stopped
        return

    def stop(_number: int, _frame: object) -> None:
        stopped.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, *ending_signals())}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _prepare(run: _Run, stage: Stage, groups: Sequence[Sequence[int]], first: int, tensors: dict[str, Tensor]) -> list[Trained]:
    """Freeze what this stage does not train, run its ``begin``, and make one AdamW per objective, or take up those saved."""
    run.module.eval().requires_grad_(False)
    if first == 0 and stage.begin is not None:
        with torch.no_grad():
            for k, group in enumerate(groups):
                chosen = evenly(group, stage.begin_images and max(1, stage.begin_images // len(groups)))
                stage.begin(run.source.batches(chosen), *([k] if len(groups) > 1 else []))
    for objective in stage.objectives:
        for part in objective.modules:
            part.train().requires_grad_(True)
    trained = make_optimisers(stage.objectives, run.module, run.config.train, run.source.device)
    for i, pair in enumerate(trained if first else ()):
        restore_optimiser(pair.optimiser, i, tensors)
    return trained


def evenly(group: Sequence[int], most: int | None) -> Sequence[int]:
    """At most so many of ``group``, at equal distances; all of it where that is no limit."""
    if most is None or len(group) <= most:
        return group
    return [group[i * len(group) // most] for i in range(most)]


def _stream(run: _Run, stage: int, groups: Sequence[list[int]], first: int, total: int) -> Iterator[tuple[int, Tensor]]:
    """Yield this rank's share of every batch. Batches are cut from an endless sequence of shuffles, so all have the same size.

    Which images a step sees follows from its number alone; that makes resuming exact. With several groups, each gives the same
    number of images to every batch, one group after the other.
    """
    share = max(1, run.batch // len(groups) // run.rank.world)  # images of one group for one rank

    def indices(step: int) -> list[int]:
        begin = (step * run.rank.world + run.rank.rank) * share
        return [i for k, group in enumerate(groups) for i in _slice_of_shuffles(group, begin, share, (run.config.seed, stage), k)]

    steps = range(first, total)
    yield from zip(steps, run.source.stream(map(indices, steps)), strict=True)


def _slice_of_shuffles(group: Sequence[int], begin: int, count: int, seed: tuple[int, int], k: int) -> list[int]:
    """``count`` images from position ``begin`` of the endless sequence of shuffles of one group."""
    n = len(group)
    return [group[_shuffled((*seed, i // n, *([k] if k else [])), n)[i % n]] for i in range(begin, begin + count)]


@lru_cache(maxsize=32)  # a step touches at most a few neighbouring epochs of each group
def _shuffled(seed: tuple[int, ...], n: int) -> list[int]:
    order: list[int] = np.random.default_rng(seed).permutation(n).tolist()
    return order


def _step_seed(seed: int, stage: int, step: int) -> int:
    """One 63-bit seed per (seed, stage, step), unrelated for neighbouring steps."""
    return int(np.random.SeedSequence([seed, stage, step]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _any_rank(value: bool, step: int, run: _Run) -> bool:
    """Whether ``value`` is true on any rank, so that all save a checkpoint or none; asked every 8th step, to save round trips."""
    if run.rank.world == 1:
        return value
    if step % 8:
        return False
    flag = torch.tensor([float(value)], device=run.source.device)
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag.item())


def _log(run: _Run, stage: Stage, step: int, total: int, logs: dict[str, Tensor], lr: float) -> Callable[[], str]:
    """Start copying a step's metrics from the device; the function returned waits for them and writes them to the log."""
    names, copied = list(logs), AsyncCopy(_mean_over_ranks(list(logs.values()), run.rank.world))

    def write() -> str:
        values = dict(zip(names, copied.read(), strict=True))
        if not math.isfinite(values["loss"]):
            raise UserError(
                f"training diverged: the loss of stage '{stage.name}' is {values['loss']} at step {step}; "
                f"lower train.lr (now {run.config.train.lr:g}) or set train.clip, and start again"
            )
        epoch = step * run.batch // len(run.source) + 1
        run.log.write({"stage": stage.name, "epoch": epoch, "step": step, "steps": total, **values, "lr": lr})
        return f"loss {values['loss']:.4f}"

    return write


def _mean_over_ranks(values: Sequence[Tensor], world: int) -> Tensor:
    stacked = torch.stack([value.float() for value in values])
    if world > 1:
        dist.all_reduce(stacked)
    return stacked / world


def _stage_identity(run: _Run, stages: Sequence[Stage], data: str) -> Identity | None:
    """All that decides what the last of ``stages`` learns; None where it cannot be cached.

    Several ranks do not use the cache: they would have to agree on what each of them finds.
    """
    if not data or run.rank.world > 1 or any(stage.decided_by is None for stage in stages):
        return None
    deciding = {"lr", "weight_decay", "schedule", "warmup", "clip", "amp"} | ({"patience"} if run.held else set())
    return identity(
        run.module,
        data=data,
        seed=run.config.seed,
        # What decides nothing that is learned is left out.
        images=run.config.data.model_dump(exclude={"memory_gb", "consensus", "slice_mm", "position", "max_pixels"}),
        train={"batch": run.batch, "device": run.source.device.type} | run.config.train.model_dump(include=deciding),
        stages=[[s.name, s.epochs, s.steps, s.folds, s.begin_images, dict(s.decided_by or {})] for s in stages],
    )


def _load_cached(run: _Run, stage: Stage, identified: Identity | None) -> int | None:
    """Load a stage from the cache, if another run has saved it there, and return its updates."""
    folder = cache_folder(run.config.train.cache)
    if identified is None or folder is None or (cost := load_stage(folder, identified, run.module)) is None:
        return None
    run.log.before += max(0.0, cost.seconds - run.log.seconds)
    run.log.write({"stage": stage.name, "cached": identified.key})
    return _all_updates(run, stage) if cost.updates is None else cost.updates


def _save_cached(run: _Run, identified: Identity | None, updates: int) -> None:
    folder = cache_folder(run.config.train.cache)
    if identified is not None and folder is not None:
        save_stage(folder, identified, run.module, StageCost(run.log.seconds, updates))


def _save(run: _Run, optimisers: Sequence[torch.optim.Optimizer], position: Position) -> None:
    if run.rank.rank == 0:
        save_checkpoint(run.folder / CHECKPOINT, run.module, optimisers, position)


def batch_size(wanted: int, images: int, world: int) -> int:
    """The global batch: as configured, but no more than there are images, and the same share for every rank."""
    batch = min(wanted, images - images % world)
    if batch < world or batch % world:
        raise UserError(
            f"train.batch {batch} cannot be shared equally by {world} ranks; set train.batch to a multiple of {world}"
        )
    return batch
