"""A traced graph as a file: ONNX, OpenVINO's own format, or torch's. All in float32."""

import io
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch.export import ExportedProgram

from reshift.errors import UserError
from reshift.export.trace import quiet
from reshift.inference.exported.load import require
from reshift.system.files import atomic_bytes, writing

OPSET = 18
MAX_ONNX = 2**31 - 1  # bytes that one ONNX file can hold


class Format(NamedTuple):
    """One way to export."""

    model: str  # file in the exported folder
    packages: tuple[str, ...]  # that writing and checking it needs
    summary: str


FORMATS: Mapping[str, Format] = {
    "onnx": Format("model.onnx", ("onnx", "onnxscript", "onnxruntime"), f"ONNX, opset {OPSET}"),
    "openvino": Format("model.xml", ("onnx", "onnxscript", "openvino"), f"OpenVINO IR, by ONNX opset {OPSET}"),
    "torch": Format("model.pt2", (), "torch.export program"),
    "monai": Format("models/model.pt2", (), "MONAI bundle with a torch.export program"),
}


def check_packages(kind: str) -> None:
    """Say what is missing before any work is done."""
    for package in FORMATS[kind].packages:
        require(package)


def write_model(program: ExportedProgram, kind: str, folder: Path) -> None:
    """Write the model's file, and the folder it lies in."""
    path = folder / FORMATS[kind].model
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    {"onnx": write_onnx, "openvino": write_openvino}.get(kind, write_torch)(program, path)


def write_torch(program: ExportedProgram, path: Path) -> None:
    """A .pt2 file: tensors and a graph in JSON. Example inputs are left out; they would be pickled."""
    program._example_inputs = None  # noqa: SLF001 (torch has no other way)
    buffer = io.BytesIO()
    with quiet():
        torch.export.save(program, buffer)
    atomic_bytes(path, buffer.getvalue())


def write_onnx(program: ExportedProgram, path: Path) -> None:
    """One .onnx file with its weights; the batch is called N."""
    import onnx

    with quiet():
        made = torch.onnx.export(
            program, dynamo=True, input_names=["image"], output_names=["score", "heatmap"], opset_version=OPSET, verbose=False
        )
    assert made is not None
    model = made.model_proto
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    del model.graph.value_info[:]  # shapes inside the graph, under torch's name of N; runtimes find them out
    if model.ByteSize() > MAX_ONNX:
        raise UserError(f"{path.name}: would have {model.ByteSize():,} bytes, more than one ONNX file can hold; use --to torch")
    onnx.checker.check_model(model)
    atomic_bytes(path, model.SerializeToString())


def write_openvino(program: ExportedProgram, path: Path) -> None:
    """An .xml file with a .bin file beside it, by way of ONNX. Not by ``convert_model``, which reports its use to the makers."""
    import openvino

    with writing(path):
        temporary = tempfile.TemporaryDirectory(dir=path.parent)
    with temporary as aside:
        onnx = Path(aside) / "model.onnx"
        write_onnx(program, onnx)
        model = openvino.Core().read_model(onnx)
        try:
            openvino.save_model(model, path, compress_to_fp16=False)
        except RuntimeError as err:
            line = " ".join(str(err).split())[:200]
            raise UserError(f"{path}: could not be written ({line}); make room, or choose another folder") from err
