"""AE and VAE: MedIAnomaly's network and losses, a deterministic code at test time, and that lesions are found."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sanity_data import Cases, chests, judge_places, train, training_images, trivial
from torch import Tensor, nn

from reshift.errors import UserError
from reshift.methods.autoencoder import AE, VAE, AESettings, VAESettings, gaussian_kl
from reshift.methods.detector import Step
from reshift.nets.convae import ConvAE
from reshift.nets.norm import BatchNorm

SIZE = 32
SMALL: dict[str, Any] = {"width": 4, "hidden": 16, "latent": 3}


def ae(channels: int = 1, **settings: Any) -> AE:
    torch.manual_seed(0)
    return AE(AESettings(**{**SMALL, **settings}), SIZE, channels)


def vae(channels: int = 1, **settings: Any) -> VAE:
    torch.manual_seed(0)
    return VAE(VAESettings(**{**SMALL, **settings}), SIZE, channels)


def step(seed: int = 0) -> Step:
    return Step(torch.Generator().manual_seed(seed))


def images(n: int = 4, channels: int = 1) -> Tensor:
    return torch.rand(n, channels, SIZE, SIZE, generator=torch.Generator().manual_seed(1)) * 2 - 1


def test_the_network_has_medianomalys_layers() -> None:
    net = ConvAE(1, 64, 16, 1024, 16)
    shapes = [
        (type(m), *m.weight.shape, m.bias is not None)
        for m in net.modules()
        if isinstance(m, nn.Conv2d | nn.ConvTranspose2d | nn.Linear)
    ]
    assert shapes == [
        (nn.Conv2d, 16, 1, 4, 4, False), (nn.Conv2d, 32, 16, 4, 4, False),
        (nn.Conv2d, 64, 32, 4, 4, False), (nn.Conv2d, 64, 64, 4, 4, False),
        (nn.Linear, 1024, 1024, True), (nn.Linear, 16, 1024, True),
        (nn.Linear, 1024, 16, True), (nn.Linear, 1024, 1024, True),
        (nn.ConvTranspose2d, 64, 64, 4, 4, False), (nn.ConvTranspose2d, 64, 32, 4, 4, False),
        (nn.ConvTranspose2d, 32, 16, 4, 4, False), (nn.ConvTranspose2d, 16, 1, 4, 4, False),
    ]  # fmt: skip
    assert [m.num_features for m in net.modules() if isinstance(m, BatchNorm)] == [16, 32, 64, 64, 1024, 1024, 64, 32, 16]
    assert sum(isinstance(m, nn.ReLU) for m in net.modules()) == 9
    assert isinstance(list(net.decoder)[-1], nn.ConvTranspose2d)  # no output activation
    assert net.encode(torch.zeros(2, 1, 64, 64)).shape == (2, 16)


@pytest.mark.parametrize("size", [32, 48, 128])
def test_output_has_the_size_of_the_input(size: int) -> None:
    for channels in (1, 3):
        net = ConvAE(channels, size, 4, 16, 3, heads=2)
        assert net.encode(torch.zeros(2, channels, size, size)).shape == (2, 6)
        assert net.decode(torch.zeros(2, 3)).shape == (2, channels, size, size)


@pytest.mark.parametrize("method", [AE, VAE])
def test_other_sizes_are_refused(method: Any) -> None:
    with pytest.raises(ValueError, match="40 is not a multiple of 16"):
        method(method.Settings(), 40, 1)


def test_the_first_norm_of_the_decoder_is_a_batch_norm_over_vectors() -> None:
    net = ConvAE(1, SIZE, 4, 16, 3)
    linear, pose, norm = list(net.decoder)[:3]
    z = torch.randn(8, 3)
    assert torch.allclose(norm(pose(linear(z))).flatten(1), nn.BatchNorm1d(16)(linear(z)), atol=1e-5)


def test_ae_loss_is_the_mean_squared_error_over_every_pixel_of_the_batch() -> None:
    model, x = ae(channels=3), images(channels=3)
    loss = model.stages()[0].objectives[0].loss(x, step())["loss"]
    assert float(loss.detach()) == pytest.approx(np.mean((x - model.reconstruct(x)).detach().numpy() ** 2), rel=1e-4)
    loss.backward()
    assert all(p.grad is not None and float(p.grad.abs().sum()) > 0 for p in model.net.parameters())


def test_kl_against_the_integral() -> None:
    mu, log_var = torch.tensor([0.0, 0.7, -1.2]), torch.tensor([0.0, -0.8, 0.5])
    z = np.linspace(-15.0, 15.0, 200_001)
    for k in range(3):
        m, v = float(mu[k]), math.exp(float(log_var[k]))
        log_q = -0.5 * ((z - m) ** 2 / v + math.log(2 * math.pi * v))
        log_p = -0.5 * (z**2 + math.log(2 * math.pi))
        expected = (np.exp(log_q) * (log_q - log_p)).sum() * (z[1] - z[0])
        assert float(gaussian_kl(mu, log_var)[k]) == pytest.approx(expected, abs=1e-5)


def test_vae_loss_is_mse_plus_0005_times_the_mean_kl_of_a_sampled_code() -> None:
    assert VAESettings().kl_weight == 0.005
    model, x = vae(), images()
    logs = model.stages()[0].objectives[0].loss(x, step())
    mu, log_var = model.net.encode(x)[:, :3], model.net.encode(x)[:, 3:]
    z = mu + torch.exp(log_var / 2) * step().normal(4, 3)
    error = (x - model.net.decode(z)).square().mean()
    kl = sum(float(v) for v in gaussian_kl(mu, log_var).detach().flatten()) / (4 * 3)
    assert float(logs["error"].detach()) == pytest.approx(float(error.detach()), rel=1e-4)
    assert float(logs["kl"].detach()) == pytest.approx(kl, rel=1e-4)
    assert float(logs["loss"].detach()) == pytest.approx(float(error.detach()) + 0.005 * kl, rel=1e-4)


def test_vae_samples_in_training_and_takes_the_mean_at_test_time() -> None:
    model, x = vae(), images()
    loss = model.stages()[0].objectives[0].loss
    assert float(loss(x, step(0))["error"].detach()) != float(loss(x, step(1))["error"].detach())
    model.eval().requires_grad_(False)
    last = list(model.net.encoder)[-1]
    assert isinstance(last, nn.Linear)
    last.bias[3:] = 5.0  # a wide posterior: one sample would be far from the mean
    torch.manual_seed(1)
    first = model.predict(x)
    torch.manual_seed(2)
    second = model.predict(x)
    assert torch.equal(first.score, second.score)
    assert torch.equal(first.heatmap, second.heatmap)
    mean = torch.cat([model.net.decode(model.net.encode(image)[:, :3]) for image in x.split(1)])
    assert torch.equal(first.heatmap, (x - mean).square().mean(1))


@pytest.mark.parametrize("make", [ae, vae])
def test_map_is_the_squared_error_over_channels_and_score_its_mean(make: Any) -> None:
    model, x = make(channels=3).eval().requires_grad_(False), images(channels=3)
    score, heatmap = model.predict(x)
    rebuilt = model.reconstruct(x)
    for b, i, j in [(0, 0, 0), (1, 5, 30), (3, 31, 2)]:
        expected = sum(float(x[b, c, i, j] - rebuilt[b, c, i, j]) ** 2 for c in range(3)) / 3
        assert float(heatmap[b, i, j]) == pytest.approx(expected, rel=1e-4)
    assert torch.allclose(score, heatmap.mean((1, 2)))


@pytest.mark.parametrize("make", [ae, vae])
def test_a_smaller_native_size_is_seen_by_the_network_alone(make: Any) -> None:
    """The loss and the score are those of the small images; heat-map and restoration have the size of the input."""
    model, x = make(native=16).eval().requires_grad_(False), images(3)
    small = x.unflatten(3, (16, 2)).unflatten(2, (16, 2)).mean((3, 5))
    error = (small - model.reconstruct(small)).square().mean(1)
    score, heatmap = model.predict(x)
    assert heatmap.shape == (3, SIZE, SIZE)
    torch.testing.assert_close(score, error.mean((1, 2)))
    # Between pixel centres, enlarging by two mixes four values by 3/4 and 1/4 along each axis.
    i, j = 5, 8
    across = 0.75 * error[:, i, j] + 0.25 * error[:, i, j + 1]
    below = 0.75 * error[:, i + 1, j] + 0.25 * error[:, i + 1, j + 1]
    torch.testing.assert_close(heatmap[:, 2 * i + 1, 2 * j + 1], 0.75 * across + 0.25 * below)
    assert model.pseudo_healthy(x).shape == x.shape
    loss = model.stages()[0].objectives[0].loss
    assert torch.equal(loss(x, step())["loss"], loss(small, step())["loss"])
    assert make(native=4096).native == SIZE
    assert {type(model).profiles["paper"]["model"]["native"], make().native} == {64, SIZE}


@pytest.mark.parametrize("make", [ae, vae])
def test_a_restored_image_is_clipped_to_the_range_of_images(make: Any) -> None:
    model, x = make().eval().requires_grad_(False), images()
    list(model.net.decoder)[-1].weight.mul_(1000.0)
    assert float(model.reconstruct(x).abs().max()) > 1.0
    assert torch.allclose(model.pseudo_healthy(x), model.reconstruct(x).clamp(-1.0, 1.0), atol=1e-4)


@pytest.mark.parametrize("make", [ae, vae])
def test_every_setting_decides_training_and_a_batch_of_one_is_refused(make: Any) -> None:
    stage = make().stages()[0]
    for change in ({"epochs": 1}, {"width": 5}, {"hidden": 8}, {"latent": 4}, {"native": 16}):
        assert stage.decided_by != make(**change).stages()[0].decided_by
    with pytest.raises(UserError, match="batch"):
        stage.objectives[0].loss(images(1), step())
    assert ae().stages()[0].decided_by != vae().stages()[0].decided_by


def test_ae_trained_on_normals_finds_lesions() -> None:
    """Pixels of chest phantoms; in the brain, brightness alone finds nearly all. Chance is 0.5."""
    sick, masks = chests(range(300, 330), abnormal=True)
    cases, model = Cases(torch.cat([sick, sick]), masks), ae(width=8, hidden=64, latent=16)
    untrained_auc, _ = judge_places(model.eval(), cases)
    auc, ap = judge_places(train(model, training_images(), (300,), lr=3e-3, batch=16), cases)
    brightness = trivial(cases)
    assert auc > max(0.78, brightness.pixel_auc + 0.1)
    assert ap > 3 * brightness.pixel_ap
    assert max(untrained_auc, 1.0 - untrained_auc) < 0.75
