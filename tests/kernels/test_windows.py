"""Decoding only the windows around masks gives the maps of Algorithm 2 read line by line."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reshift.core.anomaly import residual_map, upsample_mask
from reshift.core.diffusion import clean_estimate, masked_forward
from reshift.core.schedule import at
from reshift.kernels import accelerate
from reshift.kernels.windows import Reach, WindowedDecoder, margin, reaches
from reshift.methods.dmd.method import DMD
from reshift.methods.dmd.settings import DMDSettings
from reshift.nets.vqvae import Decoder

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
    "three levels": (64, 1, {"widths": (12, 20, 8)}),
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
    return accelerate(model, CPU)


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
def test_windows_decode_to_what_whole_images_are(name: str) -> None:
    size, channels, settings = CASES[name]
    model = exact(make(size, channels, diffusion=False, **settings))
    x = images(1, channels, size)
    heatmap, healthy = plain_loop(model, x)
    assert float(heatmap.std()) > 0.01  # there is something to compare
    assert torch.allclose(model.anomaly_map(x), heatmap, rtol=0.0, atol=1e-6)  # sums over the masks have another order
    assert torch.allclose(model.pseudo_healthy(x), healthy, rtol=0.0, atol=1e-6)


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
def test_the_margin_is_how_far_the_decoder_looks(layers: list[Reach]) -> None:
    n, centre, factor = 41, 20, 1
    z = torch.zeros(1, 1, n, dtype=torch.float64, requires_grad=True)
    y: Tensor = z
    for kernel, stride, padding in layers:
        y, factor = F.conv_transpose1d(y, torch.ones(1, 1, kernel).double(), stride=stride, padding=padding), factor * stride
    (gradient,) = torch.autograd.grad(y[..., centre * factor : (centre + 1) * factor].sum(), z)
    seen = gradient[0, 0].nonzero()
    assert margin(layers) == int(max(centre - seen.min(), seen.max() - centre))


def test_the_papers_decoder_needs_one_latent_on_each_side(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = make(128, 1, widths=(32, 64, 128), d_z=64), list[torch.Size]()
    decoder = model.vqvae.decoder
    assert isinstance(decoder, WindowedDecoder)
    assert margin(reaches(decoder)) == 1
    decoder.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0].shape))
    decoder.decode_masked(torch.zeros(1, 49, 64, 16, 16), model.masks, 4)
    assert seen == [(49, 64, 6, 6)]


@pytest.mark.parametrize("order", ["channels first", "channels last"])
@pytest.mark.parametrize("name", CASES)
def test_pixels_inside_the_masks_are_those_of_whole_images(name: str, order: str) -> None:
    size, channels, settings = CASES[name]
    model = exact(make(size, channels, **settings))
    decoder, M = model.vqvae.decoder, model.masks
    z = torch.randint(-2, 3, (2, len(M), 8, model.grid, model.grid)).float()
    if order == "channels last":
        z = z.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    inside = upsample_mask(M, size, size)[:, None]
    expected, found = Decoder.decode_masked(decoder, z, M, model.mask_side), decoder.decode_masked(z, M, model.mask_side)
    assert torch.equal(inside * found, inside * expected)


def test_gradients_can_be_taken() -> None:
    model, x = make(32, 1), images(1, 1, 32)
    with torch.inference_mode():
        heatmap = model.anomaly_map(x)
    model.denoiser.requires_grad_(True)
    again = model.anomaly_map(x)
    again.sum().backward()
    assert torch.equal(heatmap, again)
    assert any(bool(p.grad.any()) for p in model.denoiser.parameters() if p.grad is not None)
