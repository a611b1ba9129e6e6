"""AdamW on a GPU in three kernels, bf16 gradients and bf16 copies included.

Gradient clipping and torch's AdamW go over all numbers five times in float32: gradients are widened, measured, scaled, applied,
and the weights halved again for the next step. Here gradients are read as backpropagation left them, once to measure and once
to apply, and the copies that layers compute with are written beside the weights. The state is torch's own ``AdamW``'s: what a
checkpoint holds does not tell who computed it.
"""

import math

import torch
from torch import Tensor, nn

from reshift.kernels.bf16_weights import Halves

SPARES = 8  # recordings of one optimiser's steps that may follow each other; there is one for every set of objectives due at once


class FusedAdamW:
    """Steps of ``optimiser``, for which ``halves`` are kept up to date."""

    def __init__(self, optimiser: torch.optim.Optimizer, halves: Halves | None) -> None:
        self.optimiser, self.halves = optimiser, halves
        self.tables: _Tables | None = None

    @torch.no_grad()
    def step(self, clip: float) -> Tensor:
        """Clip by the norm of all gradients, unless ``clip`` is 0, and apply; returns the norm. Gradients are gone then."""
        import reshift.kernels.adamw_triton as kernels

        t = self.tables = self.tables or _Tables(self.optimiser, self.halves)
        (group,) = self.optimiser.param_groups
        grads = [self._gradient(p) for p in t.parameters]
        t.point(grads)
        norm, scale = torch.empty_like(t.lr), torch.empty_like(t.lr)
        part = torch.empty(len(t.owners), device=t.lr.device)
        where = (t.owners, t.starts, t.sizes)
        kernels.squares[(len(part),)](*where, t.halves, t.grads, part, BLOCK=kernels.BLOCK)
        turns = {"PARTS": -(-len(part) // kernels.MANY), "TENSORS": -(-len(grads) // kernels.MANY), "MANY": kernels.MANY}
        kernels.clip[(1,)](part, norm, scale, t.grads, t.steps, len(part), len(grads), clip, CLIP=clip > 0, **turns)
        beta1, beta2 = group["betas"]
        kernels.step[(len(part),)](
            *where, t.weights, t.firsts, t.seconds, t.halves, t.steps, t.grads, scale, t.lr, group["weight_decay"],
            beta1, beta2, math.log(beta1) if beta1 else -math.inf, math.log(beta2), group["eps"], BLOCK=kernels.BLOCK,
            num_warps=8,
        )  # fmt: skip
        self.optimiser.zero_grad(set_to_none=True)
        if self.halves:
            self.halves.forget()
        return norm

    def _gradient(self, parameter: nn.Parameter) -> Tensor | None:
        """As it lies in memory beside the weight, or nothing."""
        half = self.halves.of(parameter) if self.halves else None
        grad = parameter.grad if half is None else half.grad
        if grad is None:
            return None
        if _steps(grad) != _steps(parameter):
            grad = torch.empty_like(parameter, dtype=grad.dtype).copy_(grad)
        return grad if grad.data_ptr() % 16 == 0 else grad.clone()


class _Tables:
    """Addresses of all tensors, in rows, and which block belongs to which."""

    def __init__(self, optimiser: torch.optim.Optimizer, halves: Halves | None) -> None:
        from reshift.kernels.adamw_triton import BLOCK

        (group,) = optimiser.param_groups  # one objective, one group
        self.parameters: list[nn.Parameter] = group["params"]
        self.lr: Tensor = group["lr"]
        states = [_state(optimiser, p) for p in self.parameters]
        copies = [halves.of(p) if halves else None for p in self.parameters]
        device = self.lr.device
        rows = [
            [p.numel() for p in self.parameters],
            [p.data_ptr() for p in self.parameters],
            *([state[name].data_ptr() for state in states] for name in ("exp_avg", "exp_avg_sq")),
            [0 if copy is None else copy.data_ptr() for copy in copies],
            [state["step"].data_ptr() for state in states],
        ]
        self.sizes, self.weights, self.firsts, self.seconds, self.halves, self.steps = torch.tensor(rows, device=device)
        blocks = [(i, start) for i, p in enumerate(self.parameters) for start in range(0, p.numel(), BLOCK)]
        self.owners, self.starts = torch.tensor(blocks, device=device).t().contiguous()
        self.grads = torch.zeros_like(self.sizes)
        self.spares: list[Tensor] = []
        self.recorded: list[Tensor] = []

    def point(self, grads: list[Tensor | None]) -> None:
        """Say where the gradients are; of a recorded step, in every replay, which reads it from pinned memory."""
        addresses = torch.tensor([0 if grad is None else grad.data_ptr() for grad in grads])
        if not self.grads.is_cuda or not torch.cuda.is_current_stream_capturing():
            self.grads.copy_(addresses)
            while self.grads.is_cuda and len(self.spares) < SPARES:  # memory cannot be pinned while a step is recorded
                self.spares.append(torch.empty_like(addresses, pin_memory=True))
            return
        if not self.spares:
            raise RuntimeError("a step has to run before it can be recorded")
        from reshift.kernels.adamw_triton import MANY, fetch

        host = self.spares.pop().copy_(addresses)
        fetch[(-(-len(grads) // MANY),)](host, self.grads, len(grads), MANY=MANY)  # a copy inside a graph takes 15 µs
        self.recorded.append(host)  # every replay reads it


def _steps(tensor: Tensor) -> list[int]:
    """Its strides, as far as they matter."""
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def _state(optimiser: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Tensor]:
    """What AdamW knows of a weight, made as AdamW makes it, on the weight's own device."""
    state: dict[str, Tensor] = optimiser.state[parameter]
    if not state:
        state["step"] = torch.zeros((), device=parameter.device)
        state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return state
