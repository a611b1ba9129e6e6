"""The protocol every method follows, and what the training loop hands to a loss."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reshift.config import Frozen


class Prediction(NamedTuple):
    """``score (B,)`` and ``heatmap (B, H, W)``; higher means less like the normals."""

    score: Tensor
    heatmap: Tensor


@dataclass(frozen=True)
class Step:
    """One training step's randomness and its place among the processes.

    Every process draws for the global batch and keeps its own rows, so two processes see what one would. Seeding by step
    makes a resumed run draw what the killed one would have drawn, with no generator state to save. A loss must draw from here
    and nowhere else, and must not branch on tensor values: on a GPU its step is recorded once and replayed.
    """

    generator: torch.Generator
    rank: int = 0
    world: int = 1

    def uniform(self, *shape: int) -> Tensor:
        """U[0, 1), first dimension = this process's batch."""
        return self._mine(torch.rand(self._everyone(shape), generator=self.generator, device=self.generator.device))

    def normal(self, *shape: int) -> Tensor:
        """N(0, 1), first dimension = this process's batch."""
        return self._mine(torch.randn(self._everyone(shape), generator=self.generator, device=self.generator.device))

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Uniform on {low, …, high}, both ends included."""
        size = self._everyone(shape)
        return self._mine(torch.randint(low, high + 1, size, generator=self.generator, device=self.generator.device))

    def total(self, value: Tensor) -> Tensor:
        """Sum over processes."""
        if self.world > 1:
            value = value.clone()
            dist.all_reduce(value)
        return value

    def gather(self, rows: Tensor) -> Tensor:
        """All processes' rows, in rank order."""
        if self.world == 1:
            return rows
        parts = [torch.empty_like(rows) for _ in range(self.world)]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    def _everyone(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0] * self.world, *shape[1:])

    def _mine(self, rows: Tensor) -> Tensor:
        return rows.chunk(self.world)[self.rank]


class Objective(NamedTuple):
    """What one optimiser does: the modules it moves, by which loss, every n-th step (a GAN has two of these)."""

    modules: tuple[nn.Module, ...]
    loss: Callable[[Tensor, Step], dict[str, Tensor]]  # "loss" is minimised, the rest is logged
    every: int = 1
    after: Callable[[Step], None] | None = None  # once the optimiser has stepped
    rate: float = 1.0  # times train.lr
    betas: tuple[float, float] = (0.9, 0.999)  # AdamW's; (0, 0.9) is RMSProp with its start corrected


class Stage(NamedTuple):
    """One phase of training. Modules outside its objectives are frozen and in ``eval()``."""

    name: str
    epochs: int
    objectives: tuple[Objective, ...]
    begin: Callable[..., None] | None = None  # sees the training images once, before the first step: begin(batches)
    # The settings that decide what this stage learns, beside data, seed and [train]. A stage that names them is trained once:
    # whoever needs the same again, be it another method, takes it from the cache. None: never shared.
    decided_by: Mapping[str, Any] | None = None
    steps: int | None = None  # in place of epochs, where the number of images should not matter
    # Above 1, subjects are dealt into so many folds: a batch then has equal parts, ``x.chunk(folds)[k]`` of fold k, and
    # ``begin(batches, k)`` is called once for each. A part of the method that leaves fold k out has those images unseen.
    folds: int = 1


class Detector(Protocol):
    """What ``train``, ``predict`` and ``bench`` need of a method; every detector is also an ``nn.Module``.

    Optional: ``bf16 = True`` lets ``predict`` run in bf16 on a GPU, ``bf16_cpu`` on the CPU if RESHIFT_AMP asks for it;
    ``recordable = True`` lets it be recorded on a GPU and replayed: after its first calls it then neither waits for the GPU nor
    copies anything to it, draws nothing, and does the same for all images of a shape. ``settle(batches)`` sees normals that were
    not trained on, once, after the last stage; ``notes()`` are lines a user should read; ``features``, ``pseudo_healthy`` as in
    ``dmd``.
    ``score_of(heatmap (B, H, W)) -> (B,)``, where ``predict`` takes the score from the map alone: with it, the maps of a stack's
    slices may be averaged (``data.consensus``).
    With ``folds`` above 1, as in its stages, ``predict(x, without=k)`` uses nothing that has seen fold k: thresholds then come
    from all training normals. ``settle`` gets pairs (batch, fold); the fold of images that no part has seen is None.
    """

    def stages(self) -> Sequence[Stage]:
        """What is trained, in order. Empty for a method that learns nothing."""

    def predict(self, x: Tensor) -> Prediction:
        """Score ``x (B, C, H, W)`` in [-1, 1]. Pure: on the CPU the same bits alone or in any batch."""


class DetectorClass(Protocol):
    """The class behind a registry entry."""

    Settings: ClassVar[type[Frozen]]
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]]  # profile → config layer (tables "train", "model", …)

    def __call__(self, settings: Any, size: int, channels: int) -> Any:
        """Build the (untrained) detector for ``size``×``size`` images."""


def invariant_parts(x: Tensor) -> tuple[Tensor, ...]:
    """Cut a batch so that no image's bits depend on its neighbours.

    CPU kernels choose their blocking, and so their rounding, by batch size: there, images go one by one. On a GPU that would
    waste the card, and results agree to float tolerance only.
    """
    parts: tuple[Tensor, ...] = x.split(1 if x.device.type == "cpu" else len(x))
    return parts


def batch_invariant(predict: Callable[[Tensor], Prediction], x: Tensor) -> Prediction:
    """Run ``predict`` on the parts of a batch, and put its answers together."""
    parts = [predict(images) for images in invariant_parts(x)]
    return Prediction(torch.cat([p.score for p in parts]), torch.cat([p.heatmap for p in parts]))
