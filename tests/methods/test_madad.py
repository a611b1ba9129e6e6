"""MAD-AD: masks in blocks, clean cells that stay unchanged, the losses, DDIM with η = 0.5, and restoration by K̂ alone."""

import math
from collections.abc import Sequence
from itertools import accumulate, product
from operator import mul
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from reshift.core.diffusion import masked_forward
from reshift.methods.detector import Step
from reshift.methods.diffusion.madad import MADAD, MADADSettings, block_mask, block_sides, ddim_step
from reshift.nets.klvae import KLVAE
from reshift.nets.masked_unet import MaskedUNet
from reshift.nets.unet import Attention

SMALL: dict[str, Any] = {"autoencoder_width": 8, "widths": (8, 16), "blocks": 1}
SIZE, GRID = 32, 4


def make(channels: int = 1, **settings: Any) -> MADAD:
    torch.manual_seed(0)
    model = MADAD(MADADSettings(**{**SMALL, **settings}), SIZE, channels).eval()
    for module in model.modules():  # zero-initialised layers would hide gradients and differences
        if isinstance(module, nn.Conv2d) and not module.weight.any():
            nn.init.normal_(module.weight, std=0.1)
    return model


def step(seed: int = 0) -> Step:
    return Step(torch.Generator().manual_seed(seed))


def images(n: int = 4, channels: int = 1) -> Tensor:
    return torch.rand(n, channels, SIZE, SIZE, generator=torch.Generator().manual_seed(1)) * 1.8 - 0.9


def moved(module: nn.Module) -> bool:
    return any(p.grad is not None and float(p.grad.abs().sum()) > 0 for p in module.parameters())


def squared_cosine() -> list[float]:
    """ᾱ_0 … ᾱ_10 by hand, with β at most 0.999."""
    f = [math.cos((t / 10 + 0.008) / 1.008 * math.pi / 2) ** 2 for t in range(11)]
    return list(accumulate((max(f[t] / f[t - 1], 0.001) for t in range(1, 11)), mul, initial=1.0))


class FixedDenoiser(nn.Module):
    """A denoiser with given answers, which records the steps it is asked for."""

    def __init__(self, z0_hat: float, K_hat: dict[int, Tensor]) -> None:
        super().__init__()
        self.z0_hat, self.K_hat, self.asked = z0_hat, K_hat, list[int]()

    def forward(self, z: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        self.asked.append(int(t[0]))
        return torch.full_like(z, self.z0_hat), self.K_hat[int(t[0])].expand(len(z), 1, *z.shape[2:])


def test_the_authors_values_are_the_defaults() -> None:
    s = MADADSettings()
    assert (s.timesteps, s.eta, s.threshold, s.noised, s.mask_weight, s.coverage) == (10, 0.5, 0.5, 0.4, 0.001, 0.9)
    assert (s.factor, s.latent_channels, s.kl_weight, s.blocks, s.denoiser_epochs) == (8, 4, 1e-6, 2, 200)
    train = {"batch": 96, "lr": 4e-5, "weight_decay": 1e-4, "schedule": "cosine", "warmup": 0.05, "clip": 0.0}
    assert MADAD.profiles["paper"] == {"train": train}


def test_wrong_settings_and_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="heads 3 does not divide the width 8"):
        MADADSettings(widths=(8,), heads=3)
    with pytest.raises(ValueError, match="40 is not a multiple of 16"):
        MADAD(MADADSettings(**SMALL), 40, 1)


def test_each_stage_is_decided_by_its_own_settings() -> None:
    facts = [stage.decided_by for stage in make().stages()]
    inference = make(eta=0.0, threshold=0.3, inference_seed=5, postprocess="authors")
    assert [stage.decided_by for stage in inference.stages()] == facts
    sooner: dict[str, Any] = {"kl_weight": 1e-5, "autoencoder_width": 12, "autoencoder_rate": 1.0, "factor": 4}
    for name, value in sooner.items():
        assert make(**{name: value}).stages()[0].decided_by != facts[0]
    later: dict[str, Any] = {"noised": 0.3, "foreground": "off", "mask_weight": 0.1, "widths": (8, 32), "coverage": 0.5}
    for name, value in later.items():
        first, second = make(**{name: value}).stages()
        assert first.decided_by == facts[0]
        assert second.decided_by != facts[1]


