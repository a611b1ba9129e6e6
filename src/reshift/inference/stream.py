"""The one way of an image through a model: read → prepare → predict → finish, with a bounded number of images on the way.

``score``, ``evaluate``, ``calibrate``, ``select`` and ``Model.predict`` all use it; they differ in what they read and what they
do with a predicted sample. Needs no torch by itself, so worker processes can import it.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from reshift.config import DataConfig
from reshift.data.image import Image, reading
from reshift.data.prepare import Geometry, Prepared, prepare
from reshift.errors import UserError, reason
from reshift.inference.acquisition import describe, tissue_share
from reshift.inference.consensus import Place, smooth
from reshift.system.workers import WorkerPool

if TYPE_CHECKING:
    from reshift.inference.model import Model

READ_AHEAD = 16  # images beyond the batch at hand
MAX_PENDING = 2  # batches on a GPU: it computes one while the heat-maps of the other come back

NOTHING = Prepared(np.empty(0, np.float32), Geometry(0, 0, 0, 0, 0, 0))

Case = TypeVar("Case")
Item = TypeVar("Item")


@dataclass(slots=True)
class Sample(Generic[Case]):
    """One image on its way. Reading fills the first part, prediction the second; ``error`` ends the way."""

    case: Case  # what the caller asked for: a file, a manifest's case, a slice number
    image: Image | None = None  # as read, where the caller needs it again
    prepared: Prepared = NOTHING
    descriptor: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))  # see acquisition.describe
    mask: NDArray[np.bool_] | None = None  # of a labelled case: the lesion, on the network's grid
    ignore: NDArray[np.bool_] | None = None  # pixels that no metric counts; none of them is in the mask
    error: UserError | None = None
    worker: int = 0  # that has read it
    image_bytes: int = 0
    source: str = ""  # file, for messages

    score: float = math.nan
    heatmap: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))  # on the network's grid
    features: NDArray[np.float64] | None = None  # of the feature network, see acquisition
    embedding: NDArray[np.float32] | None = None  # the method's own, where asked for
    seconds: float = 0.0
    not_judged: str | None = None  # why, where the calibration says nothing about such an image


def has_little_tissue(sample: Sample[Case], smallest: float | None) -> bool:
    """Whether an image has less tissue than the normals that set the thresholds."""
    return smallest is not None and len(sample.descriptor) > 0 and tissue_share(sample.descriptor) < smallest


def prepare_sample(case: Case, image: Image, config: DataConfig) -> Sample[Case]:
    """An image that is at hand, prepared for the network."""
    prepared = prepare(image, config)
    return Sample(case, image, prepared, describe(prepared.pixels), image_bytes=image.pixels.nbytes, source=str(image.source))


def read_sample(case: Case, read: Callable[[Case], Sample[Case]]) -> Sample[Case]:
    """``read(case)``; whatever goes wrong becomes the sample's error, since one bad file is one bad record."""
    try:
        with reading():
            return read(case)
    except Exception as err:
        return Sample(case, error=err if isinstance(err, UserError) else UserError(reason(err)))


def read_batches(cases: Iterable[Case], read: Callable[[Case], Sample[Case]], size: int) -> Iterator[list[Sample[Case]]]:
    """Read by threads, ahead of who asks, in batches of ``size``. How many decode at the same time depends on their pixels."""
    with WorkerPool() as pool:
        yield from grouped(pool.map(lambda case: read_sample(case, read), cases, size + READ_AHEAD), size)


def predict_batches(
    model: "Model", batches: Iterable[list[Sample[Case]]], *, without: int | None = None, embed: bool = False
) -> Iterator[list[Sample[Case]]]:
    """Fill in the predictions of batch after batch; samples with an error pass through.

    ``without`` leaves out the part of the method that has seen this fold. ``embed`` asks for the method's own embedding.
    """
    pending: deque[_Launched[Case]] = deque()
    last = 0.0  # when the device finished the batch before

    def finish() -> list[Sample[Case]]:
        nonlocal last
        launched = pending.popleft()
        last = launched.finish(last)
        return launched.batch

    for batch in batches:
        try:
            pending.append(_launch(model, batch, without, embed=embed))
        except (Exception, KeyboardInterrupt):
            while pending:  # what is predicted already is not lost
                yield finish()
            raise
        if len(pending) >= (MAX_PENDING if model.batch > 1 else 1):
            yield finish()
    while pending:
        yield finish()


