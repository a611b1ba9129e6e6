"""A loaded bundle: pictures in, scores and heat-maps out. Needs no training code."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from reshift.config import Config, parse
from reshift.data.consensus import Place, place, smooth, together
from reshift.data.image import Image
from reshift.data.manifest import Case
from reshift.data.prepare import Prepared, prepare
from reshift.data.read import read_picture
from reshift.data.source import ahead
from reshift.errors import UserError
from reshift.evaluation.metrics.pixels import PixelHistogram
from reshift.inference.acquisition import Acquisition, Judged, describe, judge
from reshift.inference.answer import Looked, Result, answer
from reshift.inference.bundle import Bundle, load_bundle
from reshift.inference.calibration import Calibration
from reshift.kernels.graphs import Replays
from reshift.nets.features import FeatureNet, efficientnet_lite0
from reshift.system.device import AsyncCopy, device_scope, pick_device, scoring, to_device, upload
from reshift.system.progress import progress

ALONE = "a picture by itself may be flagged too often"
GPU_BATCH = 32  # images per pass; the CPU takes them one by one (methods.detector.batch_invariant)


Run = Callable[[], tuple[list[float], NDArray[np.float32]]]  # waits for scores and maps
Embedded = Callable[[], NDArray[np.float64] | None]


class NormalScores(NamedTuple):
    """What a calibration is made of: one row per image, and all their pixels."""

    scores: list[float]
    pixels: PixelHistogram
    descriptors: NDArray[np.float64]  # (n, d), see acquisition.describe
    features: NDArray[np.float64] | None = None  # (n, 1280), see Model.embed

    def join(self, other: "NormalScores") -> "NormalScores":
        """Both; the pixels are counted into one histogram, this one's."""
        self.pixels.merge(other.pixels)
        known = self.features is not None and other.features is not None
        features = np.concatenate([self.features, other.features]) if known else None
        return NormalScores(
            self.scores + other.scores, self.pixels, np.concatenate([self.descriptors, other.descriptors]), features
        )


