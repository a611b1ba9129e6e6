"""Published files become ours: ONNX by our own reader, MobileSAM's pickle without its code, the hub's names for DINOv2."""

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from feature_files import forget, random_net, waves
from numpy.typing import NDArray
from onnx_writer import onnx_bytes
from safetensors.torch import load, save_file
from torch import Tensor

from reshift.errors import UserError
from reshift.nets.features import FeatureNet, feature_net
from reshift.weights.convert import convert
from reshift.weights.find import find
from reshift.weights.onnx import read_onnx
from reshift.weights.registry import LITE0_CONVERTED, WHEEL


def mobile_sam(seed: int = 0) -> bytes:
    """A file like MobileSAM's: the encoder, more of it than we need, and a decoder."""
    state = {f"image_encoder.{name}": value for name, value in random_net("tinyvit", seed).state_dict().items()}
    state |= {"image_encoder.layers.3.blocks.0.mlp.fc1.bias": torch.zeros(3), "mask_decoder.iou_token.weight": torch.zeros(1, 4)}
    data = io.BytesIO()
    torch.save(state, data)
    return data.getvalue()


def hub_dinov2(net: FeatureNet) -> dict[str, Tensor]:
    """The weights of our network under the hub's names, with the blocks that we leave out."""
    ours, theirs = net.state_dict(), dict[str, Tensor]()
    theirs["embeddings.cls_token"], theirs["embeddings.position_embeddings"] = ours["cls"], ours["pos"]
    theirs["embeddings.mask_token"] = torch.zeros(1, 384)
    theirs["encoder.layer.9.norm1.weight"] = torch.zeros(384)
    for kind in ("weight", "bias"):
        theirs[f"embeddings.patch_embeddings.projection.{kind}"] = ours[f"patch.{kind}"]
        theirs[f"layernorm.{kind}"] = ours[f"norm.{kind}"]
        for i in range(8):
            a, b = f"encoder.layer.{i}", f"blocks.{i}"
            for part, value in zip(("query", "key", "value"), ours[f"{b}.qkv.{kind}"].chunk(3), strict=True):
                theirs[f"{a}.attention.attention.{part}.{kind}"] = value.clone()
            theirs[f"{a}.attention.output.dense.{kind}"] = ours[f"{b}.proj.{kind}"]
            for part in ("norm1", "norm2"):
                theirs[f"{a}.{part}.{kind}"] = ours[f"{b}.{part}.{kind}"]
            for part in ("fc1", "fc2"):
                theirs[f"{a}.mlp.{part}.{kind}"] = ours[f"{b}.{part}.{kind}"]
    for i in range(8):
        for k in (1, 2):
            theirs[f"encoder.layer.{i}.layer_scale{k}.lambda1"] = ours[f"blocks.{i}.scale{k}"]
    return theirs


def exported(state: dict[str, Tensor]) -> bytes:
    """As an exporter leaves it: matrices transposed and without their names, the embedding of places in two."""
    tensors: dict[str, NDArray[np.float32]] = {}
    nodes: list[tuple[str, list[str], list[str]]] = []
    for i, (name, value) in enumerate(state.items()):
        array = value.numpy()
        if name.endswith("position_embeddings"):
            tensors |= {"first": array[:, :1], "grid": array[:, 1:]}
        elif value.ndim == 2 and name.endswith(".weight"):
            bias = f"backbone.{name.removesuffix('weight')}bias"
            tensors[f"onnx::MatMul_{i}"] = np.ascontiguousarray(array.T)
            nodes.append(("MatMul", [f"x{i}", f"onnx::MatMul_{i}"], [f"product{i}"]))
            nodes.append(("Add", [bias, f"product{i}"] if i % 2 else [f"product{i}", bias], [f"sum{i}"]))
        else:
            tensors[f"backbone.{name}"] = array
    nodes.append(("Add", ["x1", "decoder.bias"], ["y"]))
    return onnx_bytes({**tensors, "decoder.bias": np.zeros(3, np.float32)}, nodes)


@pytest.fixture(scope="module")
def dinov2() -> FeatureNet:
    return random_net("dinov2-vits14")


def maps_of(path: Path, data: bytes, side: int) -> list[Tensor]:
    path.write_bytes(data)
    forget()
    return feature_net(str(path), "cpu").maps(waves(), side)


