"""What makes each method on an image-space DDPM that method, pinned with a denoiser whose answers are known."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from oracle import SIZE, build, random_image, with_oracle
from torch import Tensor

from reshift.config import Config
from reshift.inference import model as inference_model
from reshift.inference.bundle import Bundle
from reshift.inference.model import Model
from reshift.methods.detector import Step
from reshift.methods.diffusion import autoddpm, diffuse, thor
from reshift.methods.diffusion.sampling import ddim_step, noised
from reshift.methods.diffusion.simplex import fractal_noise, permutations
from reshift.methods.ops.filters import closing, erode, opening
from reshift.training.run import resolve

FAMILY = ("ddpm", "anoddpm", "autoddpm", "thor-gaussian", "thor-simplex", "diffuse")
SIMPLEX = {"anoddpm", "thor-simplex"}


@pytest.fixture
def flat_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The perceptual distance replaced by 1 everywhere, so that maps are residuals."""
    for module in (autoddpm, thor, diffuse):
        monkeypatch.setattr(module, "spatial_distance", lambda _name, a, _b: torch.ones_like(a[:, :1]))


def test_the_authors_numbers() -> None:
    found = {name: resolve(name, "paper", []).model for name in FAMILY}
    assert {name: model["t_star"] for name, model in found.items()} == {
        "ddpm": 250, "anoddpm": 250, "autoddpm": 200, "thor-gaussian": 350, "thor-simplex": 250, "diffuse": 500,
    }  # fmt: skip
    assert found["thor-gaussian"]["harmonise_at"] == [300, 150, 50]
    assert found["thor-simplex"]["harmonise_at"] == [200, 150, 100, 50]
    assert (found["autoddpm"]["repaint_from"], found["autoddpm"]["resamplings"]) == (50, 5)


def test_six_methods_share_two_networks() -> None:
    decided = {name: build(name).stages()[0].decided_by for name in FAMILY}
    assert all(decided[name] == decided["anoddpm" if name in SIMPLEX else "ddpm"] for name in FAMILY)
    assert decided["ddpm"] != decided["anoddpm"]
    assert build("ddpm", widths=(8, 16)).stages()[0].decided_by != decided["ddpm"]
    keys = [set(build(name).state_dict()) for name in FAMILY]
    assert all(k == keys[0] for k in keys)


