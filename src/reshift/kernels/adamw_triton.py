"""The kernels of adamw.py. One row of addresses per tensor; a program takes BLOCK neighbouring elements of one tensor."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202 (a kernel has no types)

import triton
import triton.language as tl

BLOCK = 1024  # elements of a program
MANY = 1024  # numbers that the one program of ``clip`` takes at once


@triton.jit
def _gradient(address, half, start, n, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """This block's gradient in float32: of bf16 where the layer computes with a half copy."""
    at = start + tl.arange(0, BLOCK)
    if half:
        place = tl.multiple_of(address.to(tl.pointer_type(tl.bfloat16)) + at, 16)
        value = (tl.load(place, at < n, 0.0) if MASKED else tl.load(place)).to(tl.float32)
    else:
        whole = tl.multiple_of(address.to(tl.pointer_type(tl.float32)) + at, 16)
        value = tl.load(whole, at < n, 0.0) if MASKED else tl.load(whole)
    return value


@triton.jit
def squares(owners, starts, sizes, halves, grads, part, BLOCK: tl.constexpr):
    """Σg² of every block; 0 where a tensor has no gradient."""
    block = tl.program_id(0)
    tensor = tl.load(owners + block)
    start, n, address = tl.load(starts + block), tl.load(sizes + tensor), tl.load(grads + tensor)
    half = tl.load(halves + tensor) != 0
    value = tl.zeros([BLOCK], tl.float32)
    if address != 0:
        if start + BLOCK <= n:  # without a mask, loads are 16 bytes wide
            value = _gradient(address, half, start, n, False, BLOCK)
        else:
            value = _gradient(address, half, start, n, True, BLOCK)
    tl.store(part + block, tl.sum(value * value))


@triton.jit
def clip(
    part, norm, scale, grads, steps, blocks, tensors, limit,
    CLIP: tl.constexpr, PARTS: tl.constexpr, TENSORS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """The norm over all tensors, what to multiply gradients by, and one step more for each tensor that has one."""
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
def fetch(host, device, n, MANY: tl.constexpr):
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
    """Move one block of a weight and its two moments, and write the half copy."""
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
def step(
    owners, starts, sizes, weights, firsts, seconds, halves, steps, grads, scale, lr, decay, beta1, beta2, log1, log2, eps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """AdamW: w ← w·(1 - lr·decay) - lr·m̂ / (√v̂ + ε) with m, v the running means of g, g² and m̂, v̂ those free of their start."""
    block = tl.program_id(0)
    tensor = tl.load(owners + block)
    start, n, address = tl.load(starts + block), tl.load(sizes + tensor), tl.load(grads + tensor)
    p, m, v, h = (tl.load(weights + tensor), tl.load(firsts + tensor), tl.load(seconds + tensor), tl.load(halves + tensor))
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
