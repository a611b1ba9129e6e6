"""The base class of every method, what a method says about its training, and the random numbers a loss may use."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reshift.config import Frozen

Profiles = Mapping[str, Mapping[str, Any]]  # profile → default values of [train], [data], [model], …


class Prediction(NamedTuple):
    """``score (B,)`` and ``heatmap (B, H, W)``; higher means less like the normals."""

    score: Tensor
    heatmap: Tensor


@dataclass(frozen=True)
class Step:
    """The random numbers of one training step, and this process's rank.

    Every rank draws for the global batch and keeps its own rows, so two ranks see what one would. The generator is seeded by
    the step's number, so a resumed run draws the same numbers and no generator state has to be saved. A loss must draw from
    here only, and must not branch on tensor values: on a GPU a step is recorded once and replayed.
    """

    generator: torch.Generator
    rank: int = 0
    world: int = 1

    def uniform(self, *shape: int) -> Tensor:
        """U[0, 1); the first dimension is this rank's batch."""
        return self._own_rows(torch.rand(self._global_shape(shape), generator=self.generator, device=self.generator.device))

    def normal(self, *shape: int) -> Tensor:
        """N(0, 1); the first dimension is this rank's batch."""
        return self._own_rows(torch.randn(self._global_shape(shape), generator=self.generator, device=self.generator.device))

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Uniform on {low, …, high}, both ends included."""
        size = self._global_shape(shape)
        return self._own_rows(torch.randint(low, high + 1, size, generator=self.generator, device=self.generator.device))

    def total(self, value: Tensor) -> Tensor:
        """Sum over all ranks."""
        if self.world > 1:
            value = value.clone()
            dist.all_reduce(value)
        return value

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all ranks, in rank order."""
        if self.world == 1:
            return rows
        parts = [torch.empty_like(rows) for _ in range(self.world)]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    def _global_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0] * self.world, *shape[1:])

    def _own_rows(self, rows: Tensor) -> Tensor:
        return rows.chunk(self.world)[self.rank]


class Objective(NamedTuple):
    """What one optimiser trains: its modules, their loss, and how often it steps. A GAN has two of these."""

    modules: tuple[nn.Module, ...]
    loss: Callable[[Tensor, Step], dict[str, Tensor]]  # "loss" is minimised, the other entries are logged
    every: int = 1  # a step on every n-th batch
    after: Callable[[Step], None] | None = None  # called after the optimiser's step
    lr_factor: float = 1.0  # times train.lr
    betas: tuple[float, float] = (0.9, 0.999)  # of AdamW; (0, 0.9) is RMSProp with bias correction


class Stage(NamedTuple):
    """One phase of training. Modules outside its objectives are frozen and in ``eval()``."""

    name: str
    epochs: int
    objectives: tuple[Objective, ...]
    begin: Callable[..., None] | None = None  # begin(batches): one pass over the training images before the first step
    # The settings that decide what this stage learns, beside data, seed and [train]. A stage that names them is trained once:
    # another run or method that needs the same takes it from the cache. None: never shared.
    decided_by: Mapping[str, Any] | None = None
    steps: int | None = None  # replaces epochs where the number of images should not matter
    # Above 1, the subjects are split into this many folds. Each batch then has equal parts, ``x.chunk(folds)[k]`` of fold k,
    # and ``begin(batches, k)`` is called once per fold. A part of the method that leaves out fold k has not seen its images.
    folds: int = 1
    # ``begin`` sees at most so many images, evenly taken from all: what it learns does not grow with their number. None: all.
    begin_images: int | None = None


class Normals(NamedTuple):
    """What the training normals are like."""

    images_per_subject: float  # the median; slices of a volume are images
    symmetry: float  # how much better they correlate with their own mirror image than with another's
    images: int = 0
    grey_spread: float = math.inf  # standard deviation over subjects of the logarithm of the tissue's median grey
    middle: float = math.inf  # how far apart the quartiles of an image's tissue are, over its median
    bright_side: float = math.inf  # how far the brightest 5 % are above the median, over how far the darkest 5 % are below it


