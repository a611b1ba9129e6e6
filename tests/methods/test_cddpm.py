"""cDDPM: what masking hides, what each stage trains, how the denoiser is conditioned, and the mean of three restorations."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from reshift.methods.detector import Step
from reshift.methods.diffusion.cddpm import CDDPM, CDDPMSettings, _unit, authors_map, hidden_error
from reshift.methods.ops.filters import erode, foreground, median_filter
from reshift.nets.conditioned_unet import ConditionedBlock, ConditionedUNet
from reshift.nets.resnet import ResNet, Visible, VisibleNorm, choose_visible
from reshift.nets.unet import Attention

SMALL: dict[str, Any] = {
    "encoder_depths": (1, 2), "encoder_widths": (4, 8), "decoder_width": 16, "unet_widths": (8, 16), "unet_blocks": 1,
}  # fmt: skip
SIZE = 32  # a 4×4 grid of 8-pixel patches


def make(seed: int = 0, channels: int = 1, **settings: Any) -> CDDPM:
    torch.manual_seed(seed)
    model = CDDPM(CDDPMSettings(**{**SMALL, **settings}), SIZE, channels)
    for module in model.modules():  # zero-initialised branches would hide gradients that should flow
        if isinstance(module, nn.Conv2d) and not module.weight.any():
            nn.init.normal_(module.weight, std=0.1)
    return model


def step(seed: int = 0) -> Step:
    return Step(torch.Generator().manual_seed(seed))


def images(n: int = 4, channels: int = 1) -> Tensor:
    return torch.rand(n, channels, SIZE, SIZE, generator=torch.Generator().manual_seed(1)) * 2 - 1


def visible(n: int = 4, seed: int = 0) -> Visible:
    return choose_visible(step(seed).uniform(n, 16), 4, 0.65)


def moved(module: nn.Module) -> bool:
    return any(p.grad is not None and float(p.grad.abs().sum()) > 0 for p in module.parameters())


def take_gradient(model: CDDPM, stage: int, x: Tensor) -> None:
    """Freeze and unfreeze modules as the training loop does, and take the gradient."""
    model.eval().requires_grad_(False)
    (objective,) = model.stages()[stage].objectives
    for module in objective.modules:
        module.train().requires_grad_(True)
    objective.loss(x, step())["loss"].backward()


# ---- masks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("grid", "keep"), [(2, 1), (4, 6), (6, 13)])
def test_every_image_hides_the_same_number_of_patches(grid: int, keep: int) -> None:
    seen = choose_visible(step().uniform(50, grid**2), grid, 0.65)
    mask = seen.mask(grid)
    assert mask.flatten(1).sum(1).eq(keep).all()  # SparK's rule, round(0.35 · grid²)
    assert len({tuple(row) for row in mask.flatten(1).tolist()}) > 1
    assert 0.0 < mask.mean((0, 1)).min() <= mask.mean((0, 1)).max() < 1.0  # no patch is never seen, none always


def test_masks_follow_the_patches_on_every_scale() -> None:
    seen = visible()
    coarse = seen.mask(4)
    for size in (8, 32):
        fine, side = seen.mask(size), size // 4
        for i in range(size):
            for j in range(size):
                assert fine[:, 0, i, j].equal(coarse[:, 0, i // side, j // side])


@pytest.mark.parametrize("size", [4, 8, 32])
def test_positions_are_where_the_mask_is_one(size: int) -> None:
    seen = visible()
    for row, mask in zip(seen.positions(size), seen.mask(size), strict=True):
        assert sorted(row.tolist()) == mask.flatten().nonzero().flatten().tolist()


# ---- the sparse encoder --------------------------------------------------------------------------------------------


def test_hidden_pixels_do_not_change_the_features() -> None:
    model, x, seen = make(), images(), visible()
    hidden = 1.0 - seen.mask(SIZE)
    for train in (True, False):
        model.train(train)
        one = model.encoder.features(x, seen)
        two = model.encoder.features(x + 5.0 * hidden * torch.randn_like(x), seen)
        for a, b in zip(one, two, strict=True):
            assert a.equal(b)
            assert a.any()
            assert not (a * (1.0 - seen.mask(a.shape[-1]))).any()
    other = model.encoder.features(x + 0.1 * seen.mask(SIZE), seen)
    assert not other[-1].equal(one[-1])


def test_norm_takes_its_statistics_from_visible_positions() -> None:
    norm, x, seen = VisibleNorm(3), torch.randn(4, 3, 8, 8) * 2 + 1, visible()
    out = norm(x, seen)
    values = torch.cat([image[:, mask[0] > 0] for image, mask in zip(x, seen.mask(8), strict=True)], dim=1)  # (3, n)
    expected = (x - values.mean(1).view(3, 1, 1)) / (values.var(1, unbiased=False) + norm.eps).sqrt().view(3, 1, 1)
    torch.testing.assert_close(out, expected * seen.mask(8))
    assert norm.running_mean is not None
    torch.testing.assert_close(norm.running_mean, 0.1 * values.mean(1))


def test_all_patches_visible_is_the_plain_encoder() -> None:
    model, x = make().eval(), images()
    everything = Visible(torch.arange(16).expand(4, 16), 4)
    for a, b in zip(model.encoder.features(x), model.encoder.features(x, everything), strict=True):
        torch.testing.assert_close(a, b)


def test_loss_counts_hidden_patches_only() -> None:
    x, restored, seen = images(3, channels=3), torch.randn(3, 3, SIZE, SIZE), visible(3)
    errors = []
    for b in range(3):
        for patch in range(16):
            if patch not in seen.ids[b].tolist():
                i, j = patch // 4 * 8, patch % 4 * 8
                errors.append((x - restored)[b, :, i : i + 8, j : j + 8].square().mean())
    assert len(errors) == 30
    torch.testing.assert_close(hidden_error(x, restored, seen), torch.stack(errors).mean())


def test_default_encoder_is_the_resnet_50() -> None:
    s = CDDPMSettings()
    with torch.device("meta"):
        net = ResNet(3, s.encoder_depths, s.encoder_widths, out=1000)
    assert sum(p.numel() for p in net.parameters()) == 25_557_032  # as torchvision counts its own
    assert [len(stage) for stage in net.stages if isinstance(stage, nn.ModuleList)] == [3, 4, 6, 3]
    assert net.stride == 32


# ---- training ------------------------------------------------------------------------------------------------------


def test_first_stage_trains_encoder_and_decoder_only() -> None:
    model = make()
    take_gradient(model, 0, images())
    assert moved(model.encoder.stages)
    assert moved(model.decoder)
    assert all(token.grad is not None and token.grad.any() for token in model.decoder.tokens)
    assert not moved(model.encoder.fc)
    assert not moved(model.denoiser)


def test_second_stage_trains_encoder_and_denoiser_only() -> None:
    model = make()
    take_gradient(model, 1, images())
    assert moved(model.encoder.stem)
    assert moved(model.encoder.fc)
    assert moved(model.denoiser)
    assert not moved(model.decoder)


def test_each_stage_is_decided_by_its_own_settings() -> None:
    first, second = (stage.decided_by for stage in make().stages())
    assert first is not None
    assert second is not None
    assert set(first) == {"what", "pretraining_epochs", "encoder_depths", "encoder_widths", "decoder_width", "mask_ratio"}
    assert {"unet_widths", "encoder_widths", "pretraining_epochs", "wavelength"} <= set(second)
    assert not {"t_star", "inference_seed", "postprocess"} & set(second)
    assert [o.betas for stage in make().stages() for o in stage.objectives] == [(0.9, 0.95), (0.9, 0.999)]


def test_denoising_loss_is_l1_to_the_clean_image() -> None:
    model, x, told = make(), images(), list[tuple[Tensor, ...]]()
    model.denoiser.register_forward_hook(lambda _m, args, out: told.append((*args, out)))
    loss = model.denoising_loss(x, step())["loss"]
    ((x_t, t, code, x_hat),) = told
    draws = step()
    assert t.equal(draws.integers(1, 1000, 4))
    eps, a = model.fields(draws.uniform(4, 257)), model.alpha_bar[t].float().view(4, 1, 1, 1)
    torch.testing.assert_close(x_t, a.sqrt() * x + (1 - a).sqrt() * eps)
    torch.testing.assert_close(code, model.encoder((x + 1) / 2))  # of the clean image
    torch.testing.assert_close(loss, (x_hat - x).abs().sum() / x.numel())


def test_every_image_has_its_own_noise() -> None:
    eps = make().fields(step().uniform(3, 257))
    assert eps.shape == (3, 1, SIZE, SIZE)
    assert (eps - eps.roll(1, 0)).abs().mean((1, 2, 3)).min() > 0.1


# ---- the conditioned denoiser --------------------------------------------------------------------------------------


def test_code_is_four_times_the_base_width_and_joined_with_the_time() -> None:
    net = ConditionedUNet(1, (8, 16), 1)
    t, code = torch.tensor([3, 700]), torch.randn(2, 32)
    emb = net.embedding(t, code)
    assert emb.shape == (2, 64)
    assert net.embedding(t, code + 1)[:, :32].equal(emb[:, :32])
    assert net.embedding(t + 1, code)[:, 32:].equal(emb[:, 32:])
    assert make().features(images()).shape == (4, 32)
    s = CDDPMSettings()
    with torch.device("meta"):
        paper = ConditionedUNet(1, s.unet_widths, s.unet_blocks)
    assert paper.c_code == 512
    blocks = [m for m in paper.modules() if isinstance(m, ConditionedBlock)]
    assert {block.emb.in_features for block in blocks} == {1024}
    assert len(blocks) == 3 * 3 + 2 + 2 + 3 * 4 + 2
    assert [name for name, m in paper.named_modules() if isinstance(m, Attention)] == ["middle.1"]


def test_block_scales_and_shifts_its_second_norm() -> None:
    block, x, emb = ConditionedBlock(8, 8, 4), torch.randn(2, 8, 4, 4), torch.randn(2, 4)
    assert block(x, emb).equal(x)  # a fresh block is its skip
    nn.init.normal_(block.conv2.weight)
    scale, shift = block.emb(nn.functional.silu(emb)).split(8, dim=1)
    y = block.norm2(block.conv1(nn.functional.silu(nn.functional.group_norm(x, block.norm1.num_groups))))
    y = y * (1 + scale.view(2, 8, 1, 1)) + shift.view(2, 8, 1, 1)
    torch.testing.assert_close(block(x, emb), x + block.conv2(nn.functional.silu(y)))
    assert ConditionedBlock(8, 4, 4, factor=0.5)(x, emb).shape == (2, 4, 2, 2)
    assert ConditionedBlock(8, 4, 4, factor=2.0)(x, emb).shape == (2, 4, 8, 8)


# ---- inference -----------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_reconstruction_is_the_mean_over_t() -> None:
    model, x = make(channels=3).eval(), images(2, channels=3)
    code = model.encoder(_unit(x))
    each = [model.restore(x, torch.tensor([t, t]), eps, code) for t, eps in zip((250, 500, 750), model.noise, strict=True)]
    torch.testing.assert_close(model.reconstruct(x), (each[0] + each[1] + each[2]) / 3)
    prediction = model.predict(x)
    torch.testing.assert_close(prediction.heatmap, (x - model.pseudo_healthy(x)).abs().mean(1))
    torch.testing.assert_close(prediction.score, prediction.heatmap.mean((1, 2)))


@torch.no_grad()
def test_noise_is_one_field_per_t_for_all_images() -> None:
    model, told = make().eval(), list[tuple[Tensor, ...]]()
    model.denoiser.register_forward_hook(lambda _m, args, _out: told.append(args))
    x = images(3)
    model.predict(x)
    assert len(told) == 9  # three images, three t
    fields: dict[int, list[Tensor]] = {}
    for i, (x_t, t, _code) in enumerate(told):
        a = model.alpha_bar[t].float().view(1, 1, 1, 1)
        fields.setdefault(int(t), []).append((x_t - a.sqrt() * x[i // 3]) / (1 - a).sqrt())
    assert list(fields) == [250, 500, 750]
    for same in fields.values():
        assert torch.cat(same).sub(same[0]).abs().max() < 1e-5
    assert (model.noise - model.noise.roll(1, 0)).abs().mean((1, 2, 3)).min() > 0.1


def test_noise_depends_on_the_seed_setting_alone() -> None:
    assert make(seed=0).noise.equal(make(seed=1).noise)
    assert not make().noise.equal(make(inference_seed=1).noise)
    assert make().eval().predict(images()).heatmap.equal(make().eval().predict(images()).heatmap)


@torch.no_grad()
def test_authors_post_processing() -> None:
    x = torch.full((1, 1, 50, 50), -1.0)
    x[..., 5:45, 5:45] = 0.5
    residual = torch.rand(1, 50, 50, generator=torch.Generator().manual_seed(0))
    score, heatmap = authors_map(x, residual)
    expected = median_filter(residual[:, None] * erode(foreground(x).float(), 5), 5)[:, 0]  # two erosions: 50 // 25
    torch.testing.assert_close(heatmap, expected)
    assert heatmap[0, 25, 25] == residual[0, 23:28, 23:28].median()
    assert not heatmap[0, :5].any()
    torch.testing.assert_close(score, heatmap[0, 5:45, 5:45].mean().view(1))
    assert authors_map(torch.full_like(x, -1.0), residual).score == 0.0
    assert make(postprocess="authors").eval().predict(images(1)).heatmap.shape == (1, SIZE, SIZE)


# ---- settings ------------------------------------------------------------------------------------------------------


def test_wrong_settings_and_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"data.size 100 is not a multiple of 32"):
        CDDPM(CDDPMSettings(), 100, 1)
    with pytest.raises(ValueError, match=r"single 32-pixel patch"):
        CDDPM(CDDPMSettings(), 32, 1)
    bad: list[dict[str, Any]] = [{"t_star": (1001,)}, {"encoder_depths": (1,)}, {"decoder_width": 4}, {"t_star": ()}]
    for settings in bad:
        with pytest.raises(ValidationError):
            CDDPMSettings(**{**SMALL, **settings})
