"""cDDPM: a diffusion model conditioned on a code of the clean image, which tells it how the healthy image should look.

Behrendt et al., "Guided reconstruction with conditioned diffusion models for unsupervised anomaly detection in brain
MRIs" (2024), and its code. A ResNet-50 is pre-trained on masked images as in SparK (Tian et al. 2023), then trained
together with a U-Net that restores x_0 from x_t, t and the code (L1, simplex noise, cosine schedule). The encoder
always sees the clean image. An image is noised and restored in one step from t = 250, 500 and 750; the heat-map is |x -
x̂|, x̂ the mean of the three restorations.

Faithful: the targets of masked patches are plain pixels, not SparK's patch-normalised ones; the code is four times the
U-Net's base width (their settings file says 128, their code makes it 512). The encoder works on [0, 1], so that a
hidden pixel is black. Its norms are BatchNorm over visible positions, SparK's own choice.

Different, and why: one simplex field per image (theirs is one per batch), a random plane of 3-D noise (2-D noise shows
preferred directions); the noise at inference is fixed; no weight decay (theirs is 0.05 in the first stage, but a run
has one value for all stages); no random gamma, bias field, blur and ghosting of training images, which no other method
here uses; the last weights, not those of the best validation loss. Their epoch takes one slice of each of 387 volumes,
12 updates; 1200 epochs of about 400 images give as many, 15 000 per stage. Inputs are 128 pixels wide, theirs 96.

Image score: the mean of the heat-map. ``postprocess = "authors"``: times the foreground eroded H // 25 times, then a
5×5 median (theirs is 5×5×5 on volumes), and the score is the mean inside the foreground. Their erosion uses a cross as
its neighbourhood, ours a square. They also search a threshold on labelled images and remove small components; we do
not.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from reshift.config import Frozen
from reshift.core.anomaly import residual_map
from reshift.core.schedule import at
from reshift.methods.detector import Detector, Objective, Prediction, Profiles, Stage, Step, map_parts
from reshift.methods.diffusion.sampling import cosine_alpha_bar, noised
from reshift.methods.diffusion.simplex import fractal_noise, permutations
from reshift.methods.ops.filters import erode, foreground, median_filter
from reshift.nets.conditioned_unet import ConditionedUNet
from reshift.nets.resnet import MaskedDecoder, ResNet, Visible, choose_visible, total_stride

Depths = Annotated[tuple[Annotated[int, Field(ge=1, le=64)], ...], Field(min_length=1, max_length=10)]
Steps = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1, max_length=1000)]
Widths = Annotated[tuple[Annotated[int, Field(ge=4, le=4096, multiple_of=4)], ...], Field(min_length=1, max_length=10)]
ENCODER = {"pretraining_epochs", "encoder_depths", "encoder_widths", "decoder_width", "mask_ratio"}
INFERENCE = {"t_star", "inference_seed", "postprocess"}


class CDDPMSettings(Frozen):
    """The authors' settings are the defaults."""

    pretraining_epochs: int = Field(1200, ge=0)
    denoiser_epochs: int = Field(1200, ge=0)
    encoder_depths: Depths = (3, 4, 6, 3)  # with these widths, the ResNet-50
    encoder_widths: Widths = (64, 128, 256, 512)
    decoder_width: int = Field(512, ge=1, le=4096)  # at the coarsest scale; halved at each finer one
    mask_ratio: float = Field(0.65, gt=0.0, lt=1.0)
    unet_widths: Widths = (128, 256, 256)
    unet_blocks: int = Field(3, ge=1, le=16)
    timesteps: int = Field(1000, ge=1, le=100_000)
    octaves: int = Field(6, ge=1, le=32)
    persistence: float = Field(0.8, gt=0.0)
    wavelength: float = Field(64.0, gt=0.0)  # pixels
    t_star: Steps = (250, 500, 750)
    inference_seed: int = Field(0, ge=0)
    postprocess: Literal["none", "authors"] = "none"

    @model_validator(mode="after")
    def _consistent(self) -> "CDDPMSettings":
        if len(self.encoder_depths) != len(self.encoder_widths):
            raise ValueError(f"encoder_depths {self.encoder_depths} and encoder_widths {self.encoder_widths} differ in length")
        if self.decoder_width < total_stride(self.encoder_depths):
            raise ValueError(f"decoder_width {self.decoder_width} cannot be halved at each of the encoder's scales")
        if max(self.t_star) > self.timesteps:
            raise ValueError(f"t_star {max(self.t_star)} exceeds timesteps {self.timesteps}")
        return self