class Detector(nn.Module):
    """The base class of every method. A method implements ``stages`` and ``forward``; everything else is optional.

    A subclass also sets ``Settings`` and ``profiles``, and is built as ``cls(settings, size, channels)``.
    """

    Settings: ClassVar[type[Frozen]]
    profiles: ClassVar[Profiles]  # "paper" and "quick"
    bf16: ClassVar[bool] = False  # ``forward`` may run in bf16 on a GPU
    bf16_cpu: ClassVar[bool] = False  # ``forward`` may run in bf16 on the CPU where RESHIFT_AMP=bf16 asks for it
    # ``forward`` may be recorded on a GPU and replayed: after its first calls it neither waits for the GPU nor copies to it,
    # draws no random numbers, and does the same work for all images of one shape.
    recordable: ClassVar[bool] = False
    # Above 1, as in its stages: ``forward(x, without=k)`` uses nothing that has seen fold k, so all training normals can set
    # the thresholds.
    folds: int = 1
    # The pretrained networks it uses (``nets.features.feature_net``), by name or path. A bundle records the hash of each, and is
    # refused where another file goes by that name.
    feature_names: tuple[str, ...] = ()
    # The map value above which a pixel counts as abnormal, in units that ``fit_normalisation`` fixed; read after it, and may be
    # a property. None: the quantile of normal pixels decides.
    pixel_threshold: float | None = None
    # Wraps the steps of a long prediction, ``for t in self.track(steps, "denoising step")``; a caller replaces it to show
    # progress.
    track: Callable[[Sequence[Any], str], Iterable[Any]] = staticmethod(lambda steps, _label: steps)

    def choose_settings(self, normals: Normals) -> dict[str, Any]:  # noqa: ARG002
        """The settings that the normals decide, before training. The detector is then built again, and the bundle keeps them."""
        return {}

    def stages(self) -> Sequence[Stage]:
        """What is trained, in order. Empty for a method that learns nothing."""
        return ()

    def forward(self, x: Tensor) -> Prediction:
        """Score ``x (B, C, H, W)`` in [-1, 1]. Pure: the same input always gives the same output."""
        raise NotImplementedError

    def predict(self, x: Tensor, without: int | None = None) -> Prediction:
        """Run ``forward``; on the CPU every image gets the same bits alone or in any batch. ``without``: see ``folds``."""
        leave_out = {} if without is None else {"without": without}
        parts: list[Prediction] = [self(images, **leave_out) for images in batch_parts(x)]
        return Prediction(torch.cat([p.score for p in parts]), torch.cat([p.heatmap for p in parts]))

    def fit_normalisation(self, batches: Iterable[tuple[Tensor, int | None]]) -> None:
        """See normals once, after the last stage: pairs (images, fold); the fold is None where no part has seen the images."""

    def adapt(self, batches: Iterable[tuple[Tensor, int]]) -> bool:
        """Take over the normals of a new site without training: pairs (images, fold), a subject in one of ``folds`` folds.

        Return whether anything of the images themselves is kept. If so, the normals of fold k are then scored ``without=k``,
        which must leave out what came from fold k here. By default only the normalisation is fitted again.
        """
        self.fit_normalisation((x, None) for x, _ in batches)
        return False

    def rescore(self, score: Tensor, before: Tensor, after: Tensor) -> Tensor | None:
        """The scores ``(B,)`` when the heat-maps ``before (B, H, W)`` are replaced by ``after``; None where none follow.

        ``data.consensus`` needs it.
        """

    def pseudo_healthy(self, x: Tensor) -> Tensor | None:
        """The images as they would look without disease, in [-1, 1], shaped like ``x``; None if the method restores none."""

    def features(self, x: Tensor) -> Tensor | None:
        """An embedding of each image, ``(B, d)``; None if the method has none."""

    def diagnostics(self, batches: Iterable[Tensor]) -> dict[str, float]:  # noqa: ARG002
        """Numbers that explain a trained detector, measured on normal images; a benchmark records them. Empty if none."""
        return {}

    def notes(self) -> list[str]:
        """Lines that a user of this model should read."""
        return []

    def remarks(self) -> list[str]:
        """Lines that whoever trains this model should read before it learns."""
        return []

    @property
    def restores(self) -> bool:
        """Whether ``pseudo_healthy`` gives restored images; a method whose settings decide it says so itself."""
        return self.overrides("pseudo_healthy")

    def overrides(self, method: str) -> bool:
        """Whether this class has an optional method of its own: ``overrides("pseudo_healthy")``."""
        return getattr(type(self), method) is not getattr(Detector, method)


class DetectorClass(Protocol):
    """A subclass of ``Detector``, and how it is built."""

    Settings: ClassVar[type[Frozen]]
    profiles: ClassVar[Profiles]

    def __call__(self, settings: Any, size: int, channels: int) -> Any:
        """Build the untrained detector for ``size``×``size`` images. A ValueError says what it cannot take."""


def batch_parts(x: Tensor) -> tuple[Tensor, ...]:
    """Split a batch so that no image's bits depend on its neighbours.

    CPU kernels choose their blocking, and so their rounding, by batch size: there, images go one by one. On a GPU that would
    be slow; the batch stays whole and results agree to float tolerance only.
    """
    parts: tuple[Tensor, ...] = x.split(1 if x.device.type == "cpu" else len(x))
    return parts


def map_parts(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply ``function`` to the parts of a batch and join the results."""
    return torch.cat([function(images) for images in batch_parts(x)])
