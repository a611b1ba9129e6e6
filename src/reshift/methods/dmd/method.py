"""DMD, literally: Algorithm 1 (two-stage training), Algorithm 2 (dual-level inference), and the five ablations as flags.

Paper: "Reconstruction-Shift Discrimination via Mask-Guided Latent Diffusion for Medical Anomaly Detection". Every choice the
paper leaves open is listed, with its reason, in docs/equations.md.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from reshift.config import Frozen
from reshift.core.anomaly import overlap_average, residual_map
from reshift.core.diffusion import Roots, clean_estimate, masked_forward, roots, roots_at
from reshift.core.losses import classification_loss, diffusion_loss, stage2_loss, vq_loss
from reshift.core.masks import grid_corners, random_square
from reshift.core.quantize import code_counts, usage_and_perplexity, vectors
from reshift.core.schedule import linear_alpha_bar
from reshift.methods.detector import Objective, Prediction, Stage, Step, batch_invariant, invariant_parts
from reshift.methods.dmd.settings import STAGE1, STAGE2, DMDSettings
from reshift.methods.dmd.windows import Windows
from reshift.nets.beside import beside
from reshift.nets.classifier import Classifier
from reshift.nets.unet import UNet
from reshift.nets.vqvae import VQVAE, Quantized


class Drawn(NamedTuple):
    """What is drawn for a batch, and what follows from it alone."""

    M: Tensor  # (B, 1, h, w)
    t: Tensor  # (B,)
    eps: Tensor  # (B, d_z, h, w)
    a_bar: Roots
    when: Tensor | None  # what t says to the denoiser


class DMD(nn.Module):
    """Vector-quantised autoencoder, masked latent denoiser, reconstruction-shift classifier."""

    Settings: ClassVar[type[Frozen]] = DMDSettings
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "quick": {
            "train": {"batch": 16, "lr": 1e-3},
            "model": {"stage1_epochs": 60, "stage2_epochs": 20, "unet_widths": [48, 64, 96], "restart_after": 25},
        },
    }
    bf16: ClassVar[bool] = True
    bf16_cpu: ClassVar[bool] = True
    recordable: ClassVar[bool] = True
    alpha_bar: Tensor
    roots: Tensor
    scale: Tensor
    idle: Tensor

    def __init__(self, settings: DMDSettings, size: int, channels: int) -> None:
        super().__init__()
        s = self.settings = settings
        factor = 2 ** len(s.widths)
        deepest = factor * 2 ** (len(s.unet_widths) - 1)
        if size % deepest:
            raise ValueError(f"data.size {size} is not a multiple of {deepest}, which these widths need")
        self.grid = size // factor
        if s.mask_side > self.grid:
            raise ValueError(
                f"model.mask_side {s.mask_side} exceeds the {self.grid}×{self.grid} latent grid of {size}-pixel images"
            )
        self.vqvae = VQVAE(channels, s.widths, s.d_z, s.codes)
        self.denoiser = UNet(s.d_z, s.unet_widths, s.unet_blocks) if s.diffusion else nn.Identity()
        self.shift = Classifier(channels, s.classifier_widths, s.classifier_hidden) if s.classifier else nn.Identity()
        self.register_buffer("alpha_bar", linear_alpha_bar(s.timesteps), persistent=False)
        self.register_buffer("roots", roots(self.alpha_bar).to(torch.get_default_dtype()), persistent=False)
        self.register_buffer("scale", torch.ones(()))  # multiplies z_q so that Eq. 5 starts from unit variance
        self.register_buffer("idle", torch.zeros(s.codes))  # steps since each code was last chosen
        self._planned: tuple[tuple[DMDSettings, torch.device], Windows, Tensor] | None = None

    # ---- Algorithm 1: training -------------------------------------------------------------------------------------

    def stages(self) -> Sequence[Stage]:
        """Stage I trains E_φ, D_η and C; Stage II trains ω and ψ only."""
        s = self.settings
        second = tuple(m for m in (self.denoiser, self.shift) if not isinstance(m, nn.Identity))
        if not s.pretraining:
            joint = Objective((self.vqvae, *second), self._joint, after=self._restart_dead_codes)
            return (Stage("joint", s.stage2_epochs, (joint,), self.vqvae.fit_codebook, self._facts("joint", STAGE1 | STAGE2)),)
        pretraining = Objective((self.vqvae,), self._stage1, after=self._restart_dead_codes)
        first = Stage("autoencoder", s.stage1_epochs, (pretraining,), self.vqvae.fit_codebook, self._facts("VQ-VAE", STAGE1))
        if not second:
            return (first,)
        objective, facts = Objective(second, self._stage2), self._facts("masked restoration", STAGE2)
        return (first, Stage("restoration", s.stage2_epochs, (objective,), self._fit_scale, facts))

    def _facts(self, what: str, names: set[str]) -> dict[str, Any]:
        return {"what": f"DMD: {what}", **self.settings.model_dump(mode="json", include=names)}

    def _stage1(self, x: Tensor, step: Step) -> dict[str, Tensor]:
        q = self.vqvae.encode(x)
        x_hat = self.vqvae.decode(self._hide(q.z_st, step))
        return {"loss": self._vq(x, x_hat, q), **self._code_usage(q, step)}

    def _stage2(self, x: Tensor, step: Step) -> dict[str, Tensor]:
        with beside(x) as join, torch.no_grad():  # the frozen encoder, while masks and noise are drawn
            z0 = self.latents(x)
        drawn = self._draw(len(x), step)
        join()
        z0_hat, logs = self._restored(z0, drawn)
        return self._finish(logs, x, z0_hat, self._decode(z0_hat))

    def _joint(self, x: Tensor, step: Step) -> dict[str, Tensor]:
        q = self.vqvae.encode(x)
        z0_hat, logs = self._restored(q.z_q.detach() * self.scale, self._draw(len(x), step))
        both = torch.cat([self._hide(q.z_st, step) * self.scale, z0_hat])  # one pass: BatchNorm sees one set of statistics
        x_hat, x_r = self._decode(both).chunk(2)
        logs = self._finish(logs, x, z0_hat, x_r)
        return {**logs, "loss": logs["loss"] + self._vq(x, x_hat, q), **self._code_usage(q, step)}

    def _draw(self, b: int, step: Step) -> Drawn:
        """Algorithm 1, line 15: M, t and ε for every sample."""
        s, g = self.settings, self.grid
        M, t, eps = self._random_mask(b, step), step.integers(1, s.timesteps, b), step.normal(b, s.d_z, g, g)
        when = self.denoiser.when(t, self.scale.dtype) if isinstance(self.denoiser, UNet) else None
        return Drawn(M, t, eps, roots_at(self.roots, t), when)

    def _restored(self, z0: Tensor, drawn: Drawn) -> tuple[Tensor, dict[str, Tensor]]:
        """Algorithm 1, lines 16 and 17: noise inside M, estimate the clean latent, take L_diff."""
        M, t, eps, a_bar, when = drawn
        if not self.settings.diffusion:
            return (1.0 - M) * z0, {}
        z_t = masked_forward(z0, eps, M, a_bar)
        eps_hat = self.denoiser(z_t, t, when).to(z_t.dtype)
        return clean_estimate(z_t, eps_hat, z0, M, a_bar), {"diffusion": diffusion_loss(eps, eps_hat, M)}

    def _finish(self, logs: dict[str, Tensor], x: Tensor, z0_hat: Tensor, x_r: Tensor) -> dict[str, Tensor]:
        """Add L_cls and combine into L_stage2, as far as this variant has the parts; what is only logged on the side."""
        with beside(x) as join, torch.no_grad():
            logs |= {"latent_peak": vector_norm(z0_hat, torch.inf)} if self.settings.diffusion else {}
        l_diff = logs["diffusion"] if self.settings.diffusion else x.new_zeros(())
        if not self.settings.classifier:
            join()
            return {**logs, "loss": l_diff}
        x_r = x_r if self.settings.feedback else x_r.detach()
        both = torch.cat([x.to(x_r.dtype), x_r])  # one joint batch for BatchNorm's sake
        logits, logits_r = self.shift(both).to(x.dtype).chunk(2)
        with beside(x) as join, torch.no_grad():
            right = torch.cat([logits[:, 0] > logits[:, 1], logits_r[:, 1] > logits_r[:, 0]]).float().mean()
        l_cls = classification_loss(logits, logits_r)
        join()
        return {**logs, "loss": stage2_loss(l_diff, l_cls, self.settings.lambda_cls), "classification": l_cls, "accuracy": right}

    def _vq(self, x: Tensor, x_hat: Tensor, q: Quantized) -> Tensor:
        """Eq. 4 divided by C·H·W: AdamW does not feel the factor, gradient clipping and the log do."""
        return vq_loss(x, x_hat.to(x.dtype), q.z_e, q.z_q, self.settings.beta_c) / x[0].numel()

    def _random_mask(self, b: int, step: Step) -> Tensor:
        """Eq. A1 for every sample."""
        s, g = self.settings, self.grid
        if not s.masking:
            return self.scale.new_ones(b, 1, g, g)
        return random_square(step.uniform(b, 3), s.rho_min, s.rho_max, g)

    def _hide(self, z: Tensor, step: Step) -> Tensor:
        """Without latent diffusion the autoencoder itself must learn to fill masked latents; otherwise it sees them all."""
        return z if self.settings.diffusion else (1.0 - self._random_mask(len(z), step)) * z

    def _code_usage(self, q: Quantized, step: Step) -> dict[str, Tensor]:
        counts = step.total(code_counts(q.k, self.settings.codes))
        self.idle.copy_(torch.where(counts > 0, 0.0, self.idle + 1.0))
        if self.settings.restart_after:
            self._recent = vectors(step.gather(q.z_e.detach()))
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

    def _fit_scale(self, images: Iterable[Tensor]) -> None:
        """Set ``scale`` to 1 / std of z_q over the training images."""
        if self.settings.latent_scale != "none" and self.settings.diffusion:
            self.scale.fill_(1.0 / self.vqvae.deviation(images))

    # ---- Algorithm 2: inference ------------------------------------------------------------------------------------

    def latents(self, x: Tensor) -> Tensor:
        """z_0 = Q_C(E_φ(x)), scaled; ``(B, C, H, W)`` → ``(B, d_z, h, w)``."""
        return self.vqvae.encode(x).z_q * self.scale

    def _decode(self, z0: Tensor) -> Tensor:
        return self.vqvae.decode(z0 / self.scale)

    def inference_masks(self) -> tuple[Tensor, Tensor]:
        """The K_M grid masks and one Gaussian draw for each, the same for every image; drawn on the CPU for every device."""
        windows, noise = self._plan()
        return windows.masks, noise

    def _plan(self) -> tuple[Windows, Tensor]:
        """Where the masks are and what must be decoded to see behind them, and the noise; made once for settings and device."""
        key = s, device = self.settings, self.scale.device
        if self._planned is None or self._planned[0] != key:
            g = self.grid
            side, stride = (s.mask_side, s.mask_stride) if s.masking else (g, g)
            windows = Windows(grid_corners(g, g, side, stride), side, self.vqvae.margin(), g, self.vqvae.factor, device)
            with torch.inference_mode(False):  # or it would be of no use where gradients are taken
                generator = torch.Generator().manual_seed(s.inference_seed)
                noise = torch.randn(len(windows.corners), s.d_z, g, g, generator=generator)
                self._planned = key, windows, noise.to(device).contiguous(memory_format=_layout(device))
        return self._planned[1:]

    def restore(self, z0: Tensor, M: Tensor, eps: Tensor, windows: Windows | None = None) -> Tensor:
        """Eqs. 5 and 7 at t*: every image with every mask, ``(B, d_z, h, w)``, ``(k, …)`` → ẑ_0, ``(B, k, d_z, h, w)``.

        With ``windows`` only those of ẑ_0: Eq. 7 is pointwise, and so is all but the denoiser.
        """
        seen: Callable[[Tensor], Tensor] = windows.latents if windows else lambda z: z
        z0, hidden = z0[:, None], seen(M[None])
        if not self.settings.diffusion:
            return (1.0 - hidden) * seen(z0)
        t = torch.full((1,), self.settings.t_star, device=z0.device)
        a_bar = roots_at(self.roots, t)
        # Eq. 5 is affine in z_0: what is the same for all images is worked out first, and (B, k, …) is written only once.
        gain = masked_forward(torch.ones_like(M), torch.zeros_like(M), M, a_bar)
        z_t = (gain * z0).add_(masked_forward(torch.zeros_like(M), eps, M, a_bar))
        eps_hat = torch.unflatten(self.denoiser(z_t.flatten(0, 1), t), 0, z_t.shape[:2])
        return clean_estimate(seen(z_t), seen(eps_hat).to(z_t.dtype), seen(z0), hidden, a_bar)

    def _restorations(self, x: Tensor) -> Iterator[tuple[Windows, Tensor]]:
        """Algorithm 2, lines 2–6, some masks at a time: windows, and x_k^r inside them, ``(B, k, C, l, l)``."""
        windows, noise = self._plan()
        with _float32(x):
            z0 = self.latents(x).contiguous(memory_format=_layout(x.device))
        rows = max(1, self.settings.inference_rows // len(x))
        for part in (slice(k, k + rows) for k in range(0, len(noise), rows)):
            some = windows.some(part)
            z0_hat = self.restore(z0, some.masks, noise[part], some)
            with _float32(x):
                x_r = self._decode(z0_hat.flatten(0, 1))
            yield some, torch.unflatten(x_r, 0, z0_hat.shape[:2])

    def anomaly_map(self, x: Tensor) -> Tensor:
        """Algorithm 2, lines 2–10: A_pix, ``(B, C, H, W)`` → ``(B, H, W)``."""
        N_pix = torch.zeros_like(x[:, 0])
        for windows, x_r in self._restorations(x):
            windows.add(N_pix, residual_map(windows.pixels(x), x_r))
        return overlap_average(N_pix, self._plan()[0].coverage, self.settings.delta)

    def pseudo_healthy(self, x: Tensor) -> Tensor:
        """Eq. 14 over the restorations themselves, so that each pixel comes from where it was masked; shaped like ``x``."""
        healthy = []
        for images in invariant_parts(x):
            total = torch.zeros_like(images)
            for windows, x_r in self._restorations(images):
                windows.add(total, x_r)
            healthy.append(overlap_average(total, self._plan()[0].coverage, self.settings.delta))
        return torch.cat(healthy)

    def reconstruction_shift(self, x: Tensor, step: Step) -> Tensor:
        """x^r - x̂ of a random mask and t as in training: what a restoration changes, less the decoder's own error."""
        z0 = self.latents(x)
        z0_hat, _ = self._restored(z0, self._draw(len(x), step))
        x_r, x_hat = self._decode(torch.cat([z0_hat, z0])).to(x.dtype).chunk(2)
        return x_r - x_hat

    def features(self, x: Tensor) -> Tensor | None:
        """The classifier's embedding of each image, ``(B, hidden)``; what the paper's t-SNE figure shows."""
        return self.shift.features(x) if isinstance(self.shift, Classifier) else None

    def predict(self, x: Tensor) -> Prediction:
        """S_img (Eq. 11) and A_pix (Eq. 14)."""

        def one(images: Tensor) -> Prediction:
            heatmap = self.anomaly_map(images)
            if not self.settings.classifier:
                return Prediction(heatmap.flatten(1).mean(1), heatmap)
            with _float32(images):
                return Prediction(self.shift(images).softmax(1)[:, 1], heatmap)

        return batch_invariant(one, x)


def _float32(x: Tensor) -> torch.autocast:
    """Only the denoiser, which is nearly all of the work, may predict in bf16: codes, pixels and scores keep their digits."""
    return torch.autocast(x.device.type, enabled=False)


def _layout(device: torch.device) -> torch.memory_format:
    """What the denoiser's convolutions are fastest with."""
    return torch.contiguous_format if device.type == "cpu" else torch.channels_last
