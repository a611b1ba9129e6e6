"""Clipping, AdamW and the bf16 copies of weights in three GPU kernels. The plain twin is torch's own AdamW in
``training.step``.

Gradient clipping and torch's AdamW go over all numbers five times in float32: gradients are widened, measured, scaled
and applied, and the weights are copied to bf16 again. Here gradients are read as backpropagation left them, once to
measure and once to apply, and the copies are written beside the weights. The state is that of torch's ``AdamW``, so
checkpoints do not depend on which of the two made a step.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202 (a kernel has no types)

import math

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from reshift.kernels.bf16_weights import Bf16Weights

SPARES = 8  # recordings of one optimiser's steps that may follow each other; there is one for every set of objectives due at once
BLOCK = 1024  # neighbouring elements of one tensor that a program takes
MANY = 1024  # numbers that the one program of ``_clip`` takes at once


class FusedAdamW:
    """Steps of ``optimiser``, a torch AdamW, which also keep the bf16 copies up to date."""

    def __init__(self, optimiser: torch.optim.Optimizer, bf16: Bf16Weights | None) -> None:
        self.optimiser, self.bf16 = optimiser, bf16
        self.tables: _Tables | None = None

    @torch.no_grad()
    def step(self, clip: float) -> Tensor:
        """Clip by the norm of all gradients, unless ``clip`` is 0, apply, and drop the gradients. Returns the norm."""
        t = self.tables = self.tables or _Tables(self.optimiser, self.bf16)
        (group,) = self.optimiser.param_groups
        grads = [self._gradient(p) for p in t.parameters]
        t.set_gradients(grads)
        norm, scale = torch.empty_like(t.lr), torch.empty_like(t.lr)
        part = torch.empty(len(t.owners), device=t.lr.device)
        where = (t.owners, t.starts, t.sizes)
        _square_sums[(len(part),)](*where, t.copies, t.grads, part, BLOCK=BLOCK)
        turns = {"PARTS": -(-len(part) // MANY), "TENSORS": -(-len(grads) // MANY), "MANY": MANY}
        _clip[(1,)](part, norm, scale, t.grads, t.steps, len(part), len(grads), clip, CLIP=clip > 0, **turns)
        beta1, beta2 = group["betas"]
        _step[(len(part),)](
            *where, t.weights, t.firsts, t.seconds, t.copies, t.steps, t.grads, scale, t.lr, group["weight_decay"],
            beta1, beta2, math.log(beta1) if beta1 else -math.inf, math.log(beta2), group["eps"], BLOCK=BLOCK,
            num_warps=8,
        )  # fmt: skip
        self.optimiser.zero_grad(set_to_none=True)
        if self.bf16:
            self.bf16.zero_grad()
        return norm

    def _gradient(self, parameter: nn.Parameter) -> Tensor | None:
        """The gradient in the weight's own memory order, or None."""
        copy = self.bf16.copy_of(parameter) if self.bf16 else None
        grad = parameter.grad if copy is None else copy.grad
        if grad is None:
            return None
        if _strides(grad) != _strides(parameter):
            grad = torch.empty_like(parameter, dtype=grad.dtype).copy_(grad)
        return grad if grad.data_ptr() % 16 == 0 else grad.clone()


