"""DMD: what each stage may move, the five ablations, and prediction that does not depend on the batch."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from small_dmd import SIZE, images, make, prepared_stage, step
from torch import Tensor, nn

from reshift.core.anomaly import residual_map, upsample_mask
from reshift.core.diffusion import clean_estimate, masked_forward
from reshift.core.schedule import at
from reshift.methods.dmd.method import DMD
from reshift.methods.dmd.settings import DMDSettings

VARIANTS: dict[str, dict[str, Any]] = {
    "full": {},
    "no classifier": {"classifier": False},
    "no feedback": {"feedback": False},
    "no pre-training": {"pretraining": False},
    "no masking": {"masking": False},
    "no latent diffusion": {"diffusion": False},
    "literal latents": {"latent_scale": "none"},
    "restart": {"restart_after": 2},
    "literal": {"literal": True, "latent_scale": "none", "codebook": "uniform"},
}


def moved(parameters: Sequence[nn.Parameter]) -> bool:
    return any(p.grad is not None and float(p.grad.abs().sum()) > 0 for p in parameters)


def test_the_papers_hyper_parameters_are_the_defaults() -> None:
    s = DMDSettings()
    assert (s.stage1_epochs, s.stage2_epochs, s.d_z, s.codes, s.timesteps) == (250, 300, 64, 256, 1000)
    assert (s.lambda_cls, s.beta_c, s.mask_side, s.mask_stride, s.t_star) == (0.1, 0.25, 4, 2, 500)
    assert s.widths == s.classifier_widths == (32, 64, 128)
    assert (s.classifier, s.feedback, s.pretraining, s.masking, s.diffusion) == (True,) * 5


def test_stage1_moves_the_autoencoder_only() -> None:
    model = make()
    stage = prepared_stage(model, 0)
    stage.objectives[0].loss(images(), step())["loss"].backward()
    assert moved(list(model.vqvae.encoder.parameters()))
    assert moved(list(model.vqvae.decoder.parameters()))
    assert moved([model.vqvae.codebook])
    assert not moved([*model.denoiser.parameters(), *model.shift.parameters()])


def test_stage2_moves_the_denoiser_and_the_classifier_only() -> None:
    model = make()
    stage = prepared_stage(model, 1)
    before = {k: v.clone() for k, v in model.vqvae.state_dict().items()}
    stage.objectives[0].loss(images(), step())["loss"].backward()
    assert moved(list(model.denoiser.parameters()))
    assert moved(list(model.shift.parameters()))
    assert not moved(list(model.vqvae.parameters()))
    assert all(torch.equal(before[k], v) for k, v in model.vqvae.state_dict().items())  # running statistics stand still too


@pytest.mark.parametrize("feedback", [True, False])
def test_classification_loss_reaches_the_denoiser_only_with_feedback(feedback: bool) -> None:
    model = make(feedback=feedback)
    stage = prepared_stage(model, 1)
    stage.objectives[0].loss(images(), step())["classification"].backward()
    assert moved(list(model.shift.parameters()))
    assert moved(list(model.denoiser.parameters())) is feedback
    assert not moved(list(model.vqvae.parameters()))


def test_classification_gradient_is_the_numeric_one_through_the_fixed_decoder() -> None:
    model = make().double()
    stage = prepared_stage(model, 1)
    model.shift.eval()  # BatchNorm's batch statistics would make the finite difference noisy
    weight = next(model.denoiser.parameters())

    def loss() -> Tensor:
        value: Tensor = stage.objectives[0].loss(images().double(), step())["classification"]
        return value

    loss().backward()
    assert weight.grad is not None
    index = int(weight.grad.abs().argmax())
    h, values = 1e-5, []
    for sign in (1, -1):
        with torch.no_grad():
            weight.view(-1)[index] += sign * h
            values.append(float(loss()))
            weight.view(-1)[index] -= sign * h
    assert float(weight.grad.view(-1)[index]) == pytest.approx((values[0] - values[1]) / (2 * h), rel=1e-2)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_trains_and_predicts(name: str) -> None:
    model = make(**VARIANTS[name])
    for index in range(len(model.stages())):
        stage = prepared_stage(model, index)
        if stage.begin is not None:
            with torch.no_grad():
                stage.begin(iter([images(8)]))
        parameters = [p for objective in stage.objectives for m in objective.modules for p in m.parameters()]
        optimiser = torch.optim.AdamW(parameters, lr=1e-3)
        for i in range(3):
            losses = stage.objectives[0].loss(images(), step(i))
            optimiser.zero_grad()
            losses["loss"].backward()
            optimiser.step()
            if stage.objectives[0].after is not None:
                stage.objectives[0].after(step(i))
            assert all(torch.isfinite(v).all() for v in losses.values())
    model.eval()
    with torch.no_grad():
        prediction = model.predict(images(2))
    assert prediction.score.shape == (2,)
    assert prediction.heatmap.shape == (2, SIZE, SIZE)
    assert bool((prediction.heatmap >= 0).all())


def test_variants_differ_where_they_should() -> None:
    names = {name: [stage.name for stage in make(**settings).stages()] for name, settings in VARIANTS.items()}
    assert names["full"] == ["autoencoder", "restoration"]
    assert names["no pre-training"] == ["joint"]
    assert len(make(masking=False).inference_masks()[0]) == 1
    assert not list(make(diffusion=False).denoiser.parameters())
    assert not list(make(classifier=False).shift.parameters())
    full, residual = make(), make(classifier=False)
    with torch.no_grad():
        maps = residual.eval().predict(images(2))
        assert torch.allclose(maps.score, maps.heatmap.flatten(1).mean(1))  # the aggregated residual
        scores = full.eval().predict(images(2)).score
        assert torch.allclose(scores, full.shift(images(2)).softmax(1)[:, 1], atol=1e-6)  # Eq. 11


def test_anomaly_map_is_algorithm_2_line_by_line() -> None:
    model = make().eval()
    model.scale.fill_(1.7)
    x = images(1)
    s = model.settings
    with torch.no_grad():
        z0 = model.vqvae.encode(x).z_q * model.scale
        masks, noise = model.inference_masks()
        N_pix, D_pix = torch.zeros(SIZE, SIZE), torch.zeros(SIZE, SIZE)
        a_bar = at(model.alpha_bar, torch.tensor([s.t_star]))
        for M, eps in zip(masks.split(1), noise.split(1), strict=True):
            z_t = masked_forward(z0, eps, M, a_bar)
            z0_hat = clean_estimate(z_t, model.denoiser(z_t, torch.tensor([s.t_star])), z0, M, a_bar)
            R = residual_map(x, model.vqvae.decode(z0_hat / model.scale))[0]
            up = upsample_mask(M, SIZE, SIZE)[0]
            N_pix += up * R
            D_pix += up
        expected = N_pix / (D_pix + s.delta)
        assert torch.allclose(model.anomaly_map(x)[0], expected, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 7, 1024])
def test_memory_bound_does_not_change_the_map(rows: int) -> None:
    model = make(inference_rows=rows).eval()
    reference = make().eval()
    with torch.no_grad():
        assert torch.allclose(model.anomaly_map(images(1)), reference.anomaly_map(images(1)), atol=1e-5)


@pytest.mark.parametrize("channels", [1, 3])
def test_prediction_has_the_same_bits_alone_in_any_batch_and_in_any_order(channels: int) -> None:
    model = make(channels=channels).eval()
    x = images(5, channels)
    with torch.no_grad():
        together = model.predict(x)
        shuffled = model.predict(x[[3, 0, 4, 2, 1]])
        for i in range(5):
            alone = model.predict(x[i : i + 1])
            assert torch.equal(alone.score[0], together.score[i])
            assert torch.equal(alone.heatmap[0], together.heatmap[i])
        assert torch.equal(shuffled.heatmap, together.heatmap[[3, 0, 4, 2, 1]])


def test_inference_noise_comes_from_the_inference_seed_alone() -> None:
    torch.manual_seed(99)
    first = make().inference_masks()[1]
    torch.manual_seed(1)
    assert torch.equal(first, make().inference_masks()[1])
    assert not torch.equal(first, make(inference_seed=1).inference_masks()[1])


def test_latents_diffuse_at_unit_variance() -> None:
    model = make().eval()
    with torch.no_grad():
        model._fit_scale(iter([images(4), images(4)]))
        assert float(model.latents(images(4)).std()) == pytest.approx(1.0, rel=1e-3)
        literal = make(latent_scale="none")
        literal._fit_scale(iter([images(4)]))
        assert float(literal.scale) == 1.0


def test_codes_start_on_encoder_outputs_and_dead_ones_are_restarted() -> None:
    model = make(restart_after=2)
    with torch.no_grad():
        model.vqvae.fit_codebook(iter([images(8)]))
        model.vqvae.train()
        usage = model._code_usage(model.vqvae.encode(images(8)), step())["code_usage"]
        assert float(usage) > 0.5
        model.vqvae.codebook[0] = 1e3  # nothing will ever choose it
    stage = prepared_stage(model, 0)
    for i in range(3):
        stage.objectives[0].loss(images(), step(i))
        stage.objectives[0].after(step(i))
    assert float(model.vqvae.codebook.detach()[0].abs().max()) < 1e2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rho_min": 0.5, "rho_max": 0.1}, "rho_min"),
        ({"mask_side": 2, "mask_stride": 3}, "gaps"),
        ({"t_star": 2000}, "timesteps"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DMDSettings(**settings)


def test_sizes_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of"):
        DMD(DMDSettings(), 100, 1)
    with pytest.raises(ValueError, match="latent grid"):
        DMD(DMDSettings(mask_side=17, mask_stride=2), 128, 1)
