"""f-AnoGAN: the gradient penalty, what each objective trains, and the authors' two-term score."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reshift.methods.detector import Stage, Step
from reshift.methods.fanogan import FAnoGAN, FAnoGANSettings
from reshift.nets.gan import Critic, Encoder, Generator, gradient_penalty, widths
from reshift.nets.norm import BatchNorm

SIZE = 32


def make(channels: int = 1, **settings: Any) -> FAnoGAN:
    torch.manual_seed(0)
    return FAnoGAN(FAnoGANSettings(**{"width": 4, "latent": 6, **settings}), SIZE, channels)


def step(seed: int = 0) -> Step:
    return Step(torch.Generator().manual_seed(seed))


def images(n: int = 4, channels: int = 1) -> Tensor:
    return torch.rand(n, channels, SIZE, SIZE, generator=torch.Generator().manual_seed(1)) * 2 - 1


def prepared(model: FAnoGAN, index: int) -> Stage:
    """Freeze and unfreeze modules as the training loop does."""
    stage = model.stages()[index]
    model.eval().requires_grad_(False)
    for objective in stage.objectives:
        for module in objective.modules:
            module.train().requires_grad_(True)
    return stage


def update(stage: Stage, due: Sequence[int], seed: int = 0) -> None:
    """One step of the objectives ``due``, as the training loop takes it."""
    for i in due:
        objective = stage.objectives[i]
        optimiser = torch.optim.AdamW([p for m in objective.modules for p in m.parameters()], 1e-2, objective.betas)
        optimiser.zero_grad(set_to_none=True)
        objective.loss(images(), step(seed))["loss"].backward()
        optimiser.step()


def changed(model: FAnoGAN, before: dict[str, Tensor]) -> set[str]:
    """Top-level names of the networks whose weights have moved."""
    return {name.partition(".")[0] for name, p in model.named_parameters() if not torch.equal(p, before[name])}


def snapshot(model: FAnoGAN) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_the_authors_values_are_the_defaults() -> None:
    s = FAnoGANSettings()
    assert (s.latent, s.width, s.n_critic, s.penalty, s.kappa) == (128, 64, 5, 10.0, 1.0)
    train = FAnoGAN.profiles["paper"]["train"]
    assert (train["lr"], train["weight_decay"], train["clip"], train["amp"]) == (1e-4, 0.0, 0.0, "off")
    assert all(layer["train"]["amp"] == "off" for layer in FAnoGAN.profiles.values())


@pytest.mark.parametrize(("size", "expected"), [
    (32, [64, 128, 256, 512]), (64, [64, 128, 256, 512, 512]), (128, [64, 128, 256, 512, 512, 512]),
])  # fmt: skip
def test_widths_double_up_to_eight_times(size: int, expected: list[int]) -> None:
    assert widths(size, 64) == expected


@pytest.mark.parametrize("size", [32, 64, 128, 256])
@pytest.mark.parametrize("channels", [1, 3])
def test_networks_have_a_four_by_four_grid_at_the_deepest_level(size: int, channels: int) -> None:
    generator, critic = Generator(6, channels, size, 2).eval(), Critic(channels, size, 2)
    x = generator(torch.randn(1, 6))
    assert x.shape == (1, channels, size, size)
    assert float(x.detach().abs().max()) <= 1.0
    assert generator.start.weight.shape == (16 * 16, 6)  # 4 · 4 · 8 · width, whatever the size
    assert critic.features(x).shape == (1, 16 * 16)
    assert critic(x).shape == (1,)
    assert Encoder(6, channels, size, 2, bounded=True).eval()(x).shape == (1, 6)


@pytest.mark.parametrize("size", [4, 48, 100])
def test_other_sizes_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"data.size {size} is not 4·2\\^k"):
        FAnoGAN(FAnoGANSettings(width=2), size, 1)


def test_only_the_critic_has_no_batch_norm() -> None:
    model = make()
    assert not any(isinstance(m, nn.BatchNorm2d | nn.Dropout) for m in model.critic.modules())
    for net in (model.generator, model.encoder):
        norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
        assert norms
        assert all(isinstance(m, BatchNorm) for m in norms)


def test_the_critic_scores_each_image_by_itself() -> None:
    critic = make().critic.train()
    x = images()
    torch.testing.assert_close(critic(x)[:1], critic(x[:1]))


def test_penalty_of_a_linear_critic() -> None:
    w = torch.randn(1, SIZE, SIZE, generator=torch.Generator().manual_seed(3))
    real, fake = images(8).chunk(2)
    penalty = gradient_penalty(lambda x: (x * w).flatten(1).sum(1), real, fake, torch.rand(4, 1, 1, 1))
    assert float(penalty.detach()) == pytest.approx((float(w.norm()) - 1.0) ** 2, rel=1e-5)


def test_penalty_is_taken_between_the_pair_and_for_each_image() -> None:
    real, fake = images(4).chunk(2)
    weight = torch.tensor([0.25, 1.0]).view(2, 1, 1, 1)
    # D(x) = ½‖x‖² has the gradient x, which shows where it was taken.
    penalty = gradient_penalty(lambda x: 0.5 * x.square().flatten(1).sum(1), real, fake, weight)
    norms = [float((0.75 * real[0] + 0.25 * fake[0]).norm()), float(fake[1].norm())]
    assert float(penalty.detach()) == pytest.approx(sum((n - 1.0) ** 2 for n in norms) / 2, rel=1e-5)


def test_the_gradient_of_the_penalty_agrees_with_finite_differences() -> None:
    torch.manual_seed(0)
    critic = Critic(1, 8, 2).double()
    real, fake = torch.rand(2, 3, 1, 8, 8, dtype=torch.float64)
    weight = torch.rand(3, 1, 1, 1, dtype=torch.float64)
    parameter = critic.out.weight
    [grad] = torch.autograd.grad(gradient_penalty(critic, real, fake, weight), parameter)
    for i in (0, 7, 31):
        values = []
        for h in (1e-6, -1e-6):
            with torch.no_grad():
                parameter[0, i] += h
            values.append(float(gradient_penalty(critic, real, fake, weight).detach()))
            with torch.no_grad():
                parameter[0, i] -= h
        assert float(grad[0, i]) == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-4, abs=1e-8)


def test_the_critics_loss_is_wasserstein_and_penalty() -> None:
    model = make()
    stage, x = prepared(model, 0), images()
    model.generator.eval()  # so that the same code gives the same image here
    found, same = stage.objectives[0].loss(x, step(5)), step(5)
    fake = model.generator(same.normal(len(x), 6)).detach()
    penalty = gradient_penalty(model.critic, x, fake, same.uniform(len(x), 1, 1, 1))
    expected = model.critic(fake).mean() - model.critic(x).mean() + 10.0 * penalty
    torch.testing.assert_close(found["loss"], expected)


def test_critic_and_generator_train_only_themselves() -> None:
    model = make()
    stage, before = prepared(model, 0), snapshot(model)
    update(stage, [0])
    assert changed(model, before) == {"critic"}
    before = snapshot(model)
    update(stage, [1])
    assert changed(model, before) == {"generator"}


def test_the_generator_maximises_the_critic_score() -> None:
    model = make()
    generator = prepared(model, 0).objectives[1]
    z = step(3).normal(4, 6)
    expected = -model.critic(model.generator(z)).mean()
    torch.testing.assert_close(generator.loss(images(), step(3))["loss"], expected)


def test_the_generator_steps_on_every_fifth_batch() -> None:
    gan, encoder = FAnoGAN(FAnoGANSettings(width=2), SIZE, 1).stages()
    assert [o.every for o in gan.objectives] == [1, 5]
    assert [o.every for o in make(n_critic=3).stages()[0].objectives] == [1, 3]
    assert all((o.lr_factor, o.betas) == (1.0, (0.0, 0.9)) for o in gan.objectives)
    assert [(o.lr_factor, o.betas) for o in encoder.objectives] == [(0.5, (0.0, 0.9))]


def test_the_encoder_stage_trains_the_encoder_alone() -> None:
    model = make()
    stage, before = prepared(model, 1), snapshot(model)
    assert not model.generator.training
    assert not model.critic.training
    buffers = {name: b.clone() for name, b in model.generator.named_buffers()}
    update(stage, [0])
    assert changed(model, before) == {"encoder"}
    assert all(torch.equal(b, buffers[name]) for name, b in model.generator.named_buffers())


def test_the_encoders_loss_is_the_mean_score() -> None:
    model = make(kappa=0.3).eval()
    x = images()
    loss = model.stages()[1].objectives[0].loss(x, step())["loss"]
    torch.testing.assert_close(loss, model.predict(x).score.mean())


def test_features_are_the_input_of_the_last_linear_layer() -> None:
    critic, x, seen = make().critic, images(), list[Tensor]()
    hook = critic.out.register_forward_pre_hook(lambda _m, args: seen.append(args[0]))
    score = critic(x)
    hook.remove()
    torch.testing.assert_close(critic.features(x), seen[0])
    torch.testing.assert_close(score, seen[0] @ critic.out.weight[0] + critic.out.bias)


def test_score_has_both_terms_and_the_map_the_residual() -> None:
    model, x = make(channels=3, kappa=0.7).eval(), images(2, 3)
    prediction = model.predict(x)
    for i in range(2):
        x_hat = model.generator(model.encoder(x[i : i + 1]))[0]
        f, f_hat = model.critic.trunk(x[i : i + 1])[0], model.critic.trunk(x_hat[None])[0]
        expected = (x[i] - x_hat).square().mean() + 0.7 * (f - f_hat).square().mean()
        torch.testing.assert_close(prediction.score[i], expected)
        torch.testing.assert_close(prediction.heatmap[i], (x[i] - x_hat).abs().mean(0))
        torch.testing.assert_close(model.pseudo_healthy(x)[i], x_hat)


def test_tanh_bounds_the_code_unless_switched_off() -> None:
    x = 50.0 * images()
    assert float(make().eval().encoder(x).detach().abs().max()) <= 1.0
    assert float(make(bounded=False).eval().encoder(x).detach().abs().max()) > 1.0


def test_each_stage_is_decided_by_its_own_settings() -> None:
    base = [s.decided_by for s in make().stages()]
    for setting, stage in [("penalty", 0), ("n_critic", 0), ("gan_epochs", 0), ("kappa", 1), ("encoder_epochs", 1)]:
        other = [s.decided_by for s in make(**{setting: 3}).stages()]
        assert other[stage] != base[stage]
        assert other[1 - stage] == base[1 - stage]
    assert [s.decided_by for s in make(bounded=False).stages()][1] != base[1]
