"""Algorithm 2, dual-level inference: an image-level score and a pixel-level anomaly map."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from reshift.core.anomaly import overlap_average, residual_map, upsample_mask
from reshift.core.diffusion import clean_estimate, masked_forward
from reshift.core.masks import grid_masks
from reshift.core.schedule import at, linear_alpha_bar
from reshift.methods.detector import Detector, Prediction, map_parts
from reshift.methods.dmd.settings import DMDSettings
from reshift.nets.classifier import Classifier
from reshift.nets.unet import UNet
from reshift.nets.vqvae import VQVAE


class DualLevelInference(Detector):
    """The three networks, and what Algorithm 2 does with them once they are trained."""

    alpha_bar: Tensor
    scale: Tensor
    masks: Tensor
    noise: Tensor

    def __init__(self, settings: DMDSettings, size: int, channels: int) -> None:
        super().__init__()
        s = self.settings = settings
        self.grid = _latent_grid(s, size)
        self.vqvae = VQVAE(channels, s.widths, s.d_z, s.codes)
        self.denoiser = UNet(s.d_z, s.unet_widths, s.unet_blocks) if s.diffusion else nn.Identity()
        self.shift = Classifier(channels, s.classifier_widths, s.classifier_hidden) if s.classifier else nn.Identity()
        self.register_buffer("alpha_bar", linear_alpha_bar(s.timesteps), persistent=False)
        self.register_buffer("scale", torch.ones(()))  # multiplies z_q so that Eq. 5 starts from unit variance
        # Line 3, and one Gaussian draw for each mask, the same for every image: no result depends on batch or order.
        self.mask_side, stride = (s.mask_side, s.mask_stride) if s.masking else (self.grid, self.grid)
        masks = grid_masks(self.grid, self.grid, self.mask_side, stride)
        noise = torch.randn(len(masks), s.d_z, self.grid, self.grid, generator=torch.Generator().manual_seed(s.inference_seed))
        self.register_buffer("masks", masks, persistent=False)
        self.register_buffer("noise", noise, persistent=False)

    def latents(self, x: Tensor) -> Tensor:
        """Line 2: z_0 = Q_C(E_φ(x)), scaled; ``(B, C, H, W)`` → ``(B, d_z, h, w)``."""
        return self.vqvae.encode(x).z_q * self.scale

    def decode(self, z0: Tensor) -> Tensor:
        """D_η(z_0), ``(B, d_z, h, w)`` → ``(B, C, H, W)``."""
        return self.vqvae.decode(z0 / self.scale)

    def inference_masks(self) -> tuple[Tensor, Tensor]:
        """The K_M grid masks ``(K_M, 1, h, w)`` and their noise ``(K_M, d_z, h, w)``."""
        return self.masks, self.noise

    def restore(self, z0: Tensor, M: Tensor, eps: Tensor) -> Tensor:
        """Eqs. 5 and 7 at t*: every image with every mask, ``(B, d_z, h, w)``, ``(k, …)`` → ẑ_0, ``(B, k, d_z, h, w)``."""
        z0 = z0[:, None]
        if not self.settings.diffusion:
            return (1.0 - M) * z0
        t = torch.full((1,), self.settings.t_star, device=z0.device)
        a_bar = at(self.alpha_bar, t)
        z_t = masked_forward(z0, eps, M, a_bar)
        eps_hat = torch.unflatten(self.denoiser(z_t.flatten(0, 1), t), 0, z_t.shape[:2])
        return clean_estimate(z_t, eps_hat.to(z_t.dtype), z0, M, a_bar)

    def restorations(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Lines 5–7, some masks at a time: M_k upsampled ``(k, H, W)``, and x_k^r ``(B, k, C, H, W)``, right inside M_k."""
        with _float32(x):
            z0 = self.latents(x)
        # An exported graph takes batches of any size, so it cannot have a number of passes that depends on the batch.
        exporting = torch.compiler.is_compiling()
        at_once = len(self.masks) if exporting else max(1, self._rows(x) // len(x))
        for M, eps in zip(self.masks.split(at_once), self.noise.split(at_once), strict=True):
            z0_hat = self.restore(z0, M, eps)
            with _float32(x):
                x_r = self.vqvae.decoder.decode_masked(z0_hat / self.scale, M, self.mask_side)
            yield upsample_mask(M, *x.shape[-2:]), x_r

    def _rows(self, x: Tensor) -> int:
        """Restorations per pass: of images above 128 pixels fewer, so that a pass takes no more memory."""
        return self.settings.inference_rows * 128**2 // max(128**2, x.shape[-2] * x.shape[-1])

    def anomaly_map(self, x: Tensor) -> Tensor:
        """Lines 4–12: A_pix, ``(B, C, H, W)`` → ``(B, H, W)``."""
        N_pix, D_pix = torch.zeros_like(x[:, 0]), torch.zeros_like(x[0, 0])
        for M, x_r in self.restorations(x):
            N_pix = N_pix + (M * residual_map(x[:, None], x_r)).sum(1)
            D_pix = D_pix + M.sum(0)
        return overlap_average(N_pix, D_pix, self.settings.delta)

    def average_restoration(self, x: Tensor) -> Tensor:
        """Eq. 14 over the restorations themselves, so that each pixel comes from where it was masked; shaped like ``x``."""
        total, D_pix = torch.zeros_like(x), torch.zeros_like(x[0, 0])
        for M, x_r in self.restorations(x):
            total = total + (M[:, None] * x_r).sum(1)
            D_pix = D_pix + M.sum(0)
        return overlap_average(total, D_pix, self.settings.delta)

    def pseudo_healthy(self, x: Tensor) -> Tensor:
        """The images as they are restored, shaped like ``x``."""
        return map_parts(self.average_restoration, x)

    def forward(self, x: Tensor) -> Prediction:
        """S_img (line 1, Eq. 11) and A_pix (Eq. 14)."""
        heatmap = self.anomaly_map(x)
        if not self.settings.classifier:
            return Prediction(heatmap.flatten(1).mean(1), heatmap)
        with _float32(x):
            return Prediction(self.shift(x).softmax(1)[:, 1], heatmap)

    def features(self, x: Tensor) -> Tensor | None:
        """The classifier's embedding of each image, ``(B, hidden)``; what the paper's t-SNE figure shows."""
        return self.shift.features(x) if isinstance(self.shift, Classifier) else None


def _latent_grid(s: DMDSettings, size: int) -> int:
    """Latents along one side; a size that the widths cannot halve is refused."""
    factor: int = 2 ** len(s.widths)
    deepest: int = factor * 2 ** (len(s.unet_widths) - 1)
    if size % deepest:
        raise ValueError(f"data.size {size} is not a multiple of {deepest}, which these widths need")
    grid = size // factor
    if s.mask_side > grid:
        raise ValueError(f"model.mask_side {s.mask_side} exceeds the {grid}×{grid} latent grid of {size}-pixel images")
    return grid


def _float32(x: Tensor) -> torch.autocast:
    """Only the denoiser, which is nearly all of the work, may predict in bf16: codes, pixels and scores keep their digits."""
    return torch.autocast(x.device.type, enabled=False)
