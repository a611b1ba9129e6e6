"""What is exported predicts like the detector, alone and in a batch: every witness of the default method, DMD with its masks."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import small_reshift
import torch
from helpers import TINY_DMD
from torch import nn

from reshift.config import Config, parse
from reshift.data.phantom import draw
from reshift.errors import UserError
from reshift.export.formats import FORMATS, write_model, write_torch
from reshift.export.trace import trace_predictor, trace_rescorer
from reshift.inference.bundle import build
from reshift.inference.exported.load import RescoringDetector, load_runner
from reshift.methods.detector import Detector, Prediction

for package in ("onnx", "onnxscript", "onnxruntime", "openvino"):
    pytest.importorskip(package, reason="needs the extra export")
SIZE = small_reshift.SIZE


def brains(count: int = 3) -> torch.Tensor:
    drawn = [draw("brain", i, 2, abnormal=i % 2 == 1, size=SIZE, seed=1).pixels for i in range(count)]
    return torch.from_numpy(np.stack(drawn)[:, None].astype(np.float32) / 127.5 - 1.0)


def lively(detector: Detector) -> Detector:
    """Untrained layers that start at zero would hide a branch."""
    generator = torch.Generator().manual_seed(0)
    for layer in detector.modules():
        if isinstance(layer, nn.Conv2d) and not layer.weight.any():
            layer.weight.data.copy_(0.1 * torch.randn(layer.weight.shape, generator=generator))
    return detector.eval().requires_grad_(False)


def dmd() -> Detector:
    return lively(build(parse(Config, TINY_DMD)))


def reshift() -> Detector:
    """All kinds of witnesses and text removal; one fold and few levels, since converting a graph takes long."""
    small = {"widths": (8, 8, 8), "folds": 1, "flips": False}
    return lively(small_reshift.filled(polarity="bright", exposure=1.25, strokes=0.5, overall="on", symmetry="on", **small))


@pytest.mark.parametrize(("make", "formats"), [(dmd, ("onnx", "openvino", "torch")), (reshift, ("onnx",))])
def test_exported_models_predict_what_the_detector_does(
    make: Callable[[], Detector], formats: tuple[str, ...], tmp_path: Path
) -> None:
    detector, x = make(), brains()
    with torch.no_grad():
        expected = detector.predict(x)
    program = trace_predictor(detector, SIZE, 1)
    for kind in formats:
        write_model(program, kind, tmp_path / kind)
        run = load_runner(tmp_path / kind / FORMATS[kind].model)
        for images in (x, *x.split(1)):
            at = slice(None) if len(images) > 1 else int((images == x).flatten(1).all(1).nonzero()[0])
            score, heatmap = run(images.numpy())
            np.testing.assert_allclose(score, expected.score[at].reshape(-1), rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(heatmap, expected.heatmap[at].reshape(-1, SIZE, SIZE), rtol=1e-3, atol=1e-3)


def test_the_score_of_an_averaged_map_is_exported_too(tmp_path: Path) -> None:
    detector = small_reshift.filled(folds=1)
    write_torch(trace_rescorer(detector, SIZE), tmp_path / "rescore.pt2")
    loaded = RescoringDetector(lambda _: None, [], tmp_path / "rescore.pt2").eval()
    score, before, after = torch.randn(3), torch.rand(3, SIZE, SIZE), torch.rand(3, SIZE, SIZE)
    with torch.no_grad():
        torch.testing.assert_close(loaded.rescore(score, before, after), detector.rescore(score, before, after))


class Branching(Detector):
    """What no graph can hold: it does something else for bright images."""

    def forward(self, x: torch.Tensor) -> Prediction:
        return Prediction(x.mean((1, 2, 3)), x[:, 0]) if float(x.max()) > 0.5 else Prediction(x.amax((1, 2, 3)), x[:, 0])


def test_a_method_that_cannot_be_traced_is_one_line() -> None:
    with pytest.raises(UserError, match="cannot be exported: its method does what no graph can hold"):
        trace_predictor(Branching(), SIZE, 1)
