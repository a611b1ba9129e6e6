"""The witness "overall": its share of the score, no place in the heat-map, folds, a new site, and when it is asked."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_reshift import LITE0, build, filled, images
from torch.nn import functional as F

from reshift.data.phantom import write_phantom
from reshift.errors import UserError
from reshift.inference.bundle import load_bundle
from reshift.methods.detector import Normals
from reshift.methods.reshift.overall import RIDGE, Overall
from reshift.methods.reshift.settings import ReshiftSettings
from reshift.methods.reshift.witness import Seen
from reshift.nets.efficientnet_lite import efficientnet_lite0
from reshift.training.run import resolve, train_run


def test_it_is_a_stage_and_a_network_of_its_own() -> None:
    model = build(overall="on")
    assert model.stages()[-1].name == f"overall {LITE0}"
    assert model.feature_names == (LITE0,)
    assert [stage.decided_by for stage in model.stages()[:-1]] == [stage.decided_by for stage in build().stages()]
    assert "overall" not in build(overall="on", features="off").settings.present


def mahalanobis(x: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """The logarithm of the squared distance, with a tenth of the mean variance added, by inverting the covariance."""
    known, x = known.double(), x.double()
    covariance = torch.cov(known.T, correction=0)
    covariance += RIDGE * covariance.diagonal().mean() * torch.eye(len(covariance), dtype=torch.float64)
    away = x - known.mean(0)
    distance: torch.Tensor = (away @ torch.linalg.inv(covariance) * away).sum(1).log().float()
    return distance


def test_its_distance_is_to_the_normals_that_its_fold_may_know() -> None:
    model, x = filled(overall="on"), images(3, seed=7)
    witness: Any = model.witnesses[-1]
    known = [F.normalize(efficientnet_lite0().vector(images(8, seed=100 * fold)), dim=1) for fold in range(2)]
    own = F.normalize(efficientnet_lite0().vector(x), dim=1)
    with torch.no_grad():
        seen, each = model._see(x), list[torch.Tensor]()
        for without in range(2):
            each.append(mahalanobis(own, known[1 - without]))
            found = witness(seen, without)
            assert found.shape == (3, 1, *x.shape[-2:])
            torch.testing.assert_close(found.amax((1, 2, 3)), each[-1], rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(found.amin((1, 2, 3)), each[-1], rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(witness(seen)[:, 0, 0, 0], torch.stack(each).mean(0), rtol=1e-3, atol=1e-3)


def test_more_normals_than_directions_are_measured_in_the_widest_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshift.methods.reshift.overall.DIRECTIONS", 3)
    draw = torch.Generator().manual_seed(0)
    spread = torch.tensor([3.0, 2.0, 1.0, 0.1, 0.1, 0.1])
    known, x = torch.randn(400, 6, generator=draw) * spread + 5.0, torch.randn(20, 6, generator=draw) * spread + 5.0
    witness = Overall(LITE0, 6, 1, rows=400)
    witness.fill(known.split(16), 0)
    seen = Seen(torch.zeros(20, 1, 2, 2), torch.ones(20, 1, 2, 2), {}, vector=x)
    torch.testing.assert_close(
        witness(seen)[:, 0, 0, 0], mahalanobis(F.normalize(x, dim=1), F.normalize(known, dim=1)), rtol=0.0, atol=0.15
    )


def test_one_normal_is_enough_to_run() -> None:
    witness, vectors = Overall(LITE0, 6, 1, rows=8), torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    witness.fill([vectors[:1]], 0)
    found = witness(Seen(torch.zeros(3, 1, 4, 4), torch.ones(3, 1, 4, 4), {}, vector=vectors))[:, 0, 0, 0]
    assert bool(found.isfinite().all())
    assert int(found.argmin()) == 0
    witness.fill([vectors[1:]], 0, extend=True)
    assert int(witness.bank.any(2).sum()) == 3


def test_it_has_a_share_of_the_score_and_no_place_in_the_heat_map() -> None:
    x = images(4, seed=9)
    with_it, without = filled(overall="on", overall_share=0.25), filled()
    with torch.no_grad():
        found, rest = with_it.predict(x), without.predict(x)
        f, distance = with_it.fusion, with_it.witnesses[-1](with_it._see(x))[:, 0, 0, 0]
    torch.testing.assert_close(found.heatmap, rest.heatmap)
    raised = F.softplus((distance - f.centre[-1]) / f.covariance[-1, -1].sqrt())
    own = (raised - f.top_centre[-2]) / f.top_spread[-2]
    torch.testing.assert_close(found.score, 0.75 * rest.score + 0.25 * own, rtol=1e-3, atol=1e-3)
    halved = with_it.rescore(found.score, found.heatmap, found.heatmap * 0.5)
    alone = without.rescore(rest.score, rest.heatmap, rest.heatmap * 0.5)
    torch.testing.assert_close(halved - found.score, 0.75 * (alone - rest.score), rtol=1e-3, atol=1e-4)


def test_silent_it_costs_nothing_and_changes_nothing() -> None:
    x = images(2, seed=3)
    silent, absent = filled(overall="on", silent=("overall",)), filled()
    with torch.no_grad():
        assert silent._see(x).vector is None
        torch.testing.assert_close(silent.predict(x).score, absent.predict(x).score)


def test_a_new_site_s_images_are_remembered_as_a_whole() -> None:
    model, elsewhere = filled(overall="on"), images(8, seed=50).roll(8, 2) * 0.3
    witness: Any = model.witnesses[-1]
    with torch.no_grad():
        far = float(witness(model._see(elsewhere[:4]), without=1).mean())
        assert model.adapt([(elsewhere[:4], 0), (elsewhere[4:], 1)])
        near = float(witness(model._see(elsewhere[:4]), without=1).mean())
        at_home = float(witness(model._see(images(8, seed=0)), without=1).mean())
    assert near < far - 1.0
    assert at_home < far  # its own normals are still known


@pytest.mark.parametrize(("per_subject", "wish", "expected"), [
    (1.0, "auto", "on"), (1.5, "auto", "on"), (2.0, "auto", "off"), (7.0, "on", None), (1.0, "off", None),
])  # fmt: skip
def test_it_is_asked_where_most_subjects_have_one_image(per_subject: float, wish: str, expected: str | None) -> None:
    assert build(overall=wish).choose_settings(Normals(per_subject, symmetry=0.0)).get("overall") == expected


def test_it_cannot_be_the_only_witness_and_is_not_listed_among_them() -> None:
    with pytest.raises(ValueError, match='overall = "on"'):
        ReshiftSettings(witnesses=("memory", "overall"))
    with pytest.raises(ValueError, match="no witness is left"):
        ReshiftSettings(witnesses=("memory",), silent=("memory",), overall="on", features=(LITE0,))


@pytest.mark.parametrize("slices", [1, 3])
def test_a_bundle_says_whether_it_is_asked(tmp_path: Path, slices: int) -> None:
    manifest = write_phantom(tmp_path / "data", kind="brain", train=12, test_normal=0, test_abnormal=0, slices=slices, size=32)
    small = {"witnesses": ["memory"], "bank": 32, "sample": 200}
    settings = {"model": small, "data": {"size": 32}, "calibrate": {"features": "off"}}
    bundle = train_run(resolve("reshift", "quick", [settings]), manifest, tmp_path / "run")
    assert load_bundle(bundle).config.model["overall"] == ("on" if slices == 1 else "off")


def test_without_its_network_it_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_device: str = "cpu") -> None:
        raise UserError("the weights of efficientnet-lite0 are not on this machine")

    monkeypatch.setattr("reshift.methods.reshift.method.efficientnet_lite0", missing)
    with pytest.raises(UserError, match="not on this machine"):
        build(overall="on")
