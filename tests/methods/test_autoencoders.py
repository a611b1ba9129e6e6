"""AE and VAE: MedIAnomaly's network and losses, a code without chance at test time, and that a lesion is rebuilt badly."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from reshift.config import Config, parse, read_toml
from reshift.data.phantom import draw
from reshift.errors import UserError
from reshift.evaluation.metrics.image import average_precision, curve, roc_auc
from reshift.methods.ae import AE, AESettings
from reshift.methods.detector import Step
from reshift.methods.vae import VAE, VAESettings, gaussian_kl
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
def test_any_multiple_of_16_comes_back_in_its_own_size(size: int) -> None:
    for channels in (1, 3):
        net = ConvAE(channels, size, 4, 16, 3, heads=2)
        assert net.encode(torch.zeros(2, channels, size, size)).shape == (2, 6)
        assert net.decode(torch.zeros(2, 3)).shape == (2, channels, size, size)


@pytest.mark.parametrize("method", [AE, VAE])
def test_other_sizes_are_refused(method: Any) -> None:
    with pytest.raises(ValueError, match="40 is not a multiple of 16"):
        method(method.Settings(), 40, 1)


def test_features_posing_as_maps_are_normalised_as_features() -> None:
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
def test_a_restored_image_stays_in_range_whatever_the_network_says(make: Any) -> None:
    model, x = make().eval().requires_grad_(False), images()
    list(model.net.decoder)[-1].weight.mul_(1000.0)
    assert float(model.reconstruct(x).abs().max()) > 1.0
    assert torch.allclose(model.pseudo_healthy(x), model.reconstruct(x).clamp(-1.0, 1.0), atol=1e-4)


@pytest.mark.parametrize("make", [ae, vae])
def test_every_setting_decides_training_and_one_image_is_no_batch(make: Any) -> None:
    stage = make().stages()[0]
    for change in ({"epochs": 1}, {"width": 5}, {"hidden": 8}, {"latent": 4}):
        assert stage.decided_by != make(**change).stages()[0].decided_by
    with pytest.raises(UserError, match="batch"):
        stage.objectives[0].loss(images(1), step())
    assert ae().stages()[0].decided_by != vae().stages()[0].decided_by


@pytest.mark.parametrize("method", [AE, VAE])
def test_the_config_file_spells_out_the_paper_profile(method: Any) -> None:
    name = method.__name__.lower()
    given = parse(Config, read_toml(Path(__file__).parents[2] / "configs" / f"{name}.toml"))
    paper = parse(Config, {"method": name, **method.profiles["paper"], "model": method.Settings().model_dump(mode="json")})
    assert given == paper
    assert (given.data.size, given.train.batch, given.train.lr, given.train.weight_decay) == (64, 64, 1e-3, 0.0)


def phantoms(subjects: range, *, abnormal: bool) -> tuple[Tensor, np.ndarray[Any, np.dtype[np.bool_]]]:
    drawn = [draw("chest", s, s % 4, abnormal=abnormal, size=SIZE) for s in subjects]
    return torch.from_numpy(np.stack([p.pixels for p in drawn])).float()[:, None] / 127.5 - 1.0, np.stack([p.mask for p in drawn])


def trained(steps: int = 300, lr: float = 3e-3) -> AE:
    model = ae(width=8, hidden=64, latent=16).train()
    x, order = phantoms(range(96), abnormal=False)[0], torch.Generator().manual_seed(0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    for i in range(steps):
        optimiser.param_groups[0]["lr"] = lr * 0.5 * (1.0 + math.cos(math.pi * i / steps))
        optimiser.zero_grad()
        batch = x[torch.randint(len(x), (16,), generator=order)]
        model.stages()[0].objectives[0].loss(batch, step(i))["loss"].backward()
        optimiser.step()
    return model.eval()


def test_ae_trained_on_normals_finds_lesions() -> None:
    """Chest phantoms: in the brain, brightness alone finds nearly all. Chance is 0.5."""
    x, masks = phantoms(range(300, 330), abnormal=True)
    lesion = masks.ravel()

    def judge(heatmap: Tensor) -> tuple[float, float]:
        values = heatmap.numpy().ravel().astype(np.float64)
        auc, ap = roc_auc(lesion, values), average_precision(*curve(lesion, values)[:2])
        assert auc is not None
        assert ap is not None
        return auc, ap

    model, untrained = trained(), trained(steps=0)
    with torch.inference_mode():
        auc, ap = judge(model.predict(x).heatmap)
        untrained_auc, _ = judge(untrained.predict(x).heatmap)
    bright_auc, bright_ap = judge(x)
    assert auc > 0.78
    assert auc > max(bright_auc, 1.0 - bright_auc) + 0.1
    assert ap > 3 * bright_ap
    assert max(untrained_auc, 1.0 - untrained_auc) < 0.75  # training is why
