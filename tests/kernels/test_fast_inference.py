"""Inference that decodes only what the masks show: the same maps as Algorithm 2 read line by line, and in bf16 nearly so."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reshift.core.anomaly import residual_map, upsample_mask
from reshift.core.diffusion import clean_estimate, masked_forward
from reshift.core.schedule import at
from reshift.errors import UserError
from reshift.methods.dmd.method import DMD
from reshift.methods.dmd.settings import DMDSettings
from reshift.methods.dmd.windows import Up, Windows, margin
from reshift.system.device import VARIABLE, scoring

SMALL: dict[str, Any] = {
    "widths": (8, 16), "d_z": 8, "codes": 16, "unet_widths": (16, 32), "classifier_widths": (8, 8, 8), "classifier_hidden": 8,
}  # fmt: skip
CPU = torch.device("cpu")
CASES: dict[str, tuple[int, int, dict[str, Any]]] = {  # size, channels, settings
    "8×8 grid": (32, 1, {}),
    "colour": (32, 3, {}),
    "16×16 grid": (64, 1, {}),
    "last masks moved in": (32, 1, {"mask_side": 3, "mask_stride": 2}),
    "large masks": (48, 1, {"mask_side": 7, "mask_stride": 3}),
    "single latents": (16, 1, {"mask_side": 1, "mask_stride": 1}),
    "one mask over everything": (32, 1, {"mask_side": 8, "mask_stride": 8}),
    "no masking": (32, 1, {"masking": False}),
    "one level": (16, 1, {"widths": (8,), "mask_side": 3, "mask_stride": 2}),
    "three odd levels": (64, 1, {"widths": (12, 20, 8)}),
    "some masks at a time": (32, 1, {"inference_rows": 4}),
}


def make(size: int, channels: int, **settings: Any) -> DMD:
    torch.manual_seed(0)
    model = DMD(DMDSettings(**{**SMALL, **settings}), size, channels).eval().requires_grad_(False)
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and not module.weight.any():  # zero-initialised branches would hide errors
            nn.init.normal_(module.weight, std=0.05)
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
            module.running_mean.normal_(0.0, 0.3)
            nn.init.normal_(module.bias, std=0.5)
    model.vqvae.codebook.normal_()
    model.scale.fill_(2.0)
    return model


def exact(model: DMD) -> DMD:
    """Small whole numbers for the decoder: its sums are then exact, in whatever order a kernel takes them."""
    model.vqvae.codebook.copy_(torch.randint(-2, 3, model.vqvae.codebook.shape).float())
    for module in model.vqvae.decoder.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            module.weight.copy_(torch.randint(-1, 2, module.weight.shape).float())
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.copy_(torch.randint(-3, 4, module.bias.shape).float())  # type: ignore[union-attr]
            module.running_var.fill_(1.0 - module.eps)  # type: ignore[union-attr]
            module.bias.copy_(torch.randint(-3, 4, module.bias.shape).float())
    last = [m for m in model.vqvae.decoder.modules() if isinstance(m, nn.ConvTranspose2d)][-1]
    last.weight.mul_(2.0**-12)  # so that tanh does not hide everything
    return model


def images(n: int, channels: int, size: int) -> Tensor:
    return torch.rand(n, channels, size, size, generator=torch.Generator().manual_seed(1)) * 2.0 - 1.0


def plain_loop(model: DMD, x: Tensor) -> tuple[Tensor, Tensor]:
    """Algorithm 2 for one image, one mask after the other, whole images decoded: A_pix, and Eq. 14 over x_k^r."""
    s, (H, W) = model.settings, x.shape[-2:]
    z0 = model.latents(x).contiguous()
    masks, noise = model.inference_masks()
    t = torch.tensor([s.t_star])
    a_bar = at(model.alpha_bar, t)
    N_pix, D_pix, total = torch.zeros(1, H, W), torch.zeros(1, H, W), torch.zeros_like(x)
    for M, eps in zip(masks.split(1), noise.split(1), strict=True):
        if s.diffusion:
            z_t = masked_forward(z0, eps, M, a_bar)
            z0_hat = clean_estimate(z_t, model.denoiser(z_t, t), z0, M, a_bar)
        else:
            z0_hat = (1.0 - M) * z0
        x_r = model.vqvae.decode(z0_hat / model.scale)
        up = upsample_mask(M, H, W)
        N_pix += up * residual_map(x, x_r)
        total += up * x_r
        D_pix += up
    return N_pix / (D_pix + s.delta), total / (D_pix + s.delta)


@pytest.mark.parametrize("name", CASES)
def test_windows_decode_to_the_bits_of_whole_images(name: str) -> None:
    size, channels, settings = CASES[name]
    model = exact(make(size, channels, diffusion=False, **settings))
    x = images(1, channels, size)
    heatmap, healthy = plain_loop(model, x)
    assert float(heatmap.std()) > 0.01  # there is something to compare
    assert torch.equal(model.anomaly_map(x), heatmap)
    assert torch.equal(model.pseudo_healthy(x), healthy)


@pytest.mark.parametrize("diffusion", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_maps_are_those_of_the_plain_loop(name: str, diffusion: bool) -> None:
    """With real weights kernels may round by size and batch: float32 has 24 bits, the sums here lose a few of them."""
    size, channels, settings = CASES[name]
    model, x = make(size, channels, diffusion=diffusion, **settings), images(1, channels, size)
    heatmap, healthy = plain_loop(model, x)
    assert torch.allclose(model.anomaly_map(x), heatmap, rtol=0.0, atol=1e-5)
    assert torch.allclose(model.pseudo_healthy(x), healthy, rtol=0.0, atol=1e-5)


def test_a_batch_in_one_pass_is_what_its_images_are_alone() -> None:
    model, x = make(32, 1), images(3, 1, 32)
    together = model.anomaly_map(x)  # what a GPU does
    assert torch.allclose(together, torch.cat([model.anomaly_map(each) for each in x.split(1)]), rtol=0.0, atol=1e-5)


@pytest.mark.parametrize(
    "layers",
    [
        [(4, 2, 1)] * 3,
        [(1, 1, 0), *[(4, 2, 1)] * 2],
        [(2, 2, 0)],
        [(6, 2, 2)] * 2,
        [*[(3, 1, 1)] * 3, *[(4, 2, 1)] * 2],
        [(3, 1, 1), (8, 4, 2), (5, 1, 2)],
    ],
)
def test_the_margin_is_how_far_the_decoder_looks(layers: list[Up]) -> None:
    n, centre, factor = 41, 20, 1
    z = torch.zeros(1, 1, n, dtype=torch.float64, requires_grad=True)
    y: Tensor = z
    for kernel, stride, padding in layers:
        y, factor = F.conv_transpose1d(y, torch.ones(1, 1, kernel).double(), stride=stride, padding=padding), factor * stride
    (gradient,) = torch.autograd.grad(y[..., centre * factor : (centre + 1) * factor].sum(), z)
    seen = gradient[0, 0].nonzero()
    assert margin(layers) == int(max(centre - seen.min(), seen.max() - centre))


def test_the_papers_decoder_needs_one_latent_on_each_side() -> None:
    model = make(128, 1, widths=(32, 64, 128), d_z=64)
    assert model.vqvae.margin() == 1
    windows = model._plan()[0]
    assert len(windows.corners) == 49
    assert windows.latents(torch.zeros(1, 49, 64, 16, 16)).shape == (1, 49, 64, 6, 6)


def test_a_window_at_the_border_ends_with_the_image() -> None:
    grid = torch.arange(36.0).view(1, 1, 1, 6, 6)
    windows = Windows([(0, 4), (2, 2)], side=2, margin=1, length=6, factor=1)
    corner, centre = windows.latents(grid.expand(1, 2, 1, 6, 6))[0]
    assert torch.equal(corner[0], grid[0, 0, 0, :4, 2:])
    assert torch.equal(centre[0], grid[0, 0, 0, 1:5, 1:5])
    total = torch.zeros(1, 1, 6, 6)
    windows.add(total, windows.pixels(grid[0]))
    shown = torch.zeros(6, 6)
    shown[:2, 4:], shown[2:4, 2:4] = 1.0, 1.0
    assert torch.equal(total[0, 0], shown * grid[0, 0, 0])


# ---- precision ---------------------------------------------------------------------------------------------------------


def predicted(model: DMD, x: Tensor, monkeypatch: pytest.MonkeyPatch, amp: str) -> tuple[Tensor, Tensor]:
    monkeypatch.setenv(VARIABLE, amp)
    with torch.inference_mode(), scoring(CPU, model):
        return model.predict(x)


def test_bf16_changes_maps_a_little_and_scores_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = make(32, 1), images(4, 1, 32)
    score, heatmap = predicted(model, x, monkeypatch, "off")
    score_half, heatmap_half = predicted(model, x, monkeypatch, "bf16")
    assert torch.equal(score, score_half)
    assert heatmap_half.dtype == torch.float32
    assert not torch.equal(heatmap, heatmap_half)  # it was in use
    assert torch.allclose(heatmap, heatmap_half, atol=0.05)


def test_bf16_has_the_same_bits_alone_and_in_any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = make(32, 1), images(3, 1, 32)
    together = predicted(model, x, monkeypatch, "bf16")
    for i in range(3):
        alone = predicted(model, x[i : i + 1], monkeypatch, "bf16")
        assert torch.equal(alone[0][0], together[0][i])
        assert torch.equal(alone[1][0], together[1][i])


class Plain:
    """A method that allows bf16 on a GPU only."""

    bf16 = True


def half(monkeypatch: pytest.MonkeyPatch, amp: str, detector: object) -> bool:
    monkeypatch.setenv(VARIABLE, amp)
    with scoring(CPU, detector):
        return torch.is_autocast_enabled("cpu")


def test_who_computes_in_bf16_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for amp in ("", "auto", "off"):  # what a processor can do must not decide about results
        assert not half(monkeypatch, amp, DMD)
    assert half(monkeypatch, "bf16", DMD)
    assert not any(half(monkeypatch, amp, Plain()) for amp in ("auto", "bf16", "off"))
    with pytest.raises(UserError, match="RESHIFT_AMP='fp8'"):
        half(monkeypatch, "fp8", DMD)


def test_dmd_predicts_in_bf16_on_a_gpu_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[str, torch.dtype]]()

    def autocast(kind: str, dtype: torch.dtype) -> AbstractContextManager[object]:
        asked.append((kind, dtype))
        return nullcontext()

    monkeypatch.setattr(torch, "autocast", autocast)  # the real one warns where there is no GPU
    for amp in ("off", "auto", "bf16"):
        monkeypatch.setenv(VARIABLE, amp)
        scoring(torch.device("cuda"), DMD)
    assert asked == [("cuda", torch.bfloat16)] * 2