def test_mobile_sam_keeps_the_stages_we_use_bit_by_bit(tmp_path: Path) -> None:
    (tmp_path / "mobile_sam.pt").write_bytes(mobile_sam())
    data = convert(tmp_path / "mobile_sam.pt", "tinyvit", "0" * 64)
    assert data == convert(tmp_path / "mobile_sam.pt", "tinyvit", "0" * 64)
    assert all(name.startswith(("patch_embed.", "layers.0.", "layers.1.", "layers.2.blocks.")) for name in load(data))
    for found, expected in zip(
        maps_of(tmp_path / "w.safetensors", data, 64), random_net("tinyvit").maps(waves(), 64), strict=True
    ):
        assert torch.equal(found, expected)


class Bomb:
    """A pickle of this creates a folder when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize("how", ["plain", "torch"])
def test_a_pickle_with_code_is_refused(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # which must not matter
    data = io.BytesIO()
    if how == "plain":
        pickle.dump({"image_encoder.a": Bomb()}, data, protocol=2)
    else:
        torch.save({"image_encoder.a": Bomb()}, data)
    Path("mobile_sam.pt").write_bytes(data.getvalue())
    with pytest.raises(UserError, match=r"mobile_sam\.pt: refused, it holds more than tensors"):
        convert(Path("mobile_sam.pt"), "tinyvit", "")
    assert [p.name for p in tmp_path.iterdir()] == ["mobile_sam.pt"]


def test_an_onnx_export_becomes_our_network(dinov2: FeatureNet, tmp_path: Path) -> None:
    (tmp_path / "vit.onnx").write_bytes(exported(hub_dinov2(dinov2)))
    data = convert(tmp_path / "vit.onnx", "dinov2-vits14", "0" * 64)
    state = load(data)
    assert set(state) == set(dinov2.state_dict())
    for name, expected in dinov2.state_dict().items():
        if expected.squeeze().ndim > 1:
            assert torch.equal(state[name], expected.half()), name
        else:
            assert torch.equal(state[name], expected), name


def test_the_hub_s_file_is_read_as_it_is(dinov2: FeatureNet, tmp_path: Path) -> None:
    save_file(hub_dinov2(dinov2), tmp_path / "model.safetensors")
    data = convert(tmp_path / "model.safetensors", "dinov2-vits14", "")
    assert data == (tmp_path / "model.safetensors").read_bytes()
    for found, expected in zip(maps_of(tmp_path / "w.safetensors", data, 56), dinov2.maps(waves(), 56), strict=True):
        assert torch.equal(found, expected)


def test_lite0_from_its_wheel_has_the_hash_that_counts_as_the_same(tmp_path: Path) -> None:
    pytest.importorskip(WHEEL, reason="reshift[features] is not installed")
    forget()
    found = find("efficientnet-lite0")
    (tmp_path / "efficientnet-lite0.safetensors").write_bytes(convert(found.path, found.architecture, found.sha256))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESHIFT_WEIGHTS", str(tmp_path))
        again = find("efficientnet-lite0")
    assert again.path.parent == tmp_path
    assert again.sha256 == found.sha256 != LITE0_CONVERTED


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "long", "wire"])
def test_damaged_onnx_is_one_line(damage: str, tmp_path: Path) -> None:
    whole = onnx_bytes({"a": np.arange(6, dtype=np.float32).reshape(2, 3)}, [("Add", ["a", "b"], ["c"])])
    data = {
        "cut": whole[:-20], "text": b"not protobuf at all", "empty": b"", "long": b"\xff" * 40, "wire": b"\x3b" + whole,
    }[damage]  # fmt: skip
    (tmp_path / "a.onnx").write_bytes(data)
    with pytest.raises(UserError, match=r"^a\.onnx: not an ONNX file of DINOv2 \(.*\)$"):
        convert(tmp_path / "a.onnx", "dinov2-vits14", "")


def test_the_reader_gives_tensors_and_nodes(tmp_path: Path) -> None:
    array = np.arange(300, dtype=np.float32).reshape(2, 150)
    (tmp_path / "a.onnx").write_bytes(onnx_bytes({"a": array}, [("MatMul", ["x", "a"], ["y"])]))
    graph = read_onnx(tmp_path / "a.onnx")
    np.testing.assert_array_equal(graph.tensors["a"], array)
    assert graph.nodes == [("MatMul", ("x", "a"), ("y",))]
