"""One optimiser per objective, its learning rate over a stage, and one step of all that are due."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reshift.config import TrainConfig
from reshift.halves import Halves
from reshift.methods.detector import Objective, Step
from reshift.runtime import precision


class Trained(NamedTuple):
    """An objective, the optimiser that follows it, and the weights that it computes with where those are bf16."""

    objective: Objective
    optimiser: torch.optim.Optimizer
    halves: Halves | None = None


def adamw(objective: Objective, config: TrainConfig, *, gpu: bool) -> torch.optim.Optimizer:
    """AdamW as ``config`` and the objective want it; on a GPU in the form that can be recorded."""
    parameters, decay = _parameters(objective), config.weight_decay
    lr = torch.tensor(config.lr, device=parameters[0].device) if gpu else config.lr  # a recorded step reads it from there
    return torch.optim.AdamW(parameters, lr, objective.betas, weight_decay=decay, fused=gpu, capturable=gpu)


def learning_rate(config: TrainConfig, total: int, step: int) -> float:
    """``train.lr`` at a step of a stage of ``total`` steps: warm-up, then constant or half a cosine down to 0."""
    warm = config.warmup * total
    if step < warm:
        return config.lr * (step + 1) / warm if warm >= 1 else config.lr
    if config.schedule == "constant":
        return config.lr
    return config.lr * 0.5 * (1.0 + math.cos(math.pi * (step - warm) / (total - warm)))


def set_rate(due: Sequence[Trained], lr: float) -> None:
    """Give every optimiser its learning rate for the next step."""
    for objective, optimiser, _ in due:
        for group in optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr * objective.rate)
            else:
                group["lr"] = lr * objective.rate


def _parameters(objective: Objective) -> list[nn.Parameter]:
    return [p for part in objective.modules for p in part.parameters()]


def one_step(due: Sequence[Trained], x: Tensor, step: Step, config: TrainConfig) -> dict[str, Tensor]:
    """One step of every objective that is due."""
    logs: dict[str, Tensor] = {}
    for objective, optimiser, halves in due:
        optimiser.zero_grad(set_to_none=True)
        with precision(x.device, config.amp), halves.in_use() if halves else nullcontext():
            losses = objective.loss(x, step)
        losses["loss"].backward()
        if halves:
            halves.give_back()
        parameters = _parameters(objective)
        _average_gradients(parameters, step.world)
        if config.clip:
            logs["gradient"] = nn.utils.clip_grad_norm_(parameters, config.clip)
        optimiser.step()
        logs |= {name: value.detach() for name, value in losses.items()}
    return logs


def _average_gradients(parameters: Sequence[nn.Parameter], world: int) -> None:
    """Data parallelism in one all-reduce of one flat tensor; every process holds an equal share of the batch."""
    if world == 1:
        return
    grads = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(flat)
    for grad, mean in zip(grads, (flat / world).split([g.numel() for g in grads]), strict=True):
        grad.copy_(mean.view_as(grad))