class _Tables:
    """Addresses of all tensors, one row per kind, and which tensor each block belongs to."""

    def __init__(self, optimiser: torch.optim.Optimizer, bf16: Bf16Weights | None) -> None:
        (group,) = optimiser.param_groups  # one objective, one group
        self.parameters: list[nn.Parameter] = group["params"]
        self.lr: Tensor = group["lr"]
        states = [_state(optimiser, p) for p in self.parameters]
        copies = [bf16.copy_of(p) if bf16 else None for p in self.parameters]
        device = self.lr.device
        rows = [
            [p.numel() for p in self.parameters],
            [p.data_ptr() for p in self.parameters],
            *([state[name].data_ptr() for state in states] for name in ("exp_avg", "exp_avg_sq")),
            [0 if copy is None else copy.data_ptr() for copy in copies],
            [state["step"].data_ptr() for state in states],
        ]
        self.sizes, self.weights, self.firsts, self.seconds, self.copies, self.steps = torch.tensor(rows, device=device)
        blocks = [(i, start) for i, p in enumerate(self.parameters) for start in range(0, p.numel(), BLOCK)]
        self.owners, self.starts = torch.tensor(blocks, device=device).t().contiguous()
        self.grads = torch.zeros_like(self.sizes)
        self.spares: list[Tensor] = []
        self.recorded: list[Tensor] = []

    def set_gradients(self, grads: list[Tensor | None]) -> None:
        """Store where the gradients are. A recorded step reads the addresses from pinned memory in every replay."""
        addresses = torch.tensor([0 if grad is None else grad.data_ptr() for grad in grads])
        if not self.grads.is_cuda or not torch.cuda.is_current_stream_capturing():
            self.grads.copy_(addresses)
            while self.grads.is_cuda and len(self.spares) < SPARES:  # memory cannot be pinned while a step is recorded
                self.spares.append(torch.empty_like(addresses, pin_memory=True))
            return
        if not self.spares:
            raise RuntimeError("a step has to run before it can be recorded")
        host = self.spares.pop().copy_(addresses)
        _fetch[(-(-len(grads) // MANY),)](host, self.grads, len(grads), MANY=MANY)  # a copy inside a graph takes 15 µs
        self.recorded.append(host)  # every replay reads it


def _strides(tensor: Tensor) -> list[int]:
    """The strides of dimensions longer than one."""
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def _state(optimiser: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Tensor]:
    """AdamW's state of a weight, made as AdamW makes it, on the weight's own device."""
    state: dict[str, Tensor] = optimiser.state[parameter]
    if not state:
        state["step"] = torch.zeros((), device=parameter.device)
        state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return state


@triton.jit
def _gradient(address, half, start, n, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """This block's gradient in float32; it is bf16 in memory where the layer computes with a bf16 copy."""
    at = start + tl.arange(0, BLOCK)
    if half:
        place = tl.multiple_of(address.to(tl.pointer_type(tl.bfloat16)) + at, 16)
        value = (tl.load(place, at < n, 0.0) if MASKED else tl.load(place)).to(tl.float32)
    else:
        whole = tl.multiple_of(address.to(tl.pointer_type(tl.float32)) + at, 16)
        value = tl.load(whole, at < n, 0.0) if MASKED else tl.load(whole)
    return value


@triton.jit
def _square_sums(owners, starts, sizes, copies, grads, part, BLOCK: tl.constexpr):
    """Σg² of every block; 0 where a tensor has no gradient."""
    block = tl.program_id(0)
    tensor = tl.load(owners + block)
    start, n, address = tl.load(starts + block), tl.load(sizes + tensor), tl.load(grads + tensor)
    half = tl.load(copies + tensor) != 0
    value = tl.zeros([BLOCK], tl.float32)
    if address != 0:
        if start + BLOCK <= n:  # without a mask, loads are 16 bytes wide
            value = _gradient(address, half, start, n, False, BLOCK)
        else:
            value = _gradient(address, half, start, n, True, BLOCK)
    tl.store(part + block, tl.sum(value * value))


@triton.jit
def _clip(
    part, norm, scale, grads, steps, blocks, tensors, limit,
    CLIP: tl.constexpr, PARTS: tl.constexpr, TENSORS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """The norm over all tensors, the factor for gradients, and one step more for each tensor that has a gradient."""
    lane = tl.arange(0, MANY)
    total = tl.zeros([MANY], tl.float32)
    for i in range(PARTS):
        at = i * MANY + lane
        total += tl.load(part + at, at < blocks, 0.0)
    length = tl.sqrt(tl.sum(total))
    tl.store(norm, length)
    factor = limit / (length + 1e-6)
    tl.store(scale, tl.where(factor < 1.0, factor, 1.0) if CLIP else 1.0)
    for i in range(TENSORS):
        at = i * MANY + lane
        known = at < tensors
        live = known & (tl.load(grads + at, known, 0) != 0)
        place = tl.load(steps + at, known, 0).to(tl.pointer_type(tl.float32))
        tl.store(place, tl.load(place, live, 0.0) + 1.0, live)


@triton.jit
def _fetch(host, device, n, MANY: tl.constexpr):
    """Copy addresses from the host's pinned memory."""
    at = tl.program_id(0) * MANY + tl.arange(0, MANY)
    tl.store(device + at, tl.load(host + at, at < n, 0), at < n)


@triton.jit
def _correction(log_beta, t):
    """1 - β^t, also for the first steps, where the difference would lose its digits."""
    x = log_beta * t
    near = -x * (1.0 + x * (0.5 + x * (1.0 / 6.0 + x / 24.0)))
    return tl.where(x > -0.05, near, 1.0 - tl.exp(x))


@triton.jit
def _moved(
    p, m, v, h, g, half, start, n, size, decay, root, beta1, beta2, eps, MASKED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Move one block of a weight and its two moments, and write the bf16 copy."""
    at = start + tl.arange(0, BLOCK)
    known = at < n
    weight = tl.multiple_of(p.to(tl.pointer_type(tl.float32)) + at, 16)
    first = tl.multiple_of(m.to(tl.pointer_type(tl.float32)) + at, 16)
    second = tl.multiple_of(v.to(tl.pointer_type(tl.float32)) + at, 16)
    a = tl.load(first, known, 0.0) if MASKED else tl.load(first)
    b = tl.load(second, known, 0.0) if MASKED else tl.load(second)
    w = tl.load(weight, known, 0.0) if MASKED else tl.load(weight)
    a = beta1 * a + (1.0 - beta1) * g
    b = beta2 * b + (1.0 - beta2) * g * g
    w = w * decay - size * a / (tl.sqrt(b) / root + eps)
    tl.store(first, a, known) if MASKED else tl.store(first, a)
    tl.store(second, b, known) if MASKED else tl.store(second, b)
    tl.store(weight, w, known) if MASKED else tl.store(weight, w)
    if half:
        copy = tl.multiple_of(h.to(tl.pointer_type(tl.bfloat16)) + at, 16)
        tl.store(copy, w.to(tl.bfloat16), known) if MASKED else tl.store(copy, w.to(tl.bfloat16))


@triton.jit
def _step(
    owners, starts, sizes, weights, firsts, seconds, copies, steps, grads, scale, lr, decay, beta1, beta2, log1, log2, eps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """AdamW: w ← w·(1 - lr·decay) - lr·m̂ / (√v̂ + ε); m, v are running means of g, g², and m̂, v̂ their bias-corrected values."""
    block = tl.program_id(0)
    tensor = tl.load(owners + block)
    start, n, address = tl.load(starts + block), tl.load(sizes + tensor), tl.load(grads + tensor)
    p, m, v, h = (tl.load(weights + tensor), tl.load(firsts + tensor), tl.load(seconds + tensor), tl.load(copies + tensor))
    half = h != 0
    if address != 0:
        t = tl.load(tl.load(steps + tensor).to(tl.pointer_type(tl.float32)))
        rate, factor = tl.load(lr), tl.load(scale)
        size, root = rate / _correction(log1, t), tl.sqrt(_correction(log2, t))
        keep = 1.0 - rate * decay
        if start + BLOCK <= n:
            g = factor * _gradient(address, half, start, n, False, BLOCK)
            _moved(p, m, v, h, g, half, start, n, size, keep, root, beta1, beta2, eps, False, BLOCK)
        else:
            g = factor * _gradient(address, half, start, n, True, BLOCK)
            _moved(p, m, v, h, g, half, start, n, size, keep, root, beta1, beta2, eps, True, BLOCK)
