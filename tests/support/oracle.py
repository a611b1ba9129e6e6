"""A denoiser whose answers are known, for the methods on an image-space DDPM."""

from typing import Any

import torch
from torch import Tensor, nn

from reshift.methods import get

SIZE = 16


class Oracle(nn.Module):
    """Predicts the ε that leads from x_t to a fixed image, and remembers what it was asked."""

    def __init__(self, target: Tensor, alpha_bar: Tensor) -> None:
        super().__init__()
        self.target, self.alpha_bar, self.asked = target, alpha_bar, list[tuple[int, Tensor]]()

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        self.asked.append((int(t[0]), x_t.clone()))
        a = self.alpha_bar[t].view(-1, 1, 1, 1)
        return ((x_t - a.sqrt() * self.target) / (1.0 - a).sqrt()).float()

    @property
    def steps(self) -> list[int]:
        return [t for t, _ in self.asked]


def build(method: str, **settings: Any) -> Any:
    cls = get(method)
    small = {"widths": (8, 8), "epochs": 1}
    return cls(cls.Settings(**(small | settings)), SIZE, 1)


def with_oracle(method: str, target: Tensor, **settings: Any) -> tuple[Any, Oracle]:
    model = build(method, **settings)
    oracle = Oracle(target.double(), model.alpha_bar)
    model.denoiser = oracle
    return model, oracle


def random_image(seed: int = 0) -> Tensor:
    return torch.rand(1, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(seed)) * 1.6 - 0.8
