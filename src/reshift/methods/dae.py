"""DAE: a U-Net learns to remove coarse noise from normal images; at test time it removes lesions, too.

Paper: Kascenas, Pugeault, O'Neil, "Denoising Autoencoders for Unsupervised Anomaly Detection in Brain MRI" (2022), and
its code. Faithful: the network (four levels); Gaussian noise drawn on a 16×16 grid per channel, enlarged bilinearly
with aligned corners, rolled around the image, restricted to the foreground, with standard deviation 0.2 on a [0, 1]
grey scale (0.4 on ours), and no noise at test time; the loss, squared error times foreground, averaged over all pixels;
learning rate 1e-4, clip 0.5, batch 16.

Different: (1) every sample is rolled by its own shift; the authors draw one per batch. (2) One cosine down to 0; theirs
has a period of 100 epochs and is run past it, so that the rate oscillates. (3) AdamW instead of Adam with AMSGrad and
an L2 penalty of 1e-5. (4) The last weights, not those of the best validation loss. (5) The authors make 67,200 updates;
``epochs`` is 250, as in MedIAnomaly's version, and 67,200 · 16 / (number of training images) gives theirs. (6)
MedIAnomaly's version also subtracts 1 from the whole noisy image, background included, but not from test images. This
has no effect, because the kernels of the first convolution have mean 0 and the border is reflected; it is left out
here. (7) Foreground is what exceeds 0.01 of the [0, 1] scale in any channel; the authors add the channels first.

Heat-map: |x - x̂| averaged over channels (``map = "squared"``: MedIAnomaly's choice), and 0 outside the foreground,
where the network is not trained. Image score: its mean; the authors give none. ``postprocess = "authors"``: the
foreground is eroded first (5×5 mean above 0.95; outside the image counts as background), then the heat-map is
median-filtered, 5×5.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from reshift.config import Frozen
from reshift.methods.detector import Detector, Objective, Prediction, Profiles, Stage, Step, map_parts
from reshift.methods.ops.filters import foreground, median_filter
from reshift.methods.ops.noise import coarse_noise
from reshift.nets.dae_unet import DenoisingUNet


class DAESettings(Frozen):
    """The authors' values are the defaults, except where marked."""

    epochs: int = Field(250, ge=0)  # MedIAnomaly's
    widths: Annotated[tuple[Annotated[int, Field(ge=1, le=4096)], ...], Field(min_length=1, max_length=10)] = (64, 128, 256, 512)
    noise_std: float = Field(0.4, ge=0.0)  # on [-1, 1]
    noise_grid: int = Field(16, ge=2, le=1024)  # points per side: 8 pixels apart at 128×128; size / 8 keeps that at other sizes
    floor: float = -0.98  # brighter pixels are foreground; below -1, all pixels are
    map: Literal["absolute", "squared"] = "absolute"
    postprocess: Literal["none", "authors"] = "none"


class DAE(Detector):
    """Denoise, compare."""

    Settings = DAESettings
    profiles: ClassVar[Profiles] = {
        "paper": {"train": {"batch": 16, "lr": 1e-4, "weight_decay": 1e-5, "clip": 0.5, "schedule": "cosine"}},
        "quick": {
            "train": {"batch": 8, "lr": 1e-3, "weight_decay": 1e-5, "clip": 0.5, "schedule": "cosine"},
            "model": {"epochs": 40, "widths": [16, 32, 64, 128]},
        },
    }

    def __init__(self, settings: DAESettings, size: int, channels: int) -> None:
        super().__init__()
        s = self.settings = settings
        factor = 2 ** (len(s.widths) - 1)
        if size % factor or size < 2 * factor:
            raise ValueError(
                f"data.size {size} is not a multiple of {factor}, at least {2 * factor}, as {len(s.widths)} widths need"
            )
        if s.noise_grid > size:
            raise ValueError(f"model.noise_grid {s.noise_grid} exceeds data.size {size}")
        self.net = DenoisingUNet(channels, s.widths)

    def stages(self) -> Sequence[Stage]:
        """One: denoising."""
        decided_by = {"what": "dae", **self.settings.model_dump(mode="json", exclude={"map", "postprocess"})}
        return (Stage("denoiser", self.settings.epochs, (Objective((self.net,), self._loss),), decided_by=decided_by),)

    def _loss(self, x: Tensor, step: Step) -> dict[str, Tensor]:
        inside = self._foreground(x)
        noisy = x + inside * coarse_noise(x, self.settings.noise_grid, self.settings.noise_std, step)
        error = x - self.net(noisy).to(x.dtype)
        return {"loss": (error.square() * inside).mean()}

    def _foreground(self, x: Tensor) -> Tensor:
        return foreground(x, self.settings.floor)  # (B, 1, H, W)

    def anomaly_map(self, x: Tensor) -> Tensor:
        """``(B, C, H, W)`` → ``(B, H, W)``."""
        s, inside = self.settings, self._foreground(x)
        error: Tensor = x - self.net(x).to(x.dtype)
        error = error.abs() if s.map == "absolute" else error.square()
        if s.postprocess == "none":
            return (error * inside).mean(1)
        eroded = F.avg_pool2d(inside, 5, stride=1, padding=2) > 0.95
        return median_filter((error * eroded).mean(1, keepdim=True), 5).squeeze(1)

    def pseudo_healthy(self, x: Tensor) -> Tensor:
        """The denoised foreground on x's own background, clipped to [-1, 1]."""
        denoised = map_parts(self.net, x).to(x.dtype).clamp(-1.0, 1.0)
        return torch.where(self._foreground(x) > 0, denoised, x)

    def forward(self, x: Tensor) -> Prediction:
        """The heat-map and its mean."""
        heatmap = self.anomaly_map(x)
        return Prediction(heatmap.flatten(1).mean(1), heatmap)