def test_block_sides_have_the_authors_probabilities() -> None:
    u = torch.tensor([0.0, 0.19, 0.2, 0.49, 0.5, 0.79, 0.8, 0.99])
    assert block_sides(u).tolist() == [1, 1, 2, 2, 4, 4, 8, 8]
    sides = block_sides(step().uniform(20_000)).tolist()
    shares = [sides.count(side) / 20_000 for side in (1, 2, 4, 8)]
    assert shares == pytest.approx([0.2, 0.3, 0.3, 0.2], abs=0.015)


def slow_mask(height: int, width: int, share: float, order: Sequence[float], h: int, w: int) -> list[list[float]]:
    blocks = [(y, x) for y in range(0, h, height) for x in range(0, w, width)]
    first = sorted(range(len(blocks)), key=lambda i: order[i])[: int((1 - share) * len(blocks))]
    clean = {blocks[i] for i in first}
    return [[float((y - y % height, x - x % width) in clean) for x in range(w)] for y in range(h)]


@pytest.mark.parametrize(("h", "w"), [(16, 16), (6, 10)])
def test_block_mask_agrees_with_a_slow_loop(h: int, w: int) -> None:
    pairs = torch.tensor([(a, b) for a in (1, 2, 4, 8) for b in (1, 2, 4, 8)])
    share, order = step(1).uniform(16) * 0.4, step(2).uniform(16, h * w)
    masks = block_mask(pairs, share, order, h, w)
    assert masks.shape == (16, 1, h, w)
    for k, (a, b) in enumerate(pairs.tolist()):
        assert masks[k, 0].tolist() == slow_mask(a, b, float(share[k]), order[k].tolist(), h, w), (a, b)


def test_axes_are_independent_and_each_image_draws_its_own_mask() -> None:
    K = MADAD(MADADSettings(**SMALL), 128, 1).random_mask(torch.zeros(400, 1, 128, 128), step())  # grey: all foreground
    noised = 1.0 - K.mean((1, 2, 3))
    assert float(noised.max()) <= 0.5  # 0.4, and what rounding up to whole blocks adds: 2 of 4
    assert 0.18 < float(noised.mean()) < 0.27  # U(0, 0.4), rounded up to whole blocks
    assert len({tuple(k.flatten().tolist()) for k in K}) > 350
    tall, wide = ((K[..., ::2, :] == K[..., 1::2, :]).all(-1).all(-1), (K[..., ::2] == K[..., 1::2]).all(-1).all(-1))
    for pairs, share in ((tall, 0.8), (wide, 0.8), (tall & wide, 0.64)):  # blocks of 2 and more: 0.8 along each axis
        assert share - 0.08 < float(pairs.float().mean()) < share + 0.14  # few noised cells may pair up by chance
    small = make().random_mask(torch.zeros(200, 1, SIZE, SIZE), step())
    assert float((1.0 - small.mean((1, 2, 3))).max()) <= 0.5  # on a 4×4 grid, too, no block is the whole image


def test_cells_on_black_background_stay_clean() -> None:
    model, x = make(noised=1.0), torch.full((64, 1, SIZE, SIZE), 0.3)
    x[:, :, :, :8] = -1.0  # the first column of cells is background
    x[:, :, 8, 8:14] = -1.0  # 6 of 64 pixels, 90.6 % foreground: may be noised
    x[:, :, 16, 16:23] = -1.0  # 7 of 64, 89.1 %: may not
    K, free = model.random_mask(x, step()), make(noised=1.0, foreground="off").random_mask(x, step())
    background = torch.zeros(GRID, GRID, dtype=torch.bool)
    background[:, 0] = background[2, 2] = True
    assert torch.equal(K, torch.where(background, 1.0, free))
    assert not torch.equal(K, free)
    assert not K[:, 0, 1, 1].all()
    # Without black background the mask is free by itself.
    assert torch.equal(make().random_mask(images(), step()), make(foreground="off").random_mask(images(), step()))


def test_clean_cells_keep_their_bits() -> None:
    z0, eps = step(1).normal(8, 4, 16, 16), step(2).normal(8, 4, 16, 16)
    K = block_mask(torch.full((8, 2), 2), step(3).uniform(8), step(4).uniform(8, 256), 16, 16)
    z_t = masked_forward(z0, eps, 1.0 - K, torch.full((8, 1, 1, 1), 0.5, dtype=torch.float64))
    clean = K.expand_as(z0) == 1
    assert torch.equal(z_t[clean], z0[clean])
    assert torch.allclose(z_t[~clean], math.sqrt(0.5) * (z0 + eps)[~clean], atol=1e-6)


