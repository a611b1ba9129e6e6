"""LinearDAE: a linear autoencoder learns to remove grey squares from normal images; what it changes is abnormal.

Not from a paper. PCA finds a similar subspace; the squares teach this one to ignore local changes.
Heat-map: |x - x̂| averaged over channels. Image score: the mean of the highest ``top`` of its pixels.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from reshift.config import Frozen
from reshift.methods.detector import Detector, Objective, Prediction, Profiles, Stage, Step


class LinearDAESettings(Frozen):
    """What ``--set model.code=16`` can change; the bundle keeps every value."""

    epochs: int = Field(2000, ge=0)
    code: int = Field(64, ge=1)  # numbers between encoder and decoder
    side: float = Field(0.25, gt=0.0, le=1.0)  # of a square, as a share of the image's side
    top: float = Field(0.02, gt=0.0, le=1.0)  # share of the pixels that the image score averages


class LinearDAE(Detector):
    """Subtract the mean image, encode, decode, compare."""

    Settings = LinearDAESettings
    profiles: ClassVar[Profiles] = {
        "paper": {"train": {"batch": 16, "lr": 1e-3, "schedule": "cosine"}},
        "quick": {"train": {"batch": 16, "lr": 1e-3, "schedule": "cosine"}, "data": {"size": 64}, "model": {"epochs": 300}},
    }
    mean: Tensor

    def __init__(self, settings: LinearDAESettings, size: int, channels: int) -> None:
        super().__init__()
        self.settings, self.square = settings, round(settings.side * size)
        if self.square < 1:
            raise ValueError(f"model.side {settings.side} of data.size {size} is less than a pixel")
        self.register_buffer("mean", torch.zeros(channels, size, size))
        self.encode = nn.Linear(self.mean.numel(), settings.code, bias=False)
        self.decode = nn.Linear(settings.code, self.mean.numel(), bias=False)

    def stages(self) -> Sequence[Stage]:
        """One pass over the images for their mean, then the autoencoder."""
        objective = Objective((self.encode, self.decode), self._loss)
        return (Stage("autoencoder", self.settings.epochs, (objective,), begin=self._fit_mean),)

    def _fit_mean(self, images: Iterable[Tensor]) -> None:
        total, count = torch.zeros_like(self.mean), 0
        for x in images:
            total, count = total + x.sum(0), count + len(x)
        self.mean.copy_(total / count)

    def _loss(self, x: Tensor, step: Step) -> dict[str, Tensor]:
        b, _, size, _ = x.shape
        pixel = torch.arange(size, device=x.device)
        down, right = (pixel - step.integers(1 - self.square, size - 1, b)[:, None] for _ in range(2))  # (B, size)
        rows, columns = (((d >= 0) & (d < self.square)).to(x.dtype) for d in (down, right))
        square = rows[:, None, :, None] * columns[:, None, None, :]  # (B, 1, size, size) of 0. and 1.
        grey = 2.0 * step.uniform(b, 1, 1, 1) - 1.0
        return {"loss": (x - self.restore(x + grey * square)).square().mean()}

    def restore(self, x: Tensor) -> Tensor:
        """x̂, ``(B, C, H, W)`` → the same shape."""
        code = self.encode((x - self.mean).flatten(1))  # (B, code)
        change: Tensor = self.decode(code).to(x.dtype)  # bf16 while training on a GPU
        return self.mean + change.view_as(x)

    def forward(self, x: Tensor) -> Prediction:
        """Score ``x (B, C, H, W)``."""
        pixels = (x - self.restore(x)).abs().mean(1).flatten(1)  # (B, H·W)
        highest = pixels.topk(max(1, round(self.settings.top * pixels.shape[1])), dim=1).values
        return Prediction(highest.mean(1), pixels.view_as(x[:, 0]))
