"""Vector quantisation: nearest code (Eq. 2), straight-through estimator (Eq. 3), and how the codes are used."""

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx


def nearest_code(z_e: Tensor, codebook: Tensor) -> Tensor:
    """Eq. 2, left: :math:`k^*_{ij} = \\arg\\min_k \\|z_e[i,j] - e_k\\|^2`. ``(B, d_z, h, w)``, ``(K, d_z)`` → ``(B, h, w)``."""
    z = z_e.permute(0, 2, 3, 1)  # (B, h, w, d_z)
    # ‖z‖² is the same for every k, so it cannot change the argmin; leaving it out halves the work.
    distance = torch.addmm(codebook.square().sum(1), z.flatten(0, 2), codebook.t(), alpha=-2)  # (B·h·w, K)
    return distance.argmin(1).view(z.shape[:3])


def lookup(k: Tensor, codebook: Tensor) -> Tensor:
    """Eq. 2, right: :math:`z_q[i,j] = e_{k^*_{ij}}`. ``(B, h, w)`` → ``(B, d_z, h, w)``; differentiable in the codebook."""
    rows: Tensor = _Rows.apply(k, codebook)  # type: ignore[no-untyped-call]
    return rows.permute(0, 3, 1, 2)


class _Rows(torch.autograd.Function):
    """``codebook[k]``. Its gradient is a product with one-hot rows: of few codes a GPU has that at once, where it would sort."""

    @staticmethod
    def forward(ctx: FunctionCtx, k: Tensor, codebook: Tensor) -> Tensor:
        ctx.save_for_backward(k, codebook)
        return codebook[k]

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[None, Tensor]:
        k, codebook = ctx.saved_tensors  # type: ignore[attr-defined]
        chosen = gradient.new_zeros(k.numel(), len(codebook)).scatter_(1, k.reshape(-1, 1), 1.0)
        return None, chosen.t() @ gradient.flatten(0, -2)


def straight_through(z_e: Tensor, z_q: Tensor) -> Tensor:
    """Eq. 3: :math:`z_q^{st} = z_e + \\mathrm{sg}[z_q - z_e]`; the value of z_q, the gradient of z_e."""
    return z_e + (z_q - z_e).detach()


def code_counts(k: Tensor, K: int) -> Tensor:
    """How often each of the K codes was chosen."""
    k = k.reshape(-1)  # not bincount, which makes the GPU wait for the CPU; sums of ones are exact in float32 up to 2^24
    return torch.zeros(K, device=k.device).index_add_(0, k, torch.ones_like(k, dtype=torch.float32))


def usage_and_perplexity(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the share of codes in use and exp(entropy): K when all codes are used alike, 1 when one code does all the work."""
    p = counts / counts.sum().clamp(min=1)
    entropy = -(p * p.clamp(min=1e-12).log()).sum()
    return (counts > 0).float().mean(), entropy.exp()


def vectors(z: Tensor) -> Tensor:
    """``(B, d_z, h, w)`` → ``(B·h·w, d_z)``."""
    return z.permute(0, 2, 3, 1).flatten(0, 2)


def some_rows(rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return ``count`` random rows, repeated only if there are too few."""
    order = torch.randperm(max(len(rows), count), generator=generator)[:count] % len(rows)
    return rows[order.to(rows.device)]