class CDDPM(Detector):
    """Image encoder, its pre-training decoder, conditioned denoiser."""

    Settings = CDDPMSettings
    profiles: ClassVar[Profiles] = {
        "paper": {"train": {"batch": 32, "lr": 1e-4, "weight_decay": 0.0, "clip": 0.0}},
        "quick": {
            "train": {"batch": 16, "lr": 1e-3, "weight_decay": 0.0},
            "model": {
                "pretraining_epochs": 20, "denoiser_epochs": 20, "encoder_depths": [1, 1, 1], "encoder_widths": [16, 32, 64],
                "decoder_width": 64, "unet_widths": [32, 64, 64], "unet_blocks": 1,
            },
        },
    }  # fmt: skip
    alpha_bar: Tensor
    noise: Tensor

    def __init__(self, settings: CDDPMSettings, size: int, channels: int) -> None:
        super().__init__()
        s = self.settings = settings
        stride = total_stride(s.encoder_depths)
        multiple = max(stride, 2 ** (len(s.unet_widths) - 1))
        if size % multiple:
            raise ValueError(f"data.size {size} is not a multiple of {multiple}, which these networks need")
        self.size, self.grid = size, size // stride
        if s.pretraining_epochs and self.grid < 2:
            raise ValueError(f"data.size {size} is a single {stride}-pixel patch: give model.encoder_depths fewer stages")
        self.denoiser = ConditionedUNet(channels, s.unet_widths, s.unet_blocks)
        self.encoder = ResNet(channels, s.encoder_depths, s.encoder_widths, self.denoiser.c_code)
        self.decoder = MaskedDecoder(channels, s.encoder_widths, s.decoder_width)  # for the first stage alone
        self.register_buffer("alpha_bar", cosine_alpha_bar(s.timesteps), persistent=False)
        generator = torch.Generator().manual_seed(s.inference_seed)
        fields = self.fields(torch.rand(len(s.t_star), 257, generator=generator))  # one for each t*, the same for every image
        self.register_buffer("noise", fields, persistent=False)

    # ---- training --------------------------------------------------------------------------------------------------

    def stages(self) -> Sequence[Stage]:
        """Pre-train the encoder on masked images; then encoder and denoiser together."""
        s = self.settings
        encoder = {"what": "ResNet encoder on masked images, L2", **s.model_dump(mode="json", include=ENCODER)}
        denoiser = {"what": "cDDPM: simplex noise, x0, L1", **s.model_dump(mode="json", exclude=INFERENCE)}
        first = Objective((self.encoder, self.decoder), self.masked_loss, betas=(0.9, 0.95))
        second = Objective((self.encoder, self.denoiser), self.denoising_loss)
        return (
            Stage("encoder", s.pretraining_epochs, (first,), decided_by=encoder),
            Stage("denoiser", s.denoiser_epochs, (second,), decided_by=denoiser),
        )

    def masked_loss(self, x: Tensor, step: Step) -> dict[str, Tensor]:
        """Hide patches of the encoder's stride; the decoder restores them from the rest."""
        visible = choose_visible(step.uniform(len(x), self.grid**2), self.grid, self.settings.mask_ratio)
        image = _unit(x)
        restored = self.decoder(self.encoder.features(image, visible), visible).to(x.dtype)
        return {"loss": hidden_error(image, restored, visible)}

    def denoising_loss(self, x: Tensor, step: Step) -> dict[str, Tensor]:
        """|x_0 - f(x_t, t, c(x_0))|, t uniform on 1…T."""
        t = step.integers(1, self.settings.timesteps, len(x))
        eps = self.fields(step.uniform(len(x), 257))
        return {"loss": (self.restore(x, t, eps, self.encoder(_unit(x))) - x).abs().mean()}

    def fields(self, u: Tensor) -> Tensor:
        """Simplex noise from uniform draws ``(B, 257)``, 256 for the permutation and one for the plane → ``(B, 1, H, W)``."""
        s = self.settings
        plane = u[:, 256] * 4.0 * s.wavelength
        return fractal_noise(permutations(u[:, :256]), self.size, self.size, plane, s.octaves, s.persistence, s.wavelength)

    def restore(self, x: Tensor, t: Tensor, eps: Tensor, code: Tensor) -> Tensor:
        """Noise ``x`` to t, and estimate it in one step."""
        x_t = noised(x, eps, at(self.alpha_bar, t))  # ε is the same for all channels
        x_hat: Tensor = self.denoiser(x_t, t, code).to(x.dtype)
        return x_hat

    # ---- inference -------------------------------------------------------------------------------------------------

    def reconstruct(self, x: Tensor) -> Tensor:
        """Average the one-step restorations from every t*; shaped like ``x``."""
        code, total = self.encoder(_unit(x)), torch.zeros_like(x)
        for t, eps in zip(self.settings.t_star, self.noise, strict=True):
            total = total + self.restore(x, torch.full((x.shape[0],), t, device=x.device), eps, code)
        return total / len(self.settings.t_star)

    def pseudo_healthy(self, x: Tensor) -> Tensor:
        """x̂, shaped like ``x``."""
        return map_parts(self.reconstruct, x)

    def features(self, x: Tensor) -> Tensor:
        """The encoder's code of each image, ``(B, 4·base)``."""
        code: Tensor = self.encoder(_unit(x))
        return code

    def forward(self, x: Tensor) -> Prediction:
        """|x - x̂|, and its mean unless post-processed."""
        heatmap = residual_map(x, self.reconstruct(x))
        if self.settings.postprocess == "none":
            return Prediction(heatmap.flatten(1).mean(1), heatmap)
        return authors_map(x, heatmap)


def authors_map(x: Tensor, residual: Tensor) -> Prediction:
    """The residual in the eroded foreground, median-filtered by 5×5; the score is its mean over the foreground."""
    inside = foreground(x).to(residual.dtype)  # (B, 1, H, W)
    eroded = erode(inside, 2 * (x.shape[-2] // 25) + 1)
    heatmap = median_filter(residual[:, None] * eroded, 5)
    score = (heatmap * inside).sum((1, 2, 3)) / inside.sum((1, 2, 3)).clamp(min=1.0)
    return Prediction(score, heatmap[:, 0])


def hidden_error(x: Tensor, restored: Tensor, visible: Visible) -> Tensor:
    """Average the squared error over the hidden patches."""
    hidden = 1.0 - visible.mask(x.shape[-1])
    return ((restored - x).square() * hidden).sum() / (hidden.sum() * x.shape[1])


def _unit(x: Tensor) -> Tensor:
    """[-1, 1] → [0, 1], where black is 0."""
    return (x + 1.0) / 2.0
