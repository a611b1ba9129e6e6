"""The losses: L_VQ (Eq. 4), L_diff (Eq. 6), L_cls (Eq. 9), L_stage2 (Eq. 10)."""

from torch import Tensor


def _squared_norm(v: Tensor) -> Tensor:
    """:math:`\\|v\\|_2^2` of every sample, ``(B, C, H, W)`` → ``(B,)``."""
    return v.square().sum((1, 2, 3))


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
    return (_squared_norm(M * (eps - eps_hat)) / (d_z * M.sum((1, 2, 3)))).mean()


def classification_loss(logits: Tensor, logits_r: Tensor) -> Tensor:
    """Eq. 9: :math:`-\\frac{1}{2B}\\sum_i [\\log(1-f_\\psi(x_i)) + \\log f_\\psi(x_i^r)]`.

    Takes the two-class logits ``(B, 2)`` of originals and counterparts; f_ψ is the softmax of class one. Log-softmax stays
    finite where log f would not.
    """
    return -(logits.log_softmax(1)[:, 0] + logits_r.log_softmax(1)[:, 1]).mean() / 2.0


def stage2_loss(l_diff: Tensor, l_cls: Tensor, lambda_: float) -> Tensor:
    """Eq. 10: :math:`L_{stage2} = L_{diff} + \\lambda L_{cls}`."""
    return l_diff + lambda_ * l_cls
