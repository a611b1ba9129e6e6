"""Read a folder that ``reshift export`` made: check every file, and give a bundle whose detector runs the exported model."""

import hashlib
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reshift.config import Config, parse, read_json
from reshift.errors import UserError
from reshift.inference.bundle import Bundle
from reshift.inference.calibration import Calibration
from reshift.methods.detector import Detector, Prediction

ABOUT, CHECKSUMS, RESCORING = "export.json", "checksums.json", "rescore.pt2"
FORMAT = 1  # raised when an older reshift could misread a folder
REMEDY = "export the model again"
Runner = Callable[[NDArray[np.float32]], Any]


def load_onnx(model: Path) -> Any:
    """A function that returns score and heatmap of images ``(N, C, S, S)``.

    Unlike run.py's it shares the cores with torch, which computes the features of the acquisition check: it has as many threads
    as torch, so that OMP_NUM_THREADS limits both, and they do not wait for work in a loop (docs/performance.md).
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(["score", "heatmap"], {"image": x})


def load_openvino(model: Path) -> Any:
    """A function that returns score and heatmap of images ``(N, C, S, S)``."""
    import openvino

    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda x: list(compiled(x).values())


def load_torch(model: Path) -> Any:
    """A function that returns score and heatmap of images ``(N, C, S, S)``."""
    import torch

    program = torch.export.load(model).module()
    return lambda x: [part.detach().numpy() for part in program(torch.from_numpy(x))]


# File ending → what runs it, and the package that this needs.
RUNNERS: Mapping[str, tuple[Callable[[Path], Any], str]] = {
    ".onnx": (load_onnx, "onnxruntime"), ".xml": (load_openvino, "openvino"), ".pt2": (load_torch, "torch"),
}  # fmt: skip


def require(package: str) -> None:
    """Say which command installs a missing package."""
    if find_spec(package) is None:
        raise UserError(f"{package} is not installed; pip install 'reshift[export]'")


def load_runner(model: Path) -> Runner:
    """What runs an exported model."""
    load, package = RUNNERS[model.suffix]
    require(package)
    try:
        return load(model)  # type: ignore[no-any-return]
    except Exception as err:  # whatever the runtime raises on a file that it does not take
        raise UserError(f"{model}: {package} cannot load it ({' '.join(str(err).split())[:200]}); {REMEDY}") from err


class ExportedDetector(Detector):
    """A detector that lets another runtime predict, on the CPU."""

    runtime = "torch"  # the package that predicts; ``load_exported`` sets it

    def __init__(self, runner: Runner, notes: list[str]) -> None:
        super().__init__()
        self.runner, self.known_notes = runner, notes

    def forward(self, x: Tensor) -> Prediction:
        """What the exported model says."""
        score, heatmap = self.runner(np.ascontiguousarray(x.numpy()))
        return Prediction(torch.tensor(score), torch.tensor(heatmap))

    def notes(self) -> list[str]:
        """What the method said when it was exported."""
        return self.known_notes


class RescoringDetector(ExportedDetector):
    """One that also scores averaged heat-maps anew, as ``data.consensus`` needs."""

    def __init__(self, runner: Runner, notes: list[str], rescoring: Path) -> None:
        super().__init__(runner, notes)
        self.graphs = (torch.export.load(rescoring).module(),)  # in a tuple, so that eval() leaves it alone: it cannot be called

    def rescore(self, score: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """As the method itself would."""
        found: Tensor = self.graphs[0](score, before, after)
        return found


def is_exported(folder: Path) -> bool:
    """Whether ``reshift export`` made this folder."""
    return (folder / ABOUT).is_file()


def load_exported(folder: Path) -> Bundle:
    """Read the folder; a file that was changed is refused."""
    listed = _verified(folder)
    about = _table(folder / ABOUT)
    if about.get("format") != FORMAT:
        raise UserError(f"{folder}: exported by another version of reshift ({about.get('reshift')}); {REMEDY}")
    values = _table(folder / "calibration.json")
    values.pop("sha256", None)
    model = folder / str(about["model"])
    runner, notes = load_runner(model), list(about["notes"])
    detector = RescoringDetector(runner, notes, folder / RESCORING) if RESCORING in listed else ExportedDetector(runner, notes)
    detector.runtime = RUNNERS[model.suffix][1]
    return Bundle(
        detector.eval(), parse(Config, about["config"]), parse(Calibration, values), dict(about["training"]),
        listed[str(about["model"])],
    )  # fmt: skip


def _verified(folder: Path) -> dict[str, str]:
    """The checksum of every file, each found to be right."""
    files = _table(folder / CHECKSUMS).get("files")
    if not isinstance(files, dict) or ABOUT not in files:
        raise UserError(f"{folder / CHECKSUMS}: damaged; {REMEDY}")
    for name, listed in files.items():
        path = folder / name
        try:
            data = path.read_bytes()
        except OSError as err:
            raise UserError(f"{path}: cannot be read ({err.strerror}); {REMEDY}") from None
        if listed != {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}:
            raise UserError(f"{path}: not the file that was exported (its SHA-256 differs); {REMEDY}")
    return {name: listed["sha256"] for name, listed in files.items()}


def _table(path: Path) -> dict[str, Any]:
    try:
        value = read_json(path.read_bytes())
    except (OSError, ValueError):
        raise UserError(f"{path}: cannot be read, or is not valid JSON; {REMEDY}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: damaged, not a JSON object; {REMEDY}")
    return value