def predict_samples(
    model: "Model",
    cases: Iterable[Case],
    read: Callable[[Case], Sample[Case]],
    *,
    without: int | None = None,
    embed: bool = False,
) -> Iterator[Sample[Case]]:
    """Read and predict, sample by sample, in the order of ``cases``."""
    return chain.from_iterable(predict_batches(model, read_batches(cases, read, model.batch), without=without, embed=embed))


@dataclass(slots=True)
class _Launched(Generic[Case]):
    """A batch that the device is working on."""

    batch: list[Sample[Case]]
    good: list[Sample[Case]]  # those without an error
    begun: float
    prediction: Callable[[], tuple[list[float], NDArray[np.float32]]]
    features: Callable[[], NDArray[np.float64] | None]
    embedding: NDArray[np.float32] | None

    def finish(self, last: float) -> float:
        """Wait for the batch, fill in its samples, and return the time."""
        (scores, heatmaps), features = self.prediction(), self.features()
        now = time.monotonic()
        for i, sample in enumerate(self.good):
            sample.score, sample.heatmap = scores[i], heatmaps[i]
            sample.features = None if features is None else features[i]
            sample.embedding = None if self.embedding is None else self.embedding[i]
            sample.seconds = (now - max(self.begun, last)) / len(self.good)
            if not math.isfinite(sample.score):
                sample.error = UserError(f"{sample.source}: the model's score is {sample.score}; its training may have diverged")
        return now


def _launch(model: "Model", batch: list[Sample[Case]], without: int | None, *, embed: bool) -> _Launched[Case]:
    """Start a prediction."""
    begun, good = time.monotonic(), [sample for sample in batch if sample.error is None]
    if not good:
        return _Launched(batch, good, begun, lambda: ([], np.empty(0, np.float32)), lambda: None, None)
    pixels = np.stack([sample.prepared.pixels for sample in good])
    embedding = model.embedding(pixels) if embed else None
    return _Launched(batch, good, begun, model.launch(pixels, without), model.launch_features(pixels), embedding)


def average_stacks(
    model: "Model", samples: Iterable[Sample[Case]], place: Callable[[Case], Place | None]
) -> Iterator[Sample[Case]]:
    """With ``data.consensus``, average the heat-maps along each stack and score them anew.

    A stack's slices follow each other, by rising position. Slices with too little tissue to be judged stand alone, or they would
    light up their neighbours.
    """
    sigma = model.bundle.config.data.sigma
    if not sigma:
        yield from samples
        return
    for stack, group in groupby(_placed(samples, place), key=lambda item: item[0]):
        if stack is not None:
            yield from _averaged(model, group, sigma)
            continue
        for _, _, sample in group:
            yield sample


def _placed(
    samples: Iterable[Sample[Case]], place: Callable[[Case], Place | None]
) -> Iterator[tuple[Hashable, float, Sample[Case]]]:
    """Stack, position and sample; one that failed belongs to the stack it came in."""
    stack: Hashable = None
    for sample in samples:
        found = place(sample.case) if sample.error is None else None
        stack = stack if sample.error is not None else None if found is None else found.stack
        yield stack, 0.0 if found is None else found.position, sample


def _averaged(model: "Model", members: Iterable[tuple[Hashable, float, Sample[Case]]], sigma: float) -> Iterator[Sample[Case]]:
    """The samples of one stack, each once its neighbours are known."""
    calibration, waiting = model.bundle.calibration, deque[Sample[Case]]()
    smallest = calibration.smallest_tissue if calibration else None

    def maps() -> Iterator[tuple[float, NDArray[np.float32] | None]]:
        for _, position, sample in members:
            waiting.append(sample)
            alone = sample.error is not None or has_little_tissue(sample, smallest)
            yield position, None if alone else sample.heatmap

    for averaged in smooth(maps(), sigma):
        sample = waiting.popleft()
        if averaged is not None:
            [sample.score] = model.rescore([sample.score], sample.heatmap[None], averaged[None])
            sample.heatmap = averaged
        yield sample


def grouped(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Consecutive groups of ``size``, the last one smaller."""
    group: list[Item] = []
    for item in items:
        group.append(item)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group
