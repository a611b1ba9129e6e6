"""Samplers and the cosine schedule against the papers' formulas, and random affine transforms."""

import math

import pytest
import torch

from reshift.core.schedule import linear_alpha_bar
from reshift.methods.diffusion.sampling import (
    ancestral_step,
    clean,
    cosine_alpha_bar,
    ddim_step,
    implied_noise,
    noised,
    step_back,
)
from reshift.methods.ops.augment import random_affine

BAR = linear_alpha_bar(1000)


def fields(*seeds: int) -> list[torch.Tensor]:
    return [torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(s)) for s in seeds]


@pytest.mark.parametrize("t", [1, 2, 250, 1000])
def test_clean_inverts_noised(t: int) -> None:
    x0, eps = fields(0, 1)
    x0 = x0.clamp(-1, 1).double()
    x_t = noised(x0, eps.double(), BAR[t])
    torch.testing.assert_close(clean(x_t, eps.double(), BAR[t]), x0)
    torch.testing.assert_close(implied_noise(x_t, x0, BAR[t]), eps.double())


@pytest.mark.parametrize("t", [1, 2, 300])
def test_ancestral_step_is_the_posterior_of_ho_et_al(t: int) -> None:
    x_t, x0, noise = (v.double() for v in fields(0, 1, 2))
    a, a_s = float(BAR[t]), float(BAR[t - 1])
    beta = 1 - a / a_s
    mean = math.sqrt(a_s) * beta / (1 - a) * x0 + math.sqrt(a / a_s) * (1 - a_s) / (1 - a) * x_t
    expected = mean + math.sqrt((1 - a_s) / (1 - a) * beta) * noise
    torch.testing.assert_close(ancestral_step(x_t, x0, BAR[t], BAR[t - 1], noise), expected)


def test_the_last_ancestral_step_returns_the_estimate_without_noise() -> None:
    x_t, x0, noise = fields(0, 1, 2)
    torch.testing.assert_close(ancestral_step(x_t, x0, BAR[1], BAR[0], noise), x0)


def test_an_ancestral_step_with_a_stride_has_the_right_marginal() -> None:
    """From x_t of a known x0, any stride lands on q(x_s | x0): mean √ᾱ_s x0, variance 1 - ᾱ_s."""
    n = 200_000
    x0, generator = torch.full((1, 1, 1, n), 0.3, dtype=torch.float64), torch.Generator().manual_seed(0)
    eps, noise = (torch.randn(1, 1, 1, n, generator=generator, dtype=torch.float64) for _ in range(2))
    x_s = ancestral_step(noised(x0, eps, BAR[500]), x0, BAR[500], BAR[200], noise)
    assert float(x_s.mean()) == pytest.approx(0.3 * math.sqrt(float(BAR[200])), abs=0.01)
    assert float(x_s.var()) == pytest.approx(1 - float(BAR[200]), rel=0.02)


def test_ddim_is_reversible_for_a_fixed_estimate() -> None:
    x_t, x0 = (v.double() for v in fields(0, 1))
    up = ddim_step(x_t, x0, BAR[100], BAR[400])
    torch.testing.assert_close(ddim_step(up, x0, BAR[400], BAR[100]), x_t)
    torch.testing.assert_close(ddim_step(x_t, x0, BAR[100], BAR[0]), x0)


def test_a_step_back_adds_the_noise_of_one_step() -> None:
    x_s, noise = fields(0, 1)
    beta = 1e-4 + (0.02 - 1e-4) * (50 - 1) / 999  # the schedule's own β at t = 50
    expected = math.sqrt(1 - beta) * x_s + math.sqrt(beta) * noise
    torch.testing.assert_close(step_back(x_s, BAR[49], BAR[50], noise), expected)


def test_the_affine_transform_can_be_the_identity_or_a_mirror() -> None:
    x = torch.rand(2, 1, 8, 8)
    u = torch.tensor([[0.5, 0.5, 0.9, 0.5, 0.5], [0.5, 0.5, 0.1, 0.5, 0.5]])
    out = random_affine(x, u)
    torch.testing.assert_close(out[0], x[0])
    torch.testing.assert_close(out[1], x[1].flip(-1))


def test_the_affine_transform_shifts_and_rotates_by_the_given_amounts() -> None:
    x = torch.zeros(1, 1, 32, 32)
    x[..., 16, 16] = 1.0
    shifted = random_affine(x, torch.tensor([[0.5, 0.5, 0.9, 1.0, 0.5]]), shift=4 / 32)
    assert divmod(int(shifted.argmax()), 32) == (16, 12)
    x = torch.zeros(1, 1, 33, 33)
    x[..., 16, 26] = 1.0
    turned = random_affine(x, torch.tensor([[1.0, 0.5, 0.9, 0.5, 0.5]]), degrees=90.0)
    assert divmod(int(turned.argmax()), 33) in {(6, 16), (26, 16)}


def test_the_affine_transform_repeats_the_border() -> None:
    x = torch.full((1, 1, 16, 16), -1.0)
    torch.testing.assert_close(random_affine(x, torch.rand(1, 5)), x)


@pytest.mark.parametrize("T", [1, 10, 1000])
def test_cosine_schedule_by_loop(T: int) -> None:
    def f(t: int) -> float:
        return math.cos((t / T + 0.008) / 1.008 * math.pi / 2) ** 2

    expected = [1.0]
    for t in range(1, T + 1):
        expected.append(expected[-1] * (1.0 - min(1.0 - f(t) / f(t - 1), 0.999)))
    got = cosine_alpha_bar(T)
    assert got.dtype == torch.float64
    assert got.tolist() == pytest.approx(expected, rel=1e-9)
    assert got[-1] == pytest.approx(float(got[-2]) * 0.001)  # the last beta is the one that is clipped


def test_cosine_schedule_needs_a_step() -> None:
    with pytest.raises(ValueError, match="T must"):
        cosine_alpha_bar(0)