class Model:
    """``reshift.load(path)``."""

    def __init__(self, bundle: Bundle, device: str = "auto") -> None:
        check_consensus(bundle.detector, bundle.config)
        self.bundle = bundle
        self.device = pick_device(device)
        self.detector: Any = to_device(bundle.detector, self.device)
        self.batch = 1 if self.device.type == "cpu" else GPU_BATCH
        self.without_features = ""  # why there is no embedder, if it is wanted
        recordable = self.device.type == "cuda" and getattr(self.detector, "recordable", False)
        self.replays = Replays() if recordable else None

    def predict(self, images: Any) -> list[Result]:
        """Score one picture or a sequence of them: paths, PIL images, or arrays ``(H, W)`` / ``(H, W, 3)``."""
        many = images if isinstance(images, list | tuple) else [images]
        results: list[Result] = []
        for line in self.warnings():
            warnings.warn(line, stacklevel=2)
        for start in range(0, len(many), self.batch):
            inputs = [self.prepare(_image(item)) for item in many[start : start + self.batch]]
            results += self.results(inputs)
        return results

    def prepare(self, image: Image) -> Prepared:
        """Bring a picture to what the network sees."""
        return prepare(image, self.bundle.config.data)

    def results(self, inputs: Sequence[Prepared]) -> list[Result]:
        """Score prepared pictures as one batch."""
        return [self.result(seen) for seen in self.look(inputs)]

    def look(self, inputs: Sequence[Prepared]) -> list[Looked]:
        """Score prepared pictures as one batch, and leave their maps as the network gave them."""
        stack = np.stack([item.pixels for item in inputs])
        scores, maps = self.run(stack)
        found = zip(scores, maps, inputs, self.judge(stack), strict=True)
        return [Looked(score, heatmap, item.geometry, judged) for score, heatmap, item, judged in found]

    def run(self, pixels: NDArray[np.float32], without: int | None = None) -> tuple[list[float], NDArray[np.float32]]:
        """``(B, C, S, S)`` in [-1, 1] → B scores and ``(B, S, S)`` maps; ``without`` what has seen this fold, if a method can."""
        return self.launch(pixels, without)()

    def launch(self, pixels: NDArray[np.float32], without: int | None = None) -> Run:
        """Begin to ``run``; what this returns waits for it. A GPU can be given the next before."""
        predict = self.detector.predict if without is None else partial(self.detector.predict, without=without)
        with device_scope(self.device), torch.inference_mode(), scoring(self.device, self.detector):
            x = upload(pixels, self.device)
            key = (x.shape, without, torch.is_autocast_enabled(self.device.type))
            prediction = predict(x) if self.replays is None else self.replays(key, predict, x)
            heatmap, score = AsyncCopy(prediction.heatmap.float()), AsyncCopy(prediction.score.double())
        return lambda: (score.read(), heatmap.wait().numpy())

    def scores_of(self, maps: NDArray[np.float32]) -> list[float]:
        """The scores that belong to ``(n, S, S)`` maps, of a method whose score follows from its map."""
        with device_scope(self.device), torch.inference_mode():
            parts = [self.detector.score_of(part) for part in upload(maps, self.device).split(self.batch)]
        return [score for part in parts for score in part.double().cpu().tolist()]

    def features(self, pixels: NDArray[np.float32]) -> NDArray[np.float32] | None:
        """Embed ``(B, C, S, S)`` as ``(B, d)`` where the method has an image-level embedding."""
        embed = getattr(self.detector, "features", None)
        if embed is None:
            return None
        with device_scope(self.device), torch.inference_mode():
            found = embed(upload(pixels, self.device))
        return None if found is None else np.asarray(found.float().cpu().numpy())

    def restored(self, x: torch.Tensor) -> torch.Tensor:
        """Pseudo-healthy versions of images that are on the model's device."""
        with device_scope(self.device), torch.inference_mode():
            found: torch.Tensor = self.detector.pseudo_healthy(x)
        return found

    def result(self, seen: Looked) -> Result:
        """The answer on the image's own pixels, with what the calibration says of it."""
        return answer(seen, self.bundle.calibration)

    @property
    def acquisition(self) -> Acquisition | None:
        """What the bundle knows of how its training images were taken."""
        return self.bundle.calibration.acquisition if self.bundle.calibration else None

    def judge(self, pixels: NDArray[np.float32]) -> list[Judged | None]:
        """How like the training images each of ``(B, C, S, S)`` was taken; None where the bundle cannot tell."""
        known = self.acquisition
        if known is None:
            return [None] * len(pixels)
        features = self.embed(pixels)
        return [judge(known, describe(x), None if features is None else features[i]) for i, x in enumerate(pixels)]

    def embed(self, pixels: NDArray[np.float32]) -> NDArray[np.float64] | None:
        """Describe ``(B, C, S, S)`` by ImageNet features ``(B, 1280)``; None where nothing is or can be known of them."""
        return self.launch_embedding(pixels)()

    def launch_embedding(self, pixels: NDArray[np.float32]) -> Embedded:
        """Begin to ``embed``; what this returns waits for it."""
        if self.embedder is None:
            return lambda: None
        with device_scope(self.device):
            x = upload(pixels, self.device)
            groups = x.split(1) if self.device.type == "cpu" else (x,)  # one by one on the CPU: the batch must not show
            rows = AsyncCopy(torch.cat([self.embedder.vector(group) for group in groups]).double())
        return lambda: rows.wait().numpy()

    @cached_property
    def embedder(self) -> FeatureNet | None:
        """The feature network: where the bundle has its reference, or where one is about to be made."""
        known = self.acquisition
        wanted = self.bundle.config.calibrate.features == "auto" if known is None else known.features is not None
        try:
            return efficientnet_lite0(self.device) if wanted else None
        except UserError as err:
            self.without_features = str(err)
            return None

    def warnings(self) -> list[str]:
        """What the model's training and this installation leave out, one line each."""
        notes, sigma = self.bundle.notes(), self.bundle.config.data.consensus
        if sigma:
            notes = [*notes, f"thresholds are of slices averaged with their neighbours (data.consensus = {sigma:g}): {ALONE}"]
        if self.acquisition is None or self.acquisition.features is None or self.embedder is not None:
            return notes
        return [*notes, f"images are compared with the training images by grey values only. {self.without_features}"]


