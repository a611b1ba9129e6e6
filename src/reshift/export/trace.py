"""A detector as one graph, for batches of any size, with the pretrained networks that it uses inside."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from reshift.errors import UserError
from reshift.export.operations import exportable_operations
from reshift.methods.detector import Detector
from reshift.nets.features import feature_net

MAX_BATCH = 4096  # a bound that tracing needs; runtimes do not check it
EXAMPLES = 2  # images that the graph is traced with; one would be taken for a constant


class Predictor(nn.Module):
    """A detector that returns plain tensors. Its pretrained networks are modules of it, so that their weights are exported."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = detector
        self.networks = nn.ModuleList(feature_net(name, "cpu") for name in detector.feature_names)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Images ``(N, C, S, S)`` → score ``(N,)`` and heatmap ``(N, S, S)``."""
        found = self.detector(image)
        return found.score.float(), found.heatmap.float()


class Rescorer(nn.Module):
    """``Detector.rescore`` as a module."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, score: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """Scores ``(N,)`` of the heat-maps ``before (N, S, S)`` when they become ``after``."""
        found = self.detector.rescore(score, before, after)
        assert found is not None
        return found


def trace_predictor(detector: Detector, size: int, channels: int) -> ExportedProgram:
    """The graph from prepared image to score and heat-map."""
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(EXAMPLES, channels, size, size, generator=generator) * 2.0 - 1.0
    return _trace(Predictor(detector), {"image": image})


def trace_rescorer(detector: Detector, size: int) -> ExportedProgram:
    """The graph of ``rescore``."""
    maps = torch.rand(2, EXAMPLES, size, size, generator=torch.Generator().manual_seed(0))
    return _trace(Rescorer(detector), {"score": torch.zeros(EXAMPLES), "before": maps[0], "after": maps[1]})


def _trace(module: nn.Module, inputs: Mapping[str, Tensor]) -> ExportedProgram:
    batch = Dim("N", min=1, max=MAX_BATCH)
    shapes = {name: {0: batch} for name in inputs}
    try:
        with quiet(), torch.no_grad(), exportable_operations():
            module.eval()(*inputs.values())  # what a network computes once and keeps must not be made of traced tensors
            return torch.export.export(module, tuple(inputs.values()), dynamic_shapes=shapes, strict=False)
    except UserError:
        raise
    except Exception as err:  # torch has many words for "this code cannot be traced"
        line = " ".join(str(err).split())[:200]
        raise UserError(f"this model cannot be exported: its method does what no graph can hold ({line})") from err


@contextmanager
def quiet() -> Iterator[None]:
    """Tracing and conversion warn about their own future; errors still come through."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
