"""One optimiser per objective, its learning rate over a stage, and one step of all that are due."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reshift.config import TrainConfig
from reshift.kernels.adamw import FusedAdamW
from reshift.kernels.bf16_weights import Halves
from reshift.methods.detector import Objective, Step
from reshift.nets.beside import weights_last
from reshift.nets.kernels import run_on
from reshift.system.device import precision


class Trained(NamedTuple):
    """An objective, its optimiser, the weights that it computes with where those are bf16, and who steps where torch does not."""

    objective: Objective
    optimiser: torch.optim.Optimizer
    halves: Halves | None = None
    fused: FusedAdamW | None = None


def optimisers(
    objectives: Sequence[Objective], halves: Halves | None, config: TrainConfig, device: torch.device
) -> list[Trained]:
    """One AdamW per objective; by our own kernels where they run and no other process has a share in the gradients."""
    alone = not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)
    fuse = alone and run_on(torch.empty(0, device=device))
    if halves:
        halves.kept = fuse
    made = [(objective, adamw(objective, config, gpu=device.type == "cuda")) for objective in objectives]
    return [Trained(objective, each, halves, FusedAdamW(each, halves) if fuse else None) for objective, each in made]


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
    for each in due:
        for group in each.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr * each.objective.rate)
            else:
                group["lr"] = lr * each.objective.rate


def _parameters(objective: Objective) -> list[nn.Parameter]:
    return [p for part in objective.modules for p in part.parameters()]


def one_step(due: Sequence[Trained], x: Tensor, step: Step, config: TrainConfig) -> dict[str, Tensor]:
    """One step of every objective that is due."""
    logs: dict[str, Tensor] = {}
    for each in due:
        each.optimiser.zero_grad(set_to_none=True)
        if each.halves:
            each.halves.forget()
        with precision(x.device, config.amp), each.halves.in_use() if each.halves else nullcontext():
            losses = each.objective.loss(x, step)
        with weights_last(x):
            losses["loss"].backward()
        norm = each.fused.step(config.clip) if each.fused else _step(each, step.world, config.clip)
        if config.clip:
            logs["gradient"] = norm
        logs |= {name: value.detach() for name, value in losses.items()}
    return logs


def afterwards(due: Sequence[Trained], step: Step) -> None:
    """What objectives do between two steps, and the weights that they may change."""
    for each in due:
        if each.objective.after is not None:
            each.objective.after(step)
            if each.halves:
                each.halves.follow()


def _step(each: Trained, world: int, clip: float) -> Tensor:
    """Clip and apply by torch's own means; returns the norm of the gradients, if they are clipped."""
    if each.halves:
        each.halves.give_back()
    parameters = _parameters(each.objective)
    _average_gradients(parameters, world)
    norm = nn.utils.clip_grad_norm_(parameters, clip) if clip else torch.zeros(())
    each.optimiser.step()
    return norm


def _average_gradients(parameters: Sequence[nn.Parameter], world: int) -> None:
    """Data parallelism in one all-reduce of one flat tensor; every process holds an equal share of the batch."""
    if world == 1:
        return
    grads = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(flat)
    for grad, mean in zip(grads, (flat / world).split([g.numel() for g in grads]), strict=True):
        grad.copy_(mean.view_as(grad))