def test_the_denoisers_loss_agrees_with_a_slow_loop() -> None:
    model, x = make(), images()
    model.scale.fill_(1.7)
    draw = step(5)  # the same numbers again, in the same order
    with torch.no_grad():
        losses = model.stages()[1].objectives[0].loss(x, step(5))
        mean, logvar = model.autoencoder.encode(x)
    z0 = (mean + logvar.mul(0.5).exp() * draw.normal(*mean.shape)) * 1.7
    K = model.random_mask(x, draw)
    t = draw.integers(1, 10, 4)
    eps, a = draw.normal(*z0.shape), squared_cosine()
    z_t = z0.clone()
    for i, y, u in product(range(4), range(GRID), range(GRID)):
        if K[i, 0, y, u] == 0:
            a_t = a[int(t[i])]
            z_t[i, :, y, u] = math.sqrt(a_t) * z0[i, :, y, u] + math.sqrt(1 - a_t) * eps[i, :, y, u]
    assert 0 < float(K.mean()) < 1
    z0_hat, K_hat = model.denoiser(z_t, t)
    latent = sum((p - q) ** 2 for p, q in zip(z0.flatten().tolist(), z0_hat.flatten().tolist(), strict=True)) / z0.numel()
    mask = sum((p - q) ** 2 for p, q in zip(K.flatten().tolist(), K_hat.flatten().tolist(), strict=True)) / K.numel()
    assert float(losses["latent"]) == pytest.approx(latent, rel=1e-4)
    assert float(losses["mask"]) == pytest.approx(mask, rel=1e-4)
    assert float(losses["loss"]) == pytest.approx(latent + 0.001 * mask, rel=1e-4)


def test_the_autoencoders_loss_is_l1_and_a_little_kl() -> None:
    model, x = make(channels=3, kl_weight=0.5), images(channels=3)
    with torch.no_grad():
        losses, q = model.stages()[0].objectives[0].loss(x, step(6)), model.autoencoder.encode(x)
        x_hat = model.autoencoder.decode(q.sample(step(6).normal(*q.mean.shape)))
    kl = kl_divergence(Normal(q.mean, (0.5 * q.logvar).exp()), Normal(0.0, 1.0)).sum() / x.numel()
    assert float(losses["kl"]) == pytest.approx(float(kl), rel=1e-4)
    assert float(losses["loss"]) == pytest.approx(float((x - x_hat).abs().mean() + 0.5 * kl), rel=1e-4)


@pytest.mark.parametrize("index", [0, 1])
def test_each_stage_trains_its_own_network(index: int) -> None:
    model = make()
    stage = model.stages()[index]
    stage.objectives[0].loss(images(), step())["loss"].backward()  # nothing is frozen here: the loss itself must not reach
    assert moved(model.autoencoder) is (index == 0)
    assert moved(model.denoiser) is (index == 1)
    mine = (model.autoencoder, model.denoiser)[index]
    assert stage.objectives[0].modules == (mine,)
    assert all(p.grad is not None for p in mine.parameters())  # both heads, and encoder and decoder


def test_latents_are_scaled_to_unit_variance_before_the_second_stage() -> None:
    model, x = make(), images(16)
    with torch.no_grad():
        (model.stages()[1].begin or pytest.fail)(x.split(8))
        q = model.autoencoder.encode(x)
        z = torch.stack([q.sample(step(i).normal(*q.mean.shape)) for i in range(50)]) * model.scale
    assert float(z.std()) == pytest.approx(1.0, abs=0.01)
    assert "scale" in model.state_dict()


def test_ddim_step_is_the_formula() -> None:
    a = squared_cosine()
    for t in range(10, 0, -1):
        z_t, z0, noise = 0.8, -0.3, 1.1
        sigma = 0.5 * math.sqrt((1 - a[t - 1]) / (1 - a[t])) * math.sqrt(1 - a[t] / a[t - 1])
        eps = (z_t - math.sqrt(a[t]) * z0) / math.sqrt(1 - a[t])
        wanted = math.sqrt(a[t - 1]) * z0 + math.sqrt(1 - a[t - 1] - sigma**2) * eps + sigma * noise
        values, (now, then) = torch.tensor([z_t, z0, noise]), torch.tensor([a[t], a[t - 1]], dtype=torch.float64)
        made = ddim_step(values[0], values[1], values[2], now, then, 0.5)
        assert float(made) == pytest.approx(wanted, abs=1e-6)
    assert float(made) == pytest.approx(-0.3, abs=1e-7)  # the last step is ẑ_0 itself
    assert make().alpha_bar.tolist() == pytest.approx(squared_cosine(), abs=1e-12)


