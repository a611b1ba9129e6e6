"""A loaded bundle: images in, scores and heat-maps out. Needs no training code."""

import warnings
from collections.abc import Callable
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from reshift.config import Config, parse
from reshift.data.image import Image
from reshift.data.read import read_image
from reshift.errors import UserError
from reshift.inference.acquisition import Acquisition
from reshift.inference.bundle import Bundle, load_bundle
from reshift.inference.calibration import Calibration
from reshift.inference.exported.load import ExportedDetector, is_exported, load_exported
from reshift.inference.result import Result, finish
from reshift.inference.stream import Sample, grouped, predict_batches, prepare_sample
from reshift.kernels import accelerate
from reshift.kernels.graphs import GraphCache
from reshift.methods.detector import Detector
from reshift.nets.efficientnet_lite import EfficientNetLite0, efficientnet_lite0
from reshift.system.device import AsyncCopy, device_scope, pick_device, scoring, to_device, upload
from reshift.system.progress import counted

GPU_BATCH = 32  # images per pass; the CPU takes them one by one (methods.detector.batch_parts)


class Model:
    """``reshift.load(path)``."""

    def __init__(self, bundle: Bundle, device: str = "auto") -> None:
        check_consensus(bundle.detector, bundle.config)
        self.bundle = bundle
        self.device = pick_device(device)
        self.detector: Any = accelerate(to_device(bundle.detector, self.device), self.device)
        bundle.detector.track = counted  # one image can take minutes
        self.batch = 1 if self.device.type == "cpu" else GPU_BATCH
        self.without_features = ""  # why there is no feature network, if one is wanted
        self.replays = GraphCache() if self.device.type == "cuda" and self.detector.recordable else None

    def predict(self, images: Any) -> list[Result]:
        """Score one image or a sequence of them: paths, PIL images, or arrays ``(H, W)`` / ``(H, W, 3)``."""
        for line in self.warnings():
            warnings.warn(line, stacklevel=2)
        many = images if isinstance(images, list | tuple) else [images]
        samples = (prepare_sample(i, _as_image(item), self.bundle.config.data) for i, item in enumerate(many))
        return [self._result(sample) for sample in chain.from_iterable(predict_batches(self, grouped(samples, self.batch)))]

    def _result(self, sample: Sample[int]) -> Result:
        if sample.error is not None:
            raise sample.error
        return finish(sample, self.bundle.calibration)

    def launch(
        self, pixels: NDArray[np.float32], without: int | None = None
    ) -> Callable[[], tuple[list[float], NDArray[np.float32]]]:
        """Start to predict ``(B, C, S, S)`` in [-1, 1]; the function returned waits for B scores and ``(B, S, S)`` heat-maps.

        ``without`` leaves out what has seen this fold, for a method that can.
        """
        predict = self.detector.predict if without is None else partial(self.detector.predict, without=without)
        with device_scope(self.device), torch.inference_mode(), scoring(self.device, self.detector):
            x = upload(pixels, self.device)
            key = (x.shape, without, torch.is_autocast_enabled(self.device.type))
            prediction = predict(x) if self.replays is None else self.replays(key, predict, x)
            heatmap, score = AsyncCopy(prediction.heatmap.float()), AsyncCopy(prediction.score.double())
        return lambda: (score.read(), heatmap.wait().numpy())

    def launch_features(self, pixels: NDArray[np.float32]) -> Callable[[], NDArray[np.float64] | None]:
        """Start to compute the ImageNet features ``(B, 1280)`` that the acquisition check compares; None without them."""
        if self.feature_network is None:
            return lambda: None
        with device_scope(self.device):
            x = upload(pixels, self.device)
            parts = x.split(1) if self.device.type == "cpu" else (x,)  # one by one on the CPU: batch-invariant bits
            rows = AsyncCopy(torch.cat([self.feature_network.vector(part) for part in parts]).double())
        return lambda: rows.wait().numpy()

    def embedding(self, pixels: NDArray[np.float32]) -> NDArray[np.float32] | None:
        """The method's own embedding ``(B, d)`` of ``(B, C, S, S)``, where it has one."""
        with device_scope(self.device), torch.inference_mode():
            found = self.detector.features(upload(pixels, self.device))
        return None if found is None else np.asarray(found.float().cpu().numpy())

    def rescore(self, scores: list[float], before: NDArray[np.float32], after: NDArray[np.float32]) -> list[float]:
        """The scores of images whose ``(n, S, S)`` heat-maps were ``before`` and become ``after``, for a method that can."""
        with device_scope(self.device), torch.inference_mode():
            known = torch.tensor(scores, dtype=torch.float32, device=self.device)
            parts = (known.split(self.batch), *(upload(maps, self.device).split(self.batch) for maps in (before, after)))
            found = [self.detector.rescore(*part) for part in zip(*parts, strict=True)]
        return [score for part in found for score in part.double().cpu().tolist()]

    def restored(self, x: torch.Tensor) -> torch.Tensor:
        """Pseudo-healthy versions of images that are on the model's device."""
        with device_scope(self.device), torch.inference_mode():
            found: torch.Tensor = self.detector.pseudo_healthy(x)
        return found

    @property
    def runtime(self) -> str:
        """The package that predicts: torch, or what an exported model runs on."""
        return self.bundle.detector.runtime if isinstance(self.bundle.detector, ExportedDetector) else "torch"

    @property
    def acquisition(self) -> Acquisition | None:
        """What the bundle knows of how its training images were acquired."""
        return self.bundle.calibration.acquisition if self.bundle.calibration else None

    @cached_property
    def feature_network(self) -> EfficientNetLite0 | None:
        """The network of the acquisition check: where the bundle has its reference, or where one is about to be made."""
        known = self.acquisition
        wanted = self.bundle.config.calibrate.features == "auto" if known is None else known.features is not None
        try:
            return efficientnet_lite0(self.device) if wanted else None
        except UserError as err:
            self.without_features = str(err)
            return None

    def warnings(self) -> list[str]:
        """What the model's training and this installation leave out, one line each."""
        notes, sigma = self.bundle.notes(), self.bundle.config.data.sigma
        if sigma:
            averaged = f"thresholds are of slices averaged with their neighbours (data.consensus = {sigma:g})"
            notes = [*notes, f"{averaged}: an image by itself may be flagged too often"]
        if self.acquisition is None or self.acquisition.features is None or self.feature_network is not None:
            return notes
        return [*notes, f"images are compared with the training images by grey values only. {self.without_features}"]


def load_model(path: Path, device: str = "auto", reference: str | None = None) -> Model:
    """Load a bundle or an exported folder; ``reference`` picks other normals for the thresholds than its default."""
    if is_exported(path):
        if device not in ("auto", "cpu"):
            raise UserError(f"{path}: an exported model runs on the CPU; take the bundle for --device {device}")
        bundle, device = load_exported(path), "cpu"
    else:
        bundle = load_bundle(path)
    if reference is not None and bundle.calibration is not None:
        bundle = bundle._replace(calibration=parse(Calibration, {**bundle.calibration.model_dump(), "default": reference}))
    return Model(bundle, device)


def check_consensus(detector: Detector, config: Config) -> None:
    """Refuse to average heat-maps where the score could not follow."""
    if config.data.sigma and not detector.overrides("rescore"):
        why = f"method '{config.method}' has no rule that scores an averaged map (rescore)"
        raise UserError(f"data.consensus = {config.data.sigma:g}: {why}; set data.consensus=0")


def _as_image(item: Any) -> Image:
    """Whatever a caller may hold → Image."""
    if isinstance(item, str | Path):
        return read_image(Path(item))
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
