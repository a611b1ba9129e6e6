"""The normative indices: each ingredient against a slow or closed form, each index at its ends and on its way between."""

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from reshift.evaluation.normative import (
    WINDOW,
    NormativeIndices,
    ahi,
    caci,
    frechet_distance,
    frechet_gaussians,
    perceptual_distance,
    rqi,
    ssim,
    ssim_map,
)
from reshift.nets.lpips import Lpips

SIDE = 48


class Pyramid:
    """A feature net one can see through: the image and its gradients at three scales; pooled, it is the coarse image."""

    name = "pyramid"

    def maps(self, x: Tensor, side: int = 224) -> list[Tensor]:
        x = x.mean(1, keepdim=True) + 2
        return [self._layer(F.avg_pool2d(x, s) if s > 1 else x) for s in (1, 2, 4)]

    def _layer(self, x: Tensor) -> Tensor:
        across, down = F.pad(x.diff(dim=-1), (0, 1)), F.pad(x.diff(dim=-2), (0, 0, 0, 1))
        return torch.cat([x, 4 * across, 4 * down], 1)

    def vector(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(x.mean(1, keepdim=True), 6).flatten(1)


def normative(
    net: Any, normals: Tensor, restored: Tensor, abnormal: Tensor, repaired: Tensor, masks: Tensor | None, training: Tensor
) -> dict[str, Any]:
    """The indices of whole sets; an empty tensor is a missing set."""
    indices = NormativeIndices(net)
    if len(normals):
        indices.add_normal(normals, restored)
    if len(abnormal):
        indices.add_abnormal(abnormal, repaired, masks)
    if len(training):
        indices.add_training(training)
    return indices.result()


def healthy(n: int, seed: int) -> Tensor:
    """Blurred noise on a disc in black, in [-1, 1]."""
    noise = torch.rand(n, 1, 12, 12, generator=torch.Generator().manual_seed(seed))
    grey = 0.3 + 0.4 * F.interpolate(noise, size=(SIDE, SIDE), mode="bilinear")
    i, j = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    disc = (i - SIDE / 2) ** 2 + (j - SIDE / 2) ** 2 < (0.45 * SIDE) ** 2
    return grey * disc * 2 - 1


def with_lesions(x: Tensor) -> tuple[Tensor, Tensor]:
    """Put a bright chequered square somewhere into every image; also its masks."""
    masks, sick = torch.zeros(len(x), SIDE, SIDE, dtype=torch.bool), x.clone()
    i, j = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    pattern = (((i // 2 + j // 2) % 2) * 1.0).expand(len(x), 1, SIDE, SIDE)
    for n in range(len(x)):
        top, left = 14 + n % 7, 14 + n % 5
        masks[n, top : top + 12, left : left + 12] = True
    sick[masks[:, None]] = pattern[masks[:, None]]
    return sick, masks


def blurred(x: Tensor, side: int) -> Tensor:
    return F.avg_pool2d(x, side, 1, side // 2, count_include_pad=False)


def slow_ssim(a: Any, b: Any) -> Any:
    r, out = WINDOW // 2, np.zeros(a.shape)
    a, b = np.pad(a, r, mode="symmetric"), np.pad(b, r, mode="symmetric")
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            p, q = a[i : i + WINDOW, j : j + WINDOW].ravel(), b[i : i + WINDOW, j : j + WINDOW].ravel()
            c = np.cov(p, q)
            top = (2 * p.mean() * q.mean() + 1e-4) * (2 * c[0, 1] + 9e-4)
            out[i, j] = top / ((p.mean() ** 2 + q.mean() ** 2 + 1e-4) * (c[0, 0] + c[1, 1] + 9e-4))
    return out


def test_ssim_against_a_slow_loop() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 13, 17))
    found = ssim_map(torch.from_numpy(a)[None, None], torch.from_numpy(b)[None, None])
    np.testing.assert_allclose(found[0].numpy(), slow_ssim(a, b), atol=1e-12)
    inner = ssim(torch.from_numpy(a)[None, None], torch.from_numpy(b)[None, None])
    assert float(inner) == pytest.approx(slow_ssim(a, b)[3:-3, 3:-3].mean())


def test_perceptual_distance_is_zero_symmetric_and_local() -> None:
    net, x = Pyramid(), healthy(3, 0)
    sick, masks = with_lesions(x)
    assert float(perceptual_distance(net, x, x).scalar.abs().max()) == 0
    there, back = perceptual_distance(net, x, sick), perceptual_distance(net, sick, x)
    torch.testing.assert_close(there.scalar, back.scalar)
    assert there.spatial.shape == (3, SIDE, SIDE)
    assert bool((there.scalar > 0).all())
    far_away = F.max_pool2d(masks[:, None].float(), 21, 1, 10)[:, 0] == 0
    assert float(there.spatial[far_away].max()) < 1e-3 * float(there.spatial[masks].mean())


def test_lpips_brings_its_own_distance() -> None:
    torch.manual_seed(0)
    net, x = Lpips(), healthy(2, 0)
    for head in net.heads:
        head.fill_(1.0)
    found = perceptual_distance(net, x, -x)
    assert float(found.scalar.min()) > 0
    assert torch.equal(found.scalar, net(x, -x).scalar)
    indices = NormativeIndices(Pyramid(), net)
    indices.add_normal(x, -x)
    result = indices.result()
    assert (result["features"], result["ingredients"]["distance"]) == ("pyramid", "lpips-alexnet")
    assert result["ingredients"]["normal"]["distance"] == pytest.approx(float(found.scalar.mean()), rel=1e-5)
    black = perceptual_distance(net, x, torch.full_like(x, -1.0)).scalar
    expected = [max(0.0, 1 - float(d) / float(d0)) for d, d0 in zip(found.scalar, black, strict=True)]
    assert result["rqi"] == pytest.approx(sum(expected) / 2, abs=1e-5)
    assert result["rqi_features"] is None  # one or the other: they are two measures
    assert indices.warnings() == []
    assert "reshift weights pull lpips-alexnet" in NormativeIndices(Pyramid()).warnings()[0]


def test_frechet_distance_of_diagonal_gaussians_is_closed_form() -> None:
    rng = np.random.default_rng(0)
    mu, nu, s, t = rng.random((4, 9))
    expected = ((mu - nu) ** 2).sum() + ((s - t) ** 2).sum()
    assert frechet_gaussians(mu, np.diag(s**2), nu, np.diag(t**2)) == pytest.approx(expected)
    s[:4], t[2:6] = 0, 0  # singular, both and each alone
    expected = ((mu - nu) ** 2).sum() + ((s - t) ** 2).sum()
    assert frechet_gaussians(mu, np.diag(s**2), nu, np.diag(t**2)) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(("n", "d"), [(200, 12), (8, 40)])
def test_frechet_distance_of_sets_against_scipy_and_invariances(n: int, d: int) -> None:
    linalg = pytest.importorskip("scipy.linalg")
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(n, d)) @ rng.normal(size=(d, d)), rng.normal(size=(n, d)) + 0.3
    found = frechet_distance(a, b)
    assert found is not None
    ca, cb = np.cov(a.T), np.cov(b.T)
    values = np.abs(linalg.eigvals(ca @ cb))  # tr of the root = sum of the roots of the product's eigenvalues
    values[values < 1e-9 * values.max()] = 0
    expected = ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(ca) + np.trace(cb) - 2 * np.sqrt(values).sum()
    assert found == pytest.approx(expected, rel=1e-6)
    rotation, _ = np.linalg.qr(rng.normal(size=(d, d)))
    assert frechet_distance(b, a) == pytest.approx(found, rel=1e-6)
    assert frechet_distance(a @ rotation + 5, b @ rotation + 5) == pytest.approx(found, rel=1e-6)
    assert frechet_distance(3 * a, 3 * b) == pytest.approx(9 * found, rel=1e-6)
    assert frechet_distance(a, a[::-1]) == pytest.approx(0, abs=1e-5 * np.trace(ca))
    assert frechet_distance(a, a + 2) == pytest.approx(4 * d, rel=1e-5)


def test_frechet_distance_without_enough_is_none() -> None:
    rows = np.ones((5, 3))
    assert frechet_distance(rows[:1], rows) is None
    assert frechet_distance(rows * np.nan, rows) is None
    assert frechet_distance(rows, rows) == 0


def test_the_formulas_at_their_ends() -> None:
    assert rqi([0.0, 0.25, 2.0], [0.5, 0.5, 0.5]) == pytest.approx((1 + 0.5 + 0) / 3)
    assert rqi([0.1], [0.0]) is None
    assert rqi([float("nan")], [0.5]) is None
    assert (ahi(10, 10, 2), ahi(10, 2, 2), ahi(10, 6, 2), ahi(10, 12, 2), ahi(10, 1, 2)) == (0, 1, 0.5, 0, 1)
    assert ahi(2, 1, 2) is None
    assert ahi(10, None, 2) is None
    assert caci(0.97, 0.03) == pytest.approx(0.058, abs=5e-4)  # the published value of a model that copies its input is .06
    assert (caci(1, 1), caci(0, 0), caci(-0.2, 0.5), caci(1, 2)) == (1, 0, 0, 1)


def run(restored: Tensor, normal_restored: Tensor | None = None) -> dict[str, Any]:
    """Twelve of each; ``restored`` stands for what a model makes of the abnormal ones."""
    normals = healthy(12, 0)
    sick, masks = with_lesions(healthy(12, 1))
    return normative(
        Pyramid(), normals, normals if normal_restored is None else normal_restored, sick, restored, masks, healthy(20, 2)
    )


def test_rqi_is_one_for_a_perfect_restoration_and_falls_with_blur() -> None:
    normals, (sick, _) = healthy(12, 0), with_lesions(healthy(12, 1))
    perfect = run(sick)
    assert perfect["rqi_features"] == 1
    assert perfect["rqi"] is None  # a pyramid of gradients is not LPIPS
    assert perfect["ingredients"]["normal"]["mae"] == 0
    assert perfect["ingredients"]["normal"]["ssim"] == pytest.approx(1)
    falling = [1.0, *(run(sick, blurred(normals, side))["rqi_features"] for side in (3, 7, 15))]
    assert all(a > b for a, b in pairwise(falling)), falling
    assert run(sick, torch.full_like(normals, -1.0))["rqi_features"] == 0


def test_ahi_is_zero_for_a_copy_and_one_for_other_healthy_images() -> None:
    sick, _ = with_lesions(healthy(12, 1))
    copy, other, half = run(sick), run(healthy(12, 0)), run((sick + healthy(12, 1)) / 2)
    assert copy["ahi_features"] == 0
    assert other["ahi_features"] == 1
    assert 0 < half["ahi_features"] < 1
    fd = copy["ingredients"]["FD-pyramid"]
    assert fd["abnormal"] == fd["restored"] > fd["unseen"]
    assert fd["images_per_set"] == 12


def test_caci_is_low_for_a_copy_and_high_for_a_cure() -> None:
    before = healthy(12, 1)
    sick, _ = with_lesions(before)
    copy, cured, lost = run(sick), run(before), run(torch.full_like(sick, -1.0))
    assert copy["caci"] == pytest.approx(0, abs=1e-6)
    assert cured["caci"] > 0.85
    assert cured["ingredients"]["abnormal"]["ssim_healthy"] == pytest.approx(1)
    assert lost["caci"] < cured["caci"]  # the lesion is gone, and so is everything else
    assert copy["ingredients"]["caci_perceptual"] == 0
    assert cured["ingredients"]["caci_perceptual"] > copy["ingredients"]["caci_perceptual"]
    assert copy["caci"] < run((sick + before) / 2)["caci"] < cured["caci"]


def test_caci_leaves_out_what_is_ignored() -> None:
    """Whatever a model does to an ignored region, and whatever of the lesion is ignored, says nothing."""
    before = healthy(4, 1)
    sick, masks = with_lesions(before)
    ignore = torch.zeros_like(masks)
    ignore[:, 4:9, 20:28] = True  # healthy by the mask
    spoiled = before.clone()
    spoiled[ignore[:, None]] = 1.0

    def measured(restored: Tensor, ignored: Tensor | None, lesions: Tensor = masks) -> dict[str, Any]:
        indices = NormativeIndices(Pyramid())
        indices.add_abnormal(sick, restored, lesions, ignored)
        return indices.result()

    clean, kept = measured(before, ignore), measured(spoiled, ignore)
    assert kept["caci"] == pytest.approx(clean["caci"], abs=1e-9)
    assert kept["ingredients"]["abnormal"]["ssim_healthy"] == pytest.approx(1)
    assert measured(spoiled, None)["caci"] < clean["caci"] - 0.01
    half = masks & (torch.arange(SIDE) < 20)
    assert measured(before, half)["caci"] == pytest.approx(measured(before, half, masks & ~half)["caci"])
    assert measured(before, masks)["caci"] is None  # nothing of the lesion is left


def test_what_is_missing_or_broken_is_none_and_json_has_no_nan() -> None:
    net, x = Pyramid(), healthy(3, 0)
    none = x[:0]
    nothing = normative(net, none, none, none, none, None, none)
    assert (nothing["rqi_features"], nothing["ahi_features"], nothing["caci"]) == (None, None, None)
    no_masks = normative(net, none, none, x, x, None, healthy(4, 1))
    assert (no_masks["rqi_features"], no_masks["ahi_features"], no_masks["caci"]) == (None, None, None)
    assert no_masks["ingredients"]["FD-pyramid"]["abnormal"] > 0  # known even without unseen normals
    empty_mask = normative(net, x, x, x, x, torch.zeros(3, SIDE, SIDE), healthy(4, 1))
    assert empty_mask["caci"] is None
    assert empty_mask["ingredients"]["n"]["with_lesion_mask"] == 0
    diverged = run(torch.full((12, 1, SIDE, SIDE), float("nan")), torch.full((12, 1, SIDE, SIDE), float("nan")))
    assert (diverged["rqi_features"], diverged["ahi_features"], diverged["caci"]) == (None, None, None)
    for result in (nothing, no_masks, empty_mask, diverged):
        assert "FID" not in json.dumps(result, allow_nan=False)


def test_batches_and_their_order_do_not_matter() -> None:
    sick, masks = with_lesions(healthy(5, 1))
    whole, parts = NormativeIndices(Pyramid()), NormativeIndices(Pyramid(), seed=0)
    whole.add_training(healthy(7, 2))
    whole.add_normal(healthy(5, 0), blurred(healthy(5, 0), 3))
    whole.add_abnormal(sick, healthy(5, 1), masks)
    for i in range(5):
        parts.add_abnormal(sick[i : i + 1], healthy(5, 1)[i : i + 1], masks[i : i + 1])
        parts.add_normal(healthy(5, 0)[i : i + 1], blurred(healthy(5, 0), 3)[i : i + 1])
    parts.add_training(healthy(7, 2))
    one, two = whole.result(), parts.result()
    assert one["reading"] == two["reading"] == "our reading of Bercea et al. 2025; combinations inferred"
    for name in ("rqi_features", "ahi_features", "caci"):
        assert one[name] == pytest.approx(two[name], rel=1e-5)