def test_correction_moves_only_cells_that_look_noised_at_that_step() -> None:
    model, z = make(), step(7).normal(3, 4, GRID, GRID)
    clean = torch.full((1, 1, GRID, GRID), 0.5)  # one half is not below one half
    suspect = clean.clone()
    suspect[0, 0, 1, 2] = 0.49
    K_hat = {t: suspect if t in (6, 5) else clean for t in range(1, 11)}
    model.denoiser = FixedDenoiser(0.25, K_hat)  # type: ignore[assignment]
    corrected = model.correct(z)
    assert model.denoiser.asked == list(range(10, 0, -1))
    kept = (suspect >= 0.5)[0, 0]
    assert torch.equal(corrected[..., kept], z[..., kept])
    noise = torch.randn(10, 4, GRID, GRID, generator=torch.Generator().manual_seed(0))
    wanted, a = z, model.alpha_bar
    for t in (6, 5):
        wanted = ddim_step(wanted, torch.full_like(z, 0.25), noise[t - 1], a[t], a[t - 1], 0.5)
    assert torch.equal(corrected[..., 1, 2], wanted[..., 1, 2])


def test_an_unchanged_latent_gives_a_heatmap_of_zeros() -> None:
    prediction = make(threshold=0.0).predict(images())
    assert not prediction.heatmap.any()


def test_prediction_is_deterministic_and_the_map_the_difference_of_two_decodings() -> None:
    model, x = make(channels=3, threshold=1.0), images(2, channels=3)  # every cell is suspect
    model.scale.fill_(0.6)
    with torch.no_grad():
        first, second = model.predict(x), model.predict(x)
        z = model.autoencoder.encode(x[:1]).mean * 0.6
        restored, kept = model.autoencoder.decode(model.correct(z) / 0.6), model.autoencoder.decode(z / 0.6)
        healthy = model.pseudo_healthy(x)
    assert torch.equal(first.heatmap, second.heatmap)
    assert torch.allclose(first.heatmap[0], (restored - kept).abs().mean(1)[0], atol=1e-5)
    assert torch.allclose(first.score, first.heatmap.mean((1, 2)))
    assert torch.allclose(healthy[:1], restored.clamp(-1, 1), atol=1e-5)
    other = make(channels=3, threshold=1.0, inference_seed=1)  # the same network with other noise
    other.scale.fill_(0.6)
    with torch.no_grad():
        assert not torch.equal(other.predict(x).heatmap, first.heatmap)


@pytest.mark.parametrize(("change", "wanted"), [(0.1, 0.4), (1.0, 1.0)])
def test_the_authors_post_processing(change: float, wanted: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model, restored = make(postprocess="authors"), torch.zeros(1, 1, SIZE, SIZE)
    restored[..., 8:24, 8:24] = -change
    monkeypatch.setattr(model, "_decodings", lambda x: (torch.zeros_like(x), restored))
    prediction = model.predict(images(1))
    weight = [math.exp(-(d**2) / (2 * 0.625**2)) for d in range(9)]  # σ = 5 × 32 / 256
    tail = sum(weight[1:]) / (weight[0] + 2 * sum(weight[1:]))  # what reaches the first pixel outside
    assert float(prediction.heatmap[0, 16, 16]) == pytest.approx(wanted, abs=1e-4)
    assert float(prediction.heatmap[0, 7, 16]) == pytest.approx(wanted * tail, abs=2e-3)
    assert float(prediction.score) == pytest.approx(float(prediction.heatmap.mean()))


def test_the_autoencoder_has_the_shape_of_kl_f8() -> None:
    net = KLVAE(1, width=8)
    q = net.encode(torch.zeros(2, 1, 64, 64))
    assert q.mean.shape == q.logvar.shape == (2, 4, 8, 8)
    assert net.decode(q.mean).shape == (2, 1, 64, 64)
    with torch.device("meta"):
        assert sum(p.numel() for p in KLVAE(3, width=128).parameters()) == pytest.approx(83.65e6, rel=1e-3)


def test_the_denoiser_has_attention_on_every_level_and_an_initial_mask_of_one_half() -> None:
    net = MaskedUNet(4, (8, 16, 32), blocks=2)
    assert sum(isinstance(m, Attention) for m in net.modules()) == 3 * 2 + 1 + 3 * 3
    z0_hat, K_hat = net(torch.randn(2, 4, 8, 8), torch.tensor([1, 10]))
    assert (z0_hat.shape, K_hat.shape) == ((2, 4, 8, 8), (2, 1, 8, 8))
    assert torch.equal(K_hat, torch.full_like(K_hat, 0.5))