def load_model(path: Path, device: str = "auto", reference: str | None = None) -> Model:
    """Load a bundle for prediction; ``reference`` picks other normals for the thresholds than the bundle's default."""
    bundle = load_bundle(path)
    if reference is not None and bundle.calibration is not None:
        bundle = bundle._replace(calibration=parse(Calibration, {**bundle.calibration.model_dump(), "default": reference}))
    return Model(bundle, device)


def check_consensus(detector: Any, config: Config) -> None:
    """Refuse to average maps where the score could not follow."""
    if config.data.consensus and not hasattr(detector, "score_of"):
        why = f"method '{config.method}' has no rule that scores an averaged map (score_of)"
        raise UserError(f"data.consensus = {config.data.consensus:g}: {why}; set data.consensus=0")


Seen = TypeVar("Seen")
Found = tuple[Seen, float, NDArray[np.float32]]  # whatever was scored, its score and its map in the network's own grid


def agreed(model: Model, found: Iterable[Found[Seen]], where: Callable[[Seen], Place | None]) -> Iterator[Found[Seen]]:
    """With ``data.consensus``, average the maps along each stack, whose slices follow one another, and score them anew."""
    sigma = model.bundle.config.data.consensus
    if not sigma:
        yield from found
        return
    placed = ((where(item[0]), item) for item in found)
    for stack, group in groupby(placed, key=lambda pair: None if pair[0] is None else pair[0].stack):
        if stack is None:
            yield from (item for _, item in group)
            continue
        slices = list(group)
        positions = [lies.position for lies, _ in slices if lies is not None]
        maps = smooth(np.stack([heatmap for _, (_, _, heatmap) in slices]), positions, sigma)
        yield from zip((seen for _, (seen, _, _) in slices), model.scores_of(maps), maps, strict=True)


def normal_scores(model: Model, cases: Sequence[Case], label: str, without: int | None = None) -> NormalScores:
    """Score normal images, ``without`` what has learned from this fold."""
    scores, pixels, descriptors, features = list[float](), PixelHistogram(), list[NDArray[np.float64]](), []
    cases = together(cases) if model.bundle.config.data.consensus else cases
    with progress(label, len(cases)) as advance:

        def run() -> Iterator[Found[Case]]:
            loading = ahead(lambda case: model.prepare(read_picture(case.image, case.slice)), cases)
            for group in grouped(loading, model.batch):
                batch = np.stack([future.result().pixels for _, future in group])
                batch_scores, maps = model.run(batch, without)
                descriptors.extend(describe(image) for image in batch)
                embedded = model.embed(batch)
                features.extend([] if embedded is None else [*embedded])
                yield from zip((case for case, _ in group), batch_scores, maps, strict=True)
                advance(len(group))

        for _, score, heatmap in agreed(model, run(), place):
            scores.append(score)
            pixels.add(heatmap)
    return NormalScores(scores, pixels, np.array(descriptors), None if model.embedder is None else np.array(features))


Item = TypeVar("Item")


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


def _image(item: Any) -> Image:
    """Whatever a caller may hold → Image."""
    if isinstance(item, str | Path):
        return read_picture(Path(item))
    array = np.asarray(item)
    bits = {np.dtype(np.uint8): 8, np.dtype(np.bool_): 8, np.dtype(np.uint16): 16}.get(array.dtype, 32)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3):
        raise UserError(f"predict takes paths, PIL images or arrays (H, W) or (H, W, 3), not an array of shape {np.shape(item)}")
    pixels = array.astype(np.float32) * (255.0 if array.dtype == np.bool_ else 1.0)
    if not np.isfinite(pixels).all():
        raise UserError("the array contains NaN or infinite pixels; replace them before use")
    return Image(pixels, bits, Path("<array>"))
