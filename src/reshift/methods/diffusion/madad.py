"""MAD-AD: a denoiser finds the latent cells that look noised, and restores only those.

Paper: Beizaee et al., "MAD-AD: Masked Diffusion for Unsupervised Brain Anomaly Detection", 2025; code:
farzad-bz/MAD-AD.

Faithful: mask blocks of 1, 2, 4, 8 cells (0.2, 0.3, 0.3, 0.2), independent per axis, up to 0.4 of the blocks noised,
cells outside the foreground never; T = 10, squared-cosine schedule, x0-prediction; squared error over all cells + 0.001
× squared error of the mask (the paper prints cross-entropy, the authors train with this); no noise on the latent at
test time, 10 DDIM steps with η = 0.5, cells replaced only where K̂ < 0.5; heat-map |dec(z_corrected) - dec(z)|, mean
over channels, which cancels the autoencoder's own error.

Different:
- Their frozen medical KL-f8 autoencoder is a download. Ours is trained first, on the same normals, with L1 + 1e-6 KL,
  without perceptual and adversarial terms, at half the width, at ``autoencoder_rate`` times the learning rate. Latents
  are scaled to unit variance, measured once, instead of by the constant 0.18215.
- No dropout (theirs: 0.4). Widths of their U-Net S with its 4 heads: their L, [256, 512, 1024] with 8 heads, has four
  times the weights for a quarter of the cells, 16×16 at 128 pixels.
- Foreground: pixels above the black background replace a brain mask, counted per latent cell: 8 of 128 pixels wide, the
  same share of the image as their 16 of 256.
- The latent has 16×16 cells at 128 pixels, theirs 32×32 at 256, and the blocks have as many cells: each is twice as wide,
  relative to the image. Sides are drawn per image, theirs per batch, and are at most half the grid, so that one block is
  never the whole image; this matters below 128 pixels only. DDIM noise is drawn once, the same for all images.
- The cosine schedule ends at the last epoch; theirs stops at 1/1.2 of its length. No augmentation (theirs: small
  rotations, shifts, brightness and contrast).

``start`` = k begins the correction at step k of T instead of T, for a comparison over noise levels: the latent is still
not noised, but treated as noised to k / T, so that k of 10 steps stands for t = 100 k of 1000.

Image score: the mean of the heat-map; the authors have none. ``postprocess = "authors"``: clip the heat-map at 0.25 (of
the range [-1, 1]), times 4, and blur with a Gaussian of σ = 5 pixels at 256, 2.5 at 128; the score is then the mean of
that.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from reshift.config import Frozen
from reshift.core.anomaly import residual_map
from reshift.core.diffusion import masked_forward
from reshift.core.schedule import at
from reshift.methods.detector import Detector, Objective, Prediction, Profiles, Stage, Step, map_parts
from reshift.methods.diffusion.sampling import cosine_alpha_bar, implied_noise, root
from reshift.methods.ops.filters import foreground, gaussian_blur
from reshift.nets.klvae import KLVAE
from reshift.nets.masked_unet import MaskedUNet

Widths = Annotated[tuple[Annotated[int, Field(ge=4, le=4096, multiple_of=4)], ...], Field(min_length=1, max_length=10)]


class MADADSettings(Frozen):
    """The authors' values are the defaults, except for the autoencoder and the size of the U-Net; see the module's docstring."""

    autoencoder_epochs: int = Field(200, ge=0)
    autoencoder_rate: float = Field(5.0, gt=0.0)  # times train.lr
    autoencoder_width: int = Field(64, ge=8, le=1024, multiple_of=4)
    autoencoder_blocks: int = Field(2, ge=1, le=16)
    factor: Literal[2, 4, 8, 16] = 8
    latent_channels: int = Field(4, ge=1, le=1024)
    kl_weight: float = Field(1e-6, ge=0.0)
    denoiser_epochs: int = Field(200, ge=0)
    widths: Widths = (128, 256, 512)
    blocks: int = Field(2, ge=1, le=16)
    heads: int = Field(4, ge=1, le=64)
    timesteps: int = Field(10, ge=1, le=100_000)
    start: int = Field(0, ge=0)  # step at which the correction begins; 0: the last, as the authors do
    noised: float = Field(0.4, gt=0.0, le=1.0)  # largest share of an image's blocks that is noised
    mask_weight: float = Field(0.001, ge=0.0)
    foreground: Literal["auto", "off"] = "auto"  # auto: cells on black background are never noised
    coverage: float = Field(0.9, ge=0.0, le=1.0)  # share of a cell's pixels that must be foreground
    eta: float = Field(0.5, ge=0.0, le=1.0)
    threshold: float = Field(0.5, ge=0.0, le=1.0)  # cells with K̂ below are replaced
    inference_seed: int = Field(0, ge=0)
    postprocess: Literal["none", "authors"] = "none"

    @model_validator(mode="after")
    def _consistent(self) -> "MADADSettings":
        for width in self.widths:
            if width % self.heads:
                raise ValueError(f"heads {self.heads} does not divide the width {width}")
        if self.start > self.timesteps:
            raise ValueError(f"start {self.start} exceeds timesteps {self.timesteps}")
        return self


class MADAD(Detector):
    """KL autoencoder, and a denoiser that also says which latent cells look noised."""

    Settings = MADADSettings
    bf16 = True
    profiles: ClassVar[Profiles] = {
        "paper": {
            "train": {"batch": 96, "lr": 4e-5, "weight_decay": 1e-4, "schedule": "cosine", "warmup": 0.05, "clip": 0.0},
        },
        "quick": {
            "train": {"batch": 16, "lr": 1e-3, "weight_decay": 1e-4, "schedule": "cosine", "warmup": 0.05},
            "model": {
                "autoencoder_epochs": 60, "autoencoder_rate": 1.0, "autoencoder_width": 8, "autoencoder_blocks": 1,
                "denoiser_epochs": 100, "widths": [32, 64, 128], "blocks": 1, "mask_weight": 1.0,
            },
        },
    }  # fmt: skip
    alpha_bar: Tensor
    scale: Tensor
    noise: Tensor

    def __init__(self, settings: MADADSettings, size: int, channels: int) -> None:
        super().__init__()
        s = self.settings = settings
        deepest = s.factor * 2 ** (len(s.widths) - 1)
        if size % deepest:
            raise ValueError(f"data.size {size} is not a multiple of {deepest}, which model.factor and model.widths need")
        self.size, self.grid = size, size // s.factor
        self.autoencoder = KLVAE(channels, s.autoencoder_width, s.factor, s.latent_channels, s.autoencoder_blocks)
        self.denoiser = MaskedUNet(s.latent_channels, s.widths, s.blocks, s.heads)
        self.register_buffer("alpha_bar", cosine_alpha_bar(s.timesteps), persistent=False)
        self.register_buffer("scale", torch.ones(()))  # multiplies latents, so that they have unit variance
        generator = torch.Generator().manual_seed(s.inference_seed)
        noise = torch.randn(s.timesteps, s.latent_channels, self.grid, self.grid, generator=generator)
        self.register_buffer("noise", noise, persistent=False)  # of every step, shared by all images

    # ---- training --------------------------------------------------------------------------------------------------

    def stages(self) -> Sequence[Stage]:
        """The autoencoder, then, with it frozen, the denoiser."""
        s = self.settings
        first = Objective((self.autoencoder,), self._reconstruct, lr_factor=s.autoencoder_rate)
        second = Objective((self.denoiser,), self._denoise)
        of_first = ("autoencoder_rate", "autoencoder_width", "autoencoder_blocks", "factor", "latent_channels", "kl_weight")
        of_second = ("widths", "blocks", "heads", "timesteps", "noised", "mask_weight", "foreground", "coverage")
        return (
            Stage("autoencoder", s.autoencoder_epochs, (first,), decided_by=self._facts("KL autoencoder, L1", of_first)),
            Stage("denoiser", s.denoiser_epochs, (second,), self._fit_scale, self._facts("MAD-AD denoiser, x0", of_second)),
        )

    def _facts(self, what: str, names: Iterable[str]) -> dict[str, Any]:
        return {"what": what, **self.settings.model_dump(mode="json", include=set(names))}

    def _reconstruct(self, x: Tensor, step: Step) -> dict[str, Tensor]:
        """L1 + KL, both summed over an image and divided by its pixels, so that 1e-6 has the same effect as in KL-f8."""
        q = self.autoencoder.encode(x)
        l1 = (x - self.autoencoder.decode(q.sample(step.normal(*q.mean.shape)))).abs().mean()
        kl = q.kl().mean() / x[0].numel()
        return {"loss": l1 + self.settings.kl_weight * kl, "l1": l1, "kl": kl}

    def _fit_scale(self, images: Iterable[Tensor]) -> None:
        """Set ``scale`` to 1 / std of the sampled latents of the training images."""
        n, total, squares = 0, 0.0, 0.0
        for x in images:
            mean, logvar = self.autoencoder.encode(x)
            n, total = n + mean.numel(), total + float(mean.double().sum())
            squares += float((mean.double().square() + logvar.double().exp()).sum())
        std = max(squares / n - (total / n) ** 2, 1e-12) ** 0.5
        self.scale.fill_(1.0 / std)

    def _denoise(self, x: Tensor, step: Step) -> dict[str, Tensor]:
        """Noise some blocks, and learn their clean content and where they are."""
        with torch.no_grad():
            q = self.autoencoder.encode(x)
            z0 = q.sample(step.normal(*q.mean.shape)) * self.scale
        K = self.random_mask(x, step)
        t = step.integers(1, self.settings.timesteps, len(x))
        z_t = masked_forward(z0, step.normal(*z0.shape), 1.0 - K, at(self.alpha_bar, t))
        z0_hat, K_hat = self.denoiser(z_t, t)
        latent, mask = (z0 - z0_hat).square().mean(), (K - K_hat).square().mean()
        return {"loss": latent + self.settings.mask_weight * mask, "latent": latent, "mask": mask}

    def random_mask(self, x: Tensor, step: Step) -> Tensor:
        """K for every image: 1 where a cell stays clean, 0 where it is noised; ``(B, C, H, W)`` → ``(B, 1, h, w)``."""
        b, g = len(x), self.grid
        sides, share, order = step.uniform(b, 2), step.uniform(b) * self.settings.noised, step.uniform(b, g * g)
        K = block_mask(block_sides(sides).clamp(max=max(1, g // 2)), share, order, g, g)
        if self.settings.foreground == "off":
            return K
        covered = F.avg_pool2d(foreground(x), self.settings.factor)
        return K.masked_fill(covered < self.settings.coverage, 1.0)

    # ---- inference -------------------------------------------------------------------------------------------------

    def correct(self, z: Tensor) -> Tensor:
        """Treat ``z (B, d, h, w)`` as z_T (or z_start) and denoise it to z_0; cells that look clean stay as they are."""
        s = self.settings
        for t in range(s.start or s.timesteps, 0, -1):
            z0_hat, K_hat = self.denoiser(z, torch.full((z.shape[0],), t, device=z.device))
            moved = ddim_step(z, z0_hat, self.noise[t - 1], self.alpha_bar[t], self.alpha_bar[t - 1], s.eta)
            z = torch.where(K_hat < s.threshold, moved, z)
        return z

    def _decodings(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """dec(z) and dec(z_corrected), always in float32, because their difference is small."""
        with torch.autocast(x.device.type, enabled=False):
            z = self.autoencoder.encode(x).mean * self.scale
        corrected = self.correct(z)
        with torch.autocast(x.device.type, enabled=False):
            return self.autoencoder.decode(z / self.scale), self.autoencoder.decode(corrected / self.scale)

    def pseudo_healthy(self, x: Tensor) -> Tensor:
        """dec(z_corrected), clipped to [-1, 1]; shaped like ``x``."""
        return map_parts(lambda images: self._decodings(images)[1], x).clamp(-1.0, 1.0)

    def forward(self, x: Tensor) -> Prediction:
        """Difference of the two decodings, and its mean."""
        heatmap = residual_map(*self._decodings(x))
        if self.settings.postprocess == "authors":
            heatmap = gaussian_blur(heatmap[:, None].clamp(max=0.25) * 4.0, 5.0 * self.size / 256.0)[:, 0]
        return Prediction(heatmap.flatten(1).mean(1), heatmap)


def block_sides(u: Tensor) -> Tensor:
    """u ~ U[0, 1) → 1, 2, 4 or 8 with probabilities 0.2, 0.3, 0.3, 0.2."""
    return 1 + (u >= 0.2).long() + 2 * (u >= 0.5) + 4 * (u >= 0.8)


def block_mask(sides: Tensor, share: Tensor, order: Tensor, h: int, w: int) -> Tensor:
    """1 in clean blocks, 0 in noised ones, ``(B, 1, h, w)``; of n blocks ⌊(1 - share) n⌋ stay clean.

    ``sides (B, 2)`` are the blocks' height and width, cut off at the border; ``order (B, h·w)`` ~ U[0, 1) ranks the blocks.
    """
    height, width = sides.view(-1, 2, 1, 1).unbind(1)
    y = torch.arange(h, device=sides.device).view(1, h, 1)
    x = torch.arange(w, device=sides.device).view(1, 1, w)
    across = (w + width - 1) // width  # blocks per row of blocks, (B, 1, 1)
    block = (y // height) * across + x // width  # (B, h, w), 0 … n - 1
    n = block.amax((1, 2)).view(-1, 1) + 1
    exists = torch.arange(h * w, device=sides.device) < n
    rank = order.masked_fill(~exists, 2.0).argsort(1).argsort(1)  # (B, h·w), a permutation of each image's blocks
    clean = (rank < ((1.0 - share.view(-1, 1)) * n).floor()).float()
    return clean.gather(1, block.flatten(1)).view(-1, 1, h, w)


def ddim_step(z_t: Tensor, z0: Tensor, noise: Tensor, a: Tensor, a_s: Tensor, eta: float) -> Tensor:
    """From ᾱ to ᾱ_s along the ε that ẑ_0 implies (Song et al. 2021, Eq. 12), σ = η √((1-ᾱ_s) / (1-ᾱ)) √(1 - ᾱ / ᾱ_s)."""
    variance = eta**2 * (1.0 - a_s) / (1.0 - a) * (1.0 - a / a_s)
    straight = root((1.0 - a_s - variance).clamp(min=0.0), z_t) * implied_noise(z_t, z0, a)
    return root(a_s, z_t) * z0 + straight + root(variance, z_t) * noise
