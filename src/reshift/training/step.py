"""One optimiser per objective, its learning rate over a stage, and one step of all objectives that are due."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reshift.config import TrainConfig
from reshift.kernels.available import runs_on, switched_on
from reshift.kernels.bf16_weights import Bf16Weights
from reshift.kernels.streams import overlap_weight_gradients
from reshift.methods.detector import Objective, Step
from reshift.system.device import half_precision, precision

if TYPE_CHECKING:
    from reshift.kernels.adamw import FusedAdamW


class Trained(NamedTuple):
    """An objective and its optimiser; the bf16 copies of its weights and the fused optimiser step, where they are in use."""

    objective: Objective
    optimiser: torch.optim.Optimizer
    bf16: Bf16Weights | None = None
    fused: "FusedAdamW | None" = None


def make_optimisers(
    objectives: Sequence[Objective], module: nn.Module, config: TrainConfig, device: torch.device
) -> list[Trained]:
    """One AdamW per objective of ``module``; fused into few kernels where they run and no other rank shares the gradients."""
    bf16 = Bf16Weights(module) if half_precision(device, config.amp) and switched_on("bf16_weights") else None
    alone = not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)
    made = [(objective, adamw(objective, config, gpu=device.type == "cuda")) for objective in objectives]
    if not (alone and switched_on("adamw") and runs_on(device)):
        return [Trained(objective, optimiser, bf16) for objective, optimiser in made]
    from reshift.kernels.adamw import FusedAdamW  # needs Triton

    if bf16:
        bf16.updated_by_optimiser = True
    return [Trained(objective, optimiser, bf16, FusedAdamW(optimiser, bf16)) for objective, optimiser in made]


def adamw(objective: Objective, config: TrainConfig, *, gpu: bool) -> torch.optim.Optimizer:
    """AdamW with the settings of ``config`` and the objective; on a GPU in the form that can be recorded."""
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


def set_learning_rate(due: Sequence[Trained], lr: float) -> None:
    """Give every optimiser its learning rate for the next step."""
    for each in due:
        for group in each.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr * each.objective.lr_factor)
            else:
                group["lr"] = lr * each.objective.lr_factor


def _parameters(objective: Objective) -> list[nn.Parameter]:
    return [p for part in objective.modules for p in part.parameters()]


def one_step(due: Sequence[Trained], x: Tensor, step: Step, config: TrainConfig) -> dict[str, Tensor]:
    """One step of every objective that is due."""
    logs: dict[str, Tensor] = {}
    for each in due:
        each.optimiser.zero_grad(set_to_none=True)
        if each.bf16:
            each.bf16.zero_grad()
        losses = losses_of(each, x, step, config)
        with overlap_weight_gradients(x):
            losses["loss"].backward()
        norm = each.fused.step(config.clip) if each.fused else _plain_step(each, step.world, config.clip)
        if config.clip:
            logs["gradient"] = norm
        logs |= {name: value.detach() for name, value in losses.items()}
    return logs


def losses_of(each: Trained, x: Tensor, step: Step, config: TrainConfig) -> dict[str, Tensor]:
    """What an objective says of a batch, in the precision of the training."""
    with precision(x.device, config.amp), each.bf16.in_use() if each.bf16 else nullcontext():
        return each.objective.loss(x, step)


def after_step(due: Sequence[Trained], step: Step) -> None:
    """Call what objectives do between two steps; they may change weights."""
    for each in due:
        if each.objective.after is not None:
            each.objective.after(step)
            if each.bf16:
                each.bf16.sync()


def _plain_step(each: Trained, world: int, clip: float) -> Tensor:
    """Clip and apply by torch's own means; returns the norm of the gradients, if they are clipped."""
    if each.bf16:
        each.bf16.copy_grads_back()
    parameters = _parameters(each.objective)
    _average_gradients(parameters, world)
    norm = nn.utils.clip_grad_norm_(parameters, clip) if clip else torch.zeros(())
    each.optimiser.step()
    return norm


def _average_gradients(parameters: Sequence[nn.Parameter], world: int) -> None:
    """Data parallelism in one all-reduce of one flat tensor; every rank holds an equal share of the batch."""
    if world == 1:
        return
    grads = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(flat)
    for grad, mean in zip(grads, (flat / world).split([g.numel() for g in grads]), strict=True):
        grad.copy_(mean.view_as(grad))