@pytest.mark.parametrize("method", ["ddpm", "anoddpm"])
def test_the_target_is_the_noise_itself_one_field_per_sample(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = build(method, augment=False, timesteps=50, t_star=5), list[Tensor]()

    def denoiser(x_t: Tensor, t: Tensor) -> Tensor:
        a = model.alpha_bar[t].view(-1, 1, 1, 1)
        seen.append((x_t - a.sqrt() * x) / (1 - a).sqrt())
        return torch.zeros_like(x_t)

    monkeypatch.setattr(model.denoiser, "forward", denoiser)
    x = torch.cat([random_image(i) for i in range(6)]).double()
    loss = model.loss(x, Step(torch.Generator().manual_seed(3)))["loss"]
    (eps,) = seen  # the noise that x_t holds
    assert float(loss) == pytest.approx(float(eps.square().mean()), rel=1e-4)
    flat = eps.flatten(1)
    assert float(torch.corrcoef(flat).fill_diagonal_(0).abs().max()) < 0.9
    neighbours = float(torch.corrcoef(torch.stack([eps[..., 1:].flatten(), eps[..., :-1].flatten()]))[0, 1])
    assert (neighbours > 0.5) == (method == "anoddpm")  # simplex noise is smooth


@pytest.mark.parametrize("method", ["ddpm", "anoddpm"])
def test_partial_diffusion_noises_to_t_star_and_visits_every_step(method: str) -> None:
    x, healthy = random_image(0), random_image(1)
    model, oracle = with_oracle(method, healthy, t_star=7)
    restored = model.restore(x, model.fields(x))
    assert oracle.steps == [7, 6, 5, 4, 3, 2, 1]
    first = model.fields(x)()
    torch.testing.assert_close(oracle.asked[0][1], noised(x, first, model.level(7)))
    torch.testing.assert_close(restored.healthy, healthy, atol=1e-5, rtol=0)
    residual = x - healthy
    torch.testing.assert_close(
        restored.heatmap, (residual.abs() if method == "ddpm" else residual.square())[:, 0], atol=1e-4, rtol=0
    )
    assert float(model.predict(x).score) == pytest.approx(float(restored.heatmap.mean()), rel=1e-5)


def test_a_stride_skips_steps_except_those_asked_for() -> None:
    model = build("ddpm", t_star=10, stride=4)
    assert model.chain(10) == [(10, 6), (6, 2), (2, 0)]
    assert model.chain(10, (5, 1)) == [(10, 6), (6, 5), (5, 2), (2, 1), (1, 0)]


@pytest.mark.parametrize("method", FAMILY)
def test_noise_at_inference_is_of_the_kind_used_in_training_and_the_same_for_all_images(method: str) -> None:
    model, x = build(method, inference_seed=5), random_image()
    draw, again = model.fields(x), model.fields(torch.cat([x, x]))
    first, second = draw(), draw()
    assert torch.equal(first, again())
    assert torch.equal(second, again())
    assert not torch.equal(first, second)
    generator = torch.Generator().manual_seed(5)
    if method in SIMPLEX:
        expected = fractal_noise(permutations(torch.rand(1, 256, generator=generator)), SIZE, SIZE, torch.zeros(1))
    else:
        expected = torch.randn(1, 1, SIZE, SIZE, generator=generator)
    torch.testing.assert_close(first, expected)


# ---- AutoDDPM ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("flat_distance")
def test_autoddpm_masks_stitches_and_resamples() -> None:
    x, healthy = random_image(0), random_image(0)
    healthy[..., 4:8, 4:8] -= 0.5  # the only pixels the network would change
    model, oracle = with_oracle("autoddpm", healthy, t_star=4, repaint_from=3, resamplings=2, quantile=0.9)
    restored = model.restore(x, model.fields(x))
    assert oracle.steps == [4, 3, 2, 1, 3, 3, 2, 2, 1, 1]
    changed = (restored.healthy - x).abs() > 1e-3
    assert bool(changed[..., 4:8, 4:8].all())
    grown = torch.zeros_like(changed)
    grown[..., 3:9, 3:9] = True  # one dilation by 3×3
    assert not bool((changed & ~grown).any())
    # outside the mask the chain carries the noised input, at the level it has reached
    known = noised(x, torch.zeros_like(x), model.level(0))
    torch.testing.assert_close(restored.healthy[~grown], known[~grown], atol=1e-4, rtol=0)


@pytest.mark.usefixtures("flat_distance")
def test_autoddpm_scales_the_residual_by_its_95th_percentile() -> None:
    x, restored = random_image(0), random_image(1)
    suspicion = build("autoddpm").suspicion(x, restored)
    residual = (x - restored).abs()
    expected = (residual / torch.quantile(residual, 0.95)).clamp(0, 1)
    torch.testing.assert_close(suspicion, expected)
    assert float(suspicion.max()) == 1.0


def test_autoddpm_multiplies_by_the_perceptual_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    x, restored = random_image(0), random_image(1)
    monkeypatch.setattr(autoddpm, "spatial_distance", lambda _n, a, b: torch.full_like(a[:, :1], 0.25))
    quarter = build("autoddpm").suspicion(x, restored)
    monkeypatch.setattr(autoddpm, "spatial_distance", lambda _n, a, b: torch.ones_like(a[:, :1]))
    torch.testing.assert_close(quarter * 4, build("autoddpm").suspicion(x, restored))


# ---- THOR --------------------------------------------------------------------------------------------------------------


def test_the_harmonic_mean_is_zero_where_any_map_is() -> None:
    maps = [torch.tensor([[[[0.5, 0.2, 0.0]]]]), torch.tensor([[[[0.25, 0.2, 0.9]]]])]
    torch.testing.assert_close(thor.harmonic_mean(maps), torch.tensor([[[[1 / 3, 0.2, 0.0]]]]))


def test_the_region_is_half_morphology_half_map() -> None:
    a = torch.zeros(1, 1, 40, 40)
    a[..., 20, 20] = 1.0
    region = thor.repaint_region(a)
    assert float(region[..., 20, 20]) == 1.0
    assert bool((region[..., 14:27, 14:27] >= 0.5).all())
    assert float(region.sum()) == pytest.approx(0.5 * 13 * 13 + 0.5)


@pytest.mark.usefixtures("flat_distance")
@pytest.mark.parametrize("method", ["thor-gaussian", "thor-simplex"])
def test_thor_blends_with_the_input_at_its_harmonised_steps(method: str) -> None:
    x, healthy = random_image(0), random_image(0)
    healthy[..., :2, :2] -= 0.5
    model, oracle = with_oracle(method, healthy, t_star=120, harmonise_at=(100, 50), stride=40)
    restored = model.restore(x, model.fields(x))
    assert oracle.steps == [120, 100, 80, 50, 40, 1]
    initial = model.fields(x)()
    asked = dict(oracle.asked)
    region = thor.repaint_region(model.difference(x, healthy))
    for harmonised, following in ((100, 80), (50, 40)):
        blended = (region * healthy + (1 - region) * x).clamp(-1, 1)
        torch.testing.assert_close(asked[following], noised(blended, initial, model.level(following)), atol=1e-4, rtol=0)
        assert harmonised in model.settings.harmonise_at
    assert float(restored.heatmap.max()) == pytest.approx(0.999)
    torch.testing.assert_close(restored.heatmap, model.difference(x, healthy)[:, 0].clamp(max=0.999), atol=1e-3, rtol=0)


def test_thor_blurs_and_clips_the_distance_not_across_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    peak = torch.zeros(2, 1, SIZE, SIZE)
    peak[0, 0, 8, 8] = 1e4
    monkeypatch.setattr(thor, "spatial_distance", lambda _n, a, b: peak)
    model = build("thor-gaussian", t_star=120, harmonise_at=(100,))
    found = model.difference(torch.ones(2, 1, SIZE, SIZE), torch.zeros(2, 1, SIZE, SIZE))
    assert float(found[1].abs().max()) == 0.0
    assert int((found[0] == 1.0).sum()) > 9  # clipped at 1 around the peak


# ---- Dif-fuse † --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("flat_distance")
def test_diffuse_inverts_then_edits_inside_the_mask_only() -> None:
    x, healthy = random_image(0), random_image(0)
    healthy[..., 6:9, 6:9] -= 0.6
    model, oracle = with_oracle("diffuse", healthy, t_star=8, stride=4, quantile=0.96)
    mask = model.mask(x, model.fields(x))
    assert bool((mask[..., 6:9, 6:9] == 1).all())
    assert float(mask.sum()) <= 11 * 11
    oracle.asked.clear()
    restored = model.restore(x, model.fields(x))
    assert oracle.steps == [8, 1, 4, 8, 8, 4, 4]  # where to edit; up; two chains down
    outside = mask[:, 0] == 0
    assert float(restored.heatmap[outside].abs().max()) == 0.0


def test_the_deterministic_chain_returns_to_the_image_it_was_inverted_from() -> None:
    x = random_image(0)
    model, _ = with_oracle("diffuse", x, t_star=40, stride=4)
    x_t = model.invert(x)
    assert not torch.allclose(x_t, x, atol=1e-3)
    for t, s in model.chain(40):
        x_t = ddim_step(x_t, model.clean_at(x_t, t), model.level(t), model.level(s))
    torch.testing.assert_close(x_t, x, atol=1e-4, rtol=0)


@pytest.mark.usefixtures("flat_distance")
def test_diffuse_has_the_authors_post_processing_as_an_option() -> None:
    x = random_image(0)

    def heatmap(rule: str) -> Tensor:
        model = build("diffuse", t_star=500, stride=100, postprocess=rule, quantile=0.98)  # untrained: ε is 0, chains differ
        found: Tensor = model.restore(x, model.fields(x)).heatmap
        return found

    with torch.no_grad():
        plain, authors = heatmap("none")[:, None], heatmap("authors")
    assert float(plain.max()) > 0.1
    expected = closing(opening(erode(plain / plain.max(), 5), 5), 5)
    torch.testing.assert_close(authors, expected[:, 0])


# ---- all ---------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("flat_distance")
@pytest.mark.parametrize("method", FAMILY)
def test_an_image_that_the_network_would_not_change_is_normal(method: str) -> None:
    x = random_image(0)
    settings: dict[str, Any] = {"t_star": 6}
    settings |= {"harmonise_at": (4, 2)} if "thor" in method else {}
    settings |= {"repaint_from": 3} if method == "autoddpm" else {}
    model, _ = with_oracle(method, x, **settings)
    if "thor" not in method:  # its maps have maximum 1, whatever the residual
        assert float(model.predict(x).heatmap.max()) < 1e-4
    torch.testing.assert_close(model.pseudo_healthy(x), x, atol=1e-3, rtol=0)


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("ddpm", {"t_star": 2000}, "t_star 2000 exceeds model.timesteps 1000"),
    ("ddpm", {"heads": 3}, "heads 3 does not divide"),
    ("autoddpm", {"repaint_from": 1001}, "repaint_from 1001 exceeds"),
    ("thor-gaussian", {"t_star": 200}, "beyond t_star 200"),
]


@pytest.mark.parametrize(("method", "settings", "message"), BAD)
def test_inconsistent_settings_are_refused(method: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(method, **settings)


def test_a_loaded_model_shows_the_steps_of_a_long_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[tuple[int, str]]()

    def counted(steps: Sequence[Any], label: str) -> Sequence[Any]:
        seen.append((len(steps), label))
        return steps

    monkeypatch.setattr(inference_model, "counted", counted)
    detector, _ = with_oracle("diffuse", random_image(0), t_star=6, stride=2)
    model = Model(Bundle(detector, Config(), None, {}, ""), "cpu")
    model.detector.predict(random_image(0))
    assert seen == [(3, "inverting step"), (3, "editing step")]
