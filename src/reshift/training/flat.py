"""Ending a stage early: where the loss on held-out normals no longer falls, more updates teach nothing about new images."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from reshift.config import Config, TrainConfig
from reshift.data.cases import Case
from reshift.data.source import Source
from reshift.errors import UserError
from reshift.methods.detector import Stage, Step
from reshift.training.step import Trained, losses_of

LEAST = 0.01  # a fall by a smaller share of the loss is none
LOOKS = 4  # at the held-out loss, while a stage is patient
IMAGES = 64  # of the held-out normals, at most: the same in every look
HELD_OUT_LOSS = "held_out_loss"


class Lowest(NamedTuple):
    """The lowest loss on held-out normals so far, and after how many updates it was found."""

    loss: float = math.inf
    updates: int = 0

    def or_now(self, loss: float, updates: int) -> "Lowest":
        """This, or what was found now if the loss has fallen."""
        fallen = math.isinf(self.loss) or loss < self.loss - LEAST * abs(self.loss)
        return Lowest(loss, updates) if fallen else self


def check_patience(train: TrainConfig, held: Sequence[Case]) -> None:
    """Refuse what cannot end early before anything is written."""
    if train.patience and not held:
        raise UserError("train.patience needs held-out normals; set data.holdout above 0, or train.patience to 0")
    if train.patience and train.schedule != "constant":
        raise UserError('train.patience needs train.schedule = "constant": a cosine falls towards an end that is known')


class HeldOut:
    """Held-out normals, on the device."""

    def __init__(self, cases: Sequence[Case], config: Config, device: torch.device) -> None:
        self.config, self.device, self.patience = config.train, device, config.train.patience
        source = Source(cases[:: math.ceil(len(cases) / IMAGES)], config.data, device)
        self.batches = list(source.batches())
        source.close()

    def loss(self, pair: Trained, seed: Sequence[int]) -> Tensor:
        """The mean loss of one objective, always with the same random numbers; nothing is learned from it."""
        parts = pair.objective.modules
        for part in parts:
            part.eval()
        total = torch.zeros((), device=self.device)
        with torch.no_grad():
            for i, images in enumerate(self.batches):
                number = np.random.SeedSequence([*seed, i]).generate_state(1, np.uint64)[0] >> np.uint64(1)
                step = Step(torch.Generator(self.device).manual_seed(int(number)))
                total += losses_of(pair, images, step, self.config)["loss"].float() * len(images)
        for part in parts:
            part.train()
        mean = total / sum(map(len, self.batches))
        if dist.is_available() and dist.is_initialized():  # so that all ranks decide alike
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
        return mean


class Watch:
    """Looks at the held-out loss of one stage from time to time; without held-out normals it never does."""

    def __init__(
        self, held: HeldOut | None, stage: Stage, trained: Sequence[Trained], seed: Sequence[int], lowest: Lowest
    ) -> None:
        self.held, self.trained, self.seed, self.lowest = held if can_end_early(stage) else None, trained, seed, lowest

    def look(self, updates: int) -> dict[str, Tensor]:
        """What to log after so many updates: the held-out loss where it is time to look at it, else nothing."""
        if self.held is None or updates % max(1, self.held.patience // LOOKS):
            return {}
        loss = self.held.loss(self.trained[0], self.seed)
        self.lowest = self.lowest.or_now(float(loss), updates)
        return {HELD_OUT_LOSS: loss}

    def flat(self, updates: int) -> bool:
        """Whether the loss has not fallen for as long as one was to wait."""
        return self.held is not None and updates - self.lowest.updates >= self.held.patience


def can_end_early(stage: Stage) -> bool:
    """Only a loss that one objective lowers can become flat, and cross-fitted parts have no normals that all have not seen."""
    return len(stage.objectives) == 1 and stage.folds == 1
