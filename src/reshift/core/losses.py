"""The losses: L_VQ (Eq. 4), L_diff (Eq. 6), L_cls (Eq. 9), L_stage2 (Eq. 10)."""

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F


def _squared_norm(v: Tensor) -> Tensor:
    """:math:`\\|v\\|_2^2` of every sample, ``(B, …)`` → ``(B,)``."""
    norms: Tensor = _SquaredNorm.apply(v)  # type: ignore[no-untyped-call]
    return norms


class _SquaredNorm(torch.autograd.Function):
    """torch would go over v three times for its gradient, 2·v."""

    @staticmethod
    def forward(ctx: FunctionCtx, v: Tensor) -> Tensor:
        ctx.save_for_backward(v)
        return v.square().sum(tuple(range(1, v.dim())))  # not flatten(1), which copies what is channels-last

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        (v,) = ctx.saved_tensors  # type: ignore[attr-defined]
        by_v: Tensor = v * (2.0 * gradient).view(-1, *[1] * (v.dim() - 1))
        return by_v


def vq_loss(x: Tensor, x_hat: Tensor, z_e: Tensor, z_q: Tensor, beta_c: float) -> Tensor:
    """Eq. 4, all three terms, norms summed as printed and averaged over the batch.

    Reconstruction moves encoder and decoder, :math:`\\|sg[z_e]-z_q\\|^2` only the codebook, :math:`\\|z_e-sg[z_q]\\|^2` only
    the encoder.
    """
    reconstruction = _squared_norm(x_hat - x)
    codebook = _squared_norm(z_q - z_e.detach())
    commitment = _squared_norm(z_e - z_q.detach())
    return (reconstruction + codebook + beta_c * commitment).mean()


def diffusion_loss(eps: Tensor, eps_hat: Tensor, M: Tensor) -> Tensor:
    """Eq. 6: :math:`\\|\\bar M (\\epsilon-\\epsilon_\\omega)\\|^2 / (d_z \\|M\\|_1)`, normalised per sample, then averaged."""
    d_z = eps.shape[1]
    return (_squared_norm(M * (eps_hat - eps)) / (d_z * M.flatten(1).sum(1))).mean()


def classification_loss(logits: Tensor, logits_r: Tensor) -> Tensor:
    """Eq. 9: :math:`-\\frac{1}{2B}\\sum_i [\\log(1-f_\\psi(x_i)) + \\log f_\\psi(x_i^r)]`.

    Takes the two-class logits ``(B, 2)`` of originals and counterparts, f_ψ being the softmax of class one, because
    log-softmax stays finite where log f would not.
    """
    b = len(logits)
    classes = torch.arange(2 * b, device=logits.device) // b  # 0 … 0, 1 … 1
    return F.cross_entropy(torch.cat([logits, logits_r]), classes)


def stage2_loss(l_diff: Tensor, l_cls: Tensor, lambda_: float) -> Tensor:
    """Eq. 10: :math:`L_{stage2} = L_{diff} + \\lambda L_{cls}`."""
    return l_diff + lambda_ * l_cls
