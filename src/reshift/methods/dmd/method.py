"""DMD: Algorithm 1 (two-stage training) on top of Algorithm 2 (inference.py), and the five ablations as flags.

Paper: "Reconstruction-Shift Discrimination via Mask-Guided Latent Diffusion for Medical Anomaly Detection". Every choice the
paper leaves open is listed, with its reason, in docs/equations.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from reshift.config import Frozen
from reshift.core.diffusion import clean_estimate, masked_forward
from reshift.core.losses import classification_loss, diffusion_loss, stage2_loss, vq_loss
from reshift.core.masks import random_square
from reshift.core.schedule import at
from reshift.methods.detector import Objective, Stage, Step
from reshift.methods.dmd.inference import DualLevelInference
from reshift.methods.dmd.settings import STAGE1, STAGE2, DMDSettings
from reshift.nets.vqvae import Quantized, as_rows, code_counts, usage_and_perplexity

RUNNING = 0.01  # weight of the newest batch in the running variance of the latents, without pre-training


class DMD(DualLevelInference):
    """Vector-quantised autoencoder, masked latent denoiser, reconstruction-shift classifier."""

    Settings: ClassVar[type[Frozen]] = DMDSettings
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "quick": {
            "train": {"batch": 16, "lr": 1e-3},
            "model": {"stage1_epochs": 60, "stage2_epochs": 20, "unet_widths": [48, 64, 96], "restart_after": 25},
        },
        # What the paper does not say is left out; ``model.literal = true`` asks for the same.
        "literal": {
            "train": {"amp": "off", "clip": 0.0},
            "model": {"literal": True, "latent_scale": "none", "codebook": "uniform", "restart_after": 0},
        },
    }
    bf16: ClassVar[bool] = True
    bf16_cpu: ClassVar[bool] = True
    recordable: ClassVar[bool] = True
    idle: Tensor

    def __init__(self, settings: DMDSettings, size: int, channels: int) -> None:
        super().__init__(settings, size, channels)
        self.register_buffer("idle", torch.zeros(settings.codes))  # steps since each code was last chosen

    def stages(self) -> Sequence[Stage]:
        """Stage I trains E_φ, D_η and C; Stage II trains ω and ψ only."""
        s = self.settings
        second = tuple(m for m in (self.denoiser, self.shift) if not isinstance(m, nn.Identity))
        if not s.pretraining:
            joint = Objective((self.vqvae, *second), self._joint, after=self._restart_dead_codes)
            facts = self._facts("joint, scale followed", STAGE1 | STAGE2)
            return (Stage("joint", s.stage1_epochs + s.stage2_epochs, (joint,), self._begin_codebook, facts),)
        pretraining = Objective((self.vqvae,), self._stage1, after=self._restart_dead_codes)
        first = Stage("autoencoder", s.stage1_epochs, (pretraining,), self._begin_codebook, self._facts("VQ-VAE", STAGE1))
        if not second:
            return (first,)
        objective, facts = Objective(second, self._stage2), self._facts("masked restoration", STAGE2)
        return (first, Stage("restoration", s.stage2_epochs, (objective,), self._fit_scale, facts))

    def _begin_codebook(self, images: Iterable[Tensor]) -> None:
        """Algorithm 1, line 1. The codebook was made uniform, as the VQ-VAE paper has it."""
        if self.settings.codebook == "encoder":
            self.vqvae.fit_codebook(images)

    def _facts(self, what: str, names: set[str]) -> dict[str, Any]:
        return {"what": f"DMD: {what}", **self.settings.model_dump(mode="json", include=names)}

    # ---- Stage I: quantised autoencoder ----------------------------------------------------------------------------

    def _stage1(self, x: Tensor, step: Step) -> dict[str, Tensor]:
        """Algorithm 1, lines 5 and 6: encode, quantise, decode, and take L_VQ."""
        q = self.vqvae.encode(x)
        x_hat = self.vqvae.decode(self._hide(q.z_st, step))
        return {"loss": self._vq(x, x_hat, q), **self._code_usage(q, step)}

    def _vq(self, x: Tensor, x_hat: Tensor, q: Quantized) -> Tensor:
        """Eq. 4 divided by C·H·W: AdamW does not feel the factor, gradient clipping and the log do."""
        return vq_loss(x, x_hat.to(x.dtype), q.z_e, q.z_q, self.settings.beta_c) / x[0].numel()

    def _hide(self, z: Tensor, step: Step) -> Tensor:
        """Without latent diffusion the autoencoder itself must learn to fill masked latents; otherwise it sees them all."""
        return z if self.settings.diffusion else (1.0 - self._random_mask(len(z), step)) * z

    def _code_usage(self, q: Quantized, step: Step) -> dict[str, Tensor]:
        counts = step.total(code_counts(q.k, self.settings.codes))
        self.idle.copy_(torch.where(counts > 0, 0.0, self.idle + 1.0))
        if self.settings.restart_after:
            self._recent = as_rows(step.gather(q.z_e.detach()))
        usage, perplexity = usage_and_perplexity(counts)
        return {"code_usage": usage, "code_perplexity": perplexity}

    def _restart_dead_codes(self, step: Step) -> None:
        """Move codes unused for long onto encoder outputs of the current batch, which some position is sure to choose."""
        limit = self.settings.restart_after
        if not limit or not bool((dead := self.idle >= limit).any()):
            return
        pick = torch.randint(len(self._recent), (int(dead.sum()),), generator=step.generator, device=self._recent.device)
        with torch.no_grad():
            self.vqvae.codebook[dead] = self._recent[pick]
        self.idle[dead] = 0.0

    # ---- Stage II: masked diffusion and reconstruction-shift discrimination ----------------------------------------

    def _fit_scale(self, images: Iterable[Tensor]) -> None:
        """Set ``scale`` to 1 / std of z_q over the training images."""
        if self.settings.latent_scale != "none" and self.settings.diffusion:
            self.scale.fill_(1.0 / self.vqvae.deviation(images))

    def _follow_scale(self, z_q: Tensor, step: Step) -> None:
        """Fit ``scale`` while the codes still move: a running variance of the batches' z_q, as BatchNorm has one."""
        if self.settings.latent_scale == "none" or not self.settings.diffusion:
            return
        sums = step.total(torch.stack([z_q.sum(), z_q.square().sum()]).double()) / (z_q.numel() * step.world)
        variance = (sums[1] - sums[0].square()).clamp(min=1e-12)
        running = torch.lerp(self.scale.double().pow(-2.0), variance, RUNNING)
        self.scale.copy_(running.pow(-0.5))  # before its first use in the step: autograd keeps it for the backward pass

    def _stage2(self, x: Tensor, step: Step) -> dict[str, Tensor]:
        """Algorithm 1, lines 14 to 19."""
        with torch.no_grad():
            z0 = self.latents(x)
        z0_hat, logs = self._restored(z0, step)
        return self._discriminated(x, self.decode(z0_hat), logs)

    def _random_mask(self, b: int, step: Step) -> Tensor:
        """Eq. A1 for every sample."""
        s, g = self.settings, self.grid
        if not s.masking:
            return self.scale.new_ones(b, 1, g, g)
        return random_square(step.uniform(b, 3), s.rho_min, s.rho_max, g)

    def _restored(self, z0: Tensor, step: Step) -> tuple[Tensor, dict[str, Tensor]]:
        """Lines 15 to 17: draw M, t and ε for every sample, noise inside M, estimate the clean latent; with L_diff."""
        M = self._random_mask(len(z0), step)
        t, eps = step.integers(1, self.settings.timesteps, len(z0)), step.normal(*z0.shape)
        if not self.settings.diffusion:
            return (1.0 - M) * z0, {}
        a_bar = at(self.alpha_bar, t)
        z_t = masked_forward(z0, eps, M, a_bar)
        eps_hat = self.denoiser(z_t, t).to(z_t.dtype)
        z0_hat = clean_estimate(z_t, eps_hat, z0, M, a_bar)
        return z0_hat, {"diffusion": diffusion_loss(eps, eps_hat, M), "latent_peak": z0_hat.detach().abs().amax()}

    def _discriminated(self, x: Tensor, x_r: Tensor, logs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Line 19: add L_cls and combine into L_stage2, as far as this variant has the parts."""
        s, l_diff = self.settings, logs.get("diffusion", x.new_zeros(()))
        if not s.classifier:
            return {**logs, "loss": l_diff}
        x_r = x_r if s.feedback else x_r.detach()
        both = torch.cat([x.to(x_r.dtype), x_r])  # one joint batch, so that BatchNorm has one set of statistics
        logits, logits_r = self.shift(both).to(x.dtype).chunk(2)
        right = torch.cat([logits[:, 0] > logits[:, 1], logits_r[:, 1] > logits_r[:, 0]]).float().mean()
        l_cls = classification_loss(logits, logits_r)
        return {**logs, "loss": stage2_loss(l_diff, l_cls, s.lambda_cls), "classification": l_cls, "accuracy": right}

    def _joint(self, x: Tensor, step: Step) -> dict[str, Tensor]:
        """Both stages at once, for the ablation without pre-training."""
        q = self.vqvae.encode(x)
        self._follow_scale(q.z_q.detach(), step)
        z0_hat, logs = self._restored(q.z_q.detach() * self.scale, step)
        both = torch.cat([self._hide(q.z_st, step) * self.scale, z0_hat])  # one pass: BatchNorm sees one set of statistics
        x_hat, x_r = self.decode(both).chunk(2)
        logs = self._discriminated(x, x_r, logs)
        return {**logs, "loss": logs["loss"] + self._vq(x, x_hat, q), **self._code_usage(q, step)}

    def diagnostics(self, batches: Iterable[Tensor]) -> dict[str, float]:
        """How the autoencoder uses its codes, and its mean absolute error, on [-1, 1]."""
        counts, error, pixels = self.scale.new_zeros(self.settings.codes), 0.0, 0
        for x in batches:
            q = self.vqvae.encode(x)
            counts += code_counts(q.k, self.settings.codes)
            error, pixels = error + float((x - self.vqvae.decode(q.z_q)).abs().sum()), pixels + x.numel()
        usage, perplexity = usage_and_perplexity(counts)
        return {"code_usage": float(usage), "code_perplexity": float(perplexity), "reconstruction_error": error / max(1, pixels)}

    def reconstruction_shift(self, x: Tensor, step: Step) -> Tensor:
        """x^r - x̂ of a random mask and t as in training: what a restoration changes, less the decoder's own error."""
        z0 = self.latents(x)
        z0_hat, _ = self._restored(z0, step)
        x_r, x_hat = self.decode(torch.cat([z0_hat, z0])).to(x.dtype).chunk(2)
        return x_r - x_hat
