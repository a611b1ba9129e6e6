"""Reshift: what its witnesses learn from, what each says, how they are fused, and what it does without features."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Cli
from small_reshift import LITE0, build, filled, images, step
from torch.nn import functional as F

from reshift.data.phantom import write_phantom
from reshift.methods.reshift import method as module
from reshift.methods.reshift import settings as reshift_settings
from reshift.methods.reshift.discriminator import Discriminator
from reshift.methods.reshift.fusion import top_mean
from reshift.methods.reshift.memory import Memory
from reshift.methods.reshift.settings import ReshiftSettings
from reshift.methods.reshift.shifts import Shifted, anatomy, shift
from reshift.nets.features import feature_net


def test_every_witness_is_a_stage_of_its_own() -> None:
    stages = build(sources=("offset", "restoration"), polarity="dark").stages()
    own = ["plain", f"featured {LITE0}", f"memory {LITE0}", "denoising", "tail"]
    assert [stage.name for stage in stages] == ["autoencoder", "restoration", *own]
    for witnesses in (
        ("plain", "featured", "denoising"),
        ("featured", "memory", "denoising"),
    ):  # without features, plain stands in
        assert [stage.name for stage in build(witnesses=witnesses, features="off").stages()] == ["plain", "denoising"]
    assert [stage.name for stage in build(witnesses=("memory",)).stages()] == [f"memory {LITE0}"]
    known = build().stages()[0].decided_by
    for change in ({"blur": 1.0}, {"silent": ("plain",)}, {"flips": False}, {"top": 0.5}, {"spreads": 2.0}):
        assert build(**change).stages()[0].decided_by == known
    assert build(sources=("offset",)).stages()[0].decided_by != known


def test_the_loss_of_a_discriminator_is_cross_entropy_inside_the_anatomy(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(features="off", marks=0.0, late_noise=0.0, folds=1, witnesses=("plain",), mirror=False)
    seen = list[Shifted]()

    def spy(*args: Any, **named: Any) -> Shifted:
        seen.append(shift(*args, **named))
        return seen[0]

    monkeypatch.setattr(module, "shift", spy)
    [stage] = model.stages()
    loss = stage.objectives[0].loss(images(), step())["loss"]
    image, target, inside = seen[0]
    net: Any = model.witnesses[0]
    errors = F.binary_cross_entropy_with_logits(net.nets.members[0](image), target, reduction="none")
    assert float(loss.detach()) == pytest.approx(float(errors[inside > 0].mean().detach()), rel=1e-5)


@pytest.mark.parametrize("kind", ["plain", "featured", "denoising"])
def test_a_loss_trains_every_network_of_its_own_witness_only(kind: str) -> None:
    model = build(sources=("offset", "restoration"))
    [stage] = [stage for stage in model.stages() if stage.name.split()[0] == kind]
    stage.objectives[0].loss(images(), step())["loss"].backward()
    moved = [name for name, p in model.named_parameters() if p.grad is not None and float(p.grad.abs().sum()) > 0]
    number = [str(witness.kind) for witness in model.witnesses].index(kind)
    assert {tuple(name.split(".")[:5]) for name in moved} == {("witnesses", str(number), "nets", "members", k) for k in "01"}


def test_normalisation_measures_unseen_normals_inside_the_anatomy() -> None:
    model, unseen = build(), images(6, seed=5)
    with torch.no_grad():
        model.fit_normalisation([(unseen[:4], None), (unseen[4:], None)])
        seen = model._see(unseen)
        rows = torch.stack([m[seen.inside > 0] for m in model._maps_of_witnesses(seen, None)])
    torch.testing.assert_close(model.fusion.centre, rows.mean(1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.fusion.covariance, torch.cov(rows, correction=0), rtol=1e-3, atol=1e-6)
    first = F.softplus((rows[0] - rows[0].mean()) / rows[0].std(correction=0))
    full = torch.zeros_like(seen.inside).masked_scatter(seen.inside > 0, first)
    tops = top_mean(full, 0.005)
    assert float(model.fusion.top_spread[0]) == pytest.approx(float(tops.std(correction=0)), rel=1e-2)


def test_over_those_normals_the_fused_map_has_mean_0_and_spread_1() -> None:
    model, unseen = filled(), torch.cat([images(6, seed=5), images(3, seed=6)])
    with torch.no_grad():
        heatmap = model.predict(unseen).heatmap
    tops = top_mean(heatmap, 0.005)
    assert float(model.fusion.top_centre[-1]) == pytest.approx(float(tops.mean()), rel=1e-2)
    assert float(model.fusion.top_spread[-1]) == pytest.approx(float(tops.std(correction=0)), rel=1e-2)
    fused = torch.log(torch.expm1(heatmap[anatomy(unseen)[:, 0] > 0].double()))  # softplus undone
    assert float(fused.mean()) == pytest.approx(0.0, abs=0.02)
    assert float(fused.std()) == pytest.approx(1.0, abs=0.02)
    assert model.pixel_threshold == pytest.approx(float(F.softplus(torch.tensor(3.0))))


def test_weights_count_in_the_heat_map_alone() -> None:
    heavy = build(weights={"memory": 2.0}).fusion
    assert heavy.weights.tolist() == pytest.approx([0.2, 0.2, 0.4, 0.2])
    assert torch.equal(heavy.score_weights, build().fusion.score_weights)
    assert not torch.equal(build(score_weights={"memory": 2.0}).fusion.score_weights, heavy.score_weights)
    usual = build(weights=ReshiftSettings().weights, witnesses=ReshiftSettings().witnesses).fusion
    assert usual.weights.tolist() == pytest.approx([4 / 6, 1 / 6, 1 / 6])


def test_kinds_have_equal_weight_and_the_score_averages_opinions_and_the_map_s_top() -> None:
    model, x = filled(top=0.1, polarity="bright"), images(1, seed=3)
    with torch.no_grad():
        found, seen = model.predict(x), model._see(x)
        maps = model._maps_of_witnesses(seen, None)
    f = model.fusion
    z = sum((m - c) / math.sqrt(float(v)) for m, c, v in zip(maps, f.centre, f.covariance.diagonal(), strict=True)) / len(maps)
    scale = torch.diag(1.0 / f.covariance.diagonal().sqrt()) / len(maps)
    spread = (scale @ f.covariance @ scale).sum().sqrt()
    expected = F.softplus(z / spread) * seen.inside
    torch.testing.assert_close(found.heatmap, expected[:, 0], rtol=1e-4, atol=1e-5)
    assert float(found.heatmap[:, :4].max()) == 0.0  # black above the head
    alone = [
        F.softplus((m - c) / v.sqrt()) * seen.inside for m, c, v in zip(maps, f.centre, f.covariance.diagonal(), strict=True)
    ]
    every = [*alone, expected]
    opinions = [float((top_mean(m, 0.1) - c) / s) for m, c, s in zip(every, f.top_centre, f.top_spread, strict=True)]
    whole = 0.5 * opinions[-1] + 0.5 * sum(opinions[:-1]) / len(maps)
    assert float(found.score) == pytest.approx(whole, rel=1e-4)
    after = found.heatmap * 0.5
    again = model.rescore(found.score, found.heatmap, after)
    lower = 0.5 * float(top_mean(expected, 0.1)) / float(f.top_spread[-1])
    assert float(again) == pytest.approx(float(found.score) - 0.5 * lower, rel=1e-4)


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_what_an_image_is_everywhere_counts_half_in_the_heat_map_and_not_in_the_score(share: float) -> None:
    model, x = filled(centring=share), images(2, seed=3)
    f = model.fusion
    with torch.no_grad():
        maps, inside = model.witness_maps(x)
        # So high that softplus is the identity: then one more spread everywhere is one more spread of the heat-map.
        far, farther = ([m + k * v.sqrt() for m, v in zip(maps, f.covariance.diagonal(), strict=True)] for k in (50.0, 60.0))
        (score, heatmap), (other_score, other_heatmap) = f(far, inside), f(farther, inside)
        more = (other_heatmap - heatmap)[inside[:, 0] > 0]
        scale = f.weights / f.covariance.diagonal().sqrt()
        spread = float((scale[:, None] * f.covariance * scale).sum().sqrt())
        assert float(more.mean()) == pytest.approx(10.0 / spread * (1.0 - share), rel=1e-4)
        assert float((other_score - score).abs().max()) < 1e-3 if share else float((other_score - score).min()) > 1.0
        torch.testing.assert_close(model.rescore(score, heatmap, other_heatmap), score if share else score + (
            f.score_weights[-1] * float(more.mean()) / f.top_spread[-1]), rtol=1e-4, atol=1e-3)  # fmt: skip


def test_one_hot_spot_counts_as_before() -> None:
    model = filled(centring=0.5)
    with torch.no_grad():
        maps, inside = model.witness_maps(images(1, seed=3))
        hotter = [m.clone() for m in maps]
        for m in hotter:
            m[..., 16:18, 16:18] += 5.0
        assert float(model.fusion(hotter, inside)[0]) > float(model.fusion(maps, inside)[0]) + 1.0


def test_a_silent_witness_changes_nothing_else() -> None:
    loud, silent, without = filled(), filled(silent=("denoising",)), filled(witnesses=("plain", "featured", "memory"))
    x = images(2, seed=3)
    with torch.no_grad():
        heard, left_out, absent = (model.predict(x) for model in (loud, silent, without))
    assert not torch.equal(heard.heatmap, left_out.heatmap)
    torch.testing.assert_close(left_out.score, absent.score)
    torch.testing.assert_close(left_out.heatmap, absent.heatmap)


def test_flips_make_the_trained_witnesses_symmetric() -> None:
    model, x = filled(features="off"), images(2)
    with torch.no_grad():
        torch.testing.assert_close(model.predict(x.flip(-1)).heatmap, model.predict(x).heatmap.flip(-1), rtol=1e-4, atol=1e-5)


def test_several_networks_share_the_weight_of_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "feature_net", lambda name, device: feature_net(name.removeprefix("second "), device))
    model = build(features=(LITE0, f"second {LITE0}"))
    assert [str(w.kind) for w in model.witnesses] == ["plain", "featured", "featured", "memory", "memory", "denoising"]
    assert model.fusion.weights.tolist() == [0.25, 0.125, 0.125, 0.125, 0.125, 0.25]
    silent = build(features=(LITE0, f"second {LITE0}"), silent=(LITE0,))  # one network's witnesses: their kinds keep their weight
    assert silent.fusion.weights.tolist() == [0.25, 0.0, 0.25, 0.0, 0.25, 0.25]
    silent.fit_normalisation([(images(6), None)])
    with torch.no_grad():
        seen = silent._see(images(2))
        said = [float(m.abs().max()) > 0 for m in silent._maps_of_witnesses(seen, None)]
    assert said == [True, False, True, False, True, True]
    assert model.feature_names == (LITE0, f"second {LITE0}")
    assert isinstance(model.witnesses[2], Discriminator)
    assert isinstance(model.witnesses[4], Memory)


def test_without_the_extra_it_trains_without_features_and_says_so(
    run_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reshift_settings, "available", lambda _name: False)
    data = write_phantom(tmp_path / "data", train=12, test_normal=2, test_abnormal=2, size=32)
    settings = ["steps=2", "denoising_steps=2", "folds=1", "widths=[8,8,8]", "denoising_widths=[8,8,8]"]
    given = [part for text in settings for part in ("--set", f"model.{text}")]
    done = run_cli("train", "--data", data, "--out", tmp_path / "run", "--method", "reshift", "--set", "data.size=32", *given)
    assert done.code == 0
    assert "pip install 'reshift[features]'" in done.err
    config = json.loads((tmp_path / "run" / "bundle" / "config.json").read_text())["config"]
    assert config["model"]["features"] == "off"
    out = tmp_path / "evaluation"
    assert run_cli("evaluate", tmp_path / "run" / "bundle", "--data", data, "--out", out).code == 0
    assert any("reshift[features]" in text for text in json.loads((out / "metrics.json").read_text())["warnings"])


def test_auto_takes_the_strong_networks_that_are_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, auto, embedded in (
        ({"tinyvit-sam", LITE0}, ("tinyvit-sam",), (LITE0,)),
        ({"tinyvit-sam", "dinov2-small", LITE0}, ("tinyvit-sam", "dinov2-small"), (LITE0,)),
        ({LITE0}, (LITE0,), (LITE0,)),
        (set(), "off", "off"),
    ):
        monkeypatch.setattr(reshift_settings, "available", there.__contains__)
        assert ReshiftSettings().features == auto
        assert ReshiftSettings(features="embedded").features == embedded


@pytest.mark.parametrize(("settings", "message"), [
    ({"sources": ()}, "sources .* at least one"),
    ({"sources": ("swap", "swap")}, "none twice"),
    ({"witnesses": ("plain", "plain")}, "none twice"),
    ({"witnesses": ("tail",)}, "needs polarity"),
    ({"witnesses": ("memory",), "features": "off"}, "no witness is left"),
    ({"silent": ("plain", "featured", "memory", "denoising")}, "no witness is left"),
    ({"silent": ("featurd",)}, "silent names 'featurd'.* did you mean 'featured'"),
    ({"silent": (LITE0,), "witnesses": ("featured", "memory")}, "no witness is left"),
    ({"smallest": 0.5}, "smallest 0.5 exceeds largest 0.35"),
    ({"denoising_grain": 4, "denoising_widths": (8, 8, 8, 8, 8)}, "not a multiple of 64"),
])  # fmt: skip
def test_inconsistent_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**settings)


def test_only_a_denoiser_or_the_paper_s_restorations_restore() -> None:
    """A memory and discriminators see lesions without restoring anything; a copy of the input would look like perfection."""
    x = images(2)
    for kinds, restores in ((("plain",), False), (("plain", "denoising"), True)):
        model = build(witnesses=kinds, features="off")
        assert model.restores is restores
        with torch.no_grad():
            found = model.pseudo_healthy(x)
        assert (found is not None) is restores
        assert found is None or (found.shape == x.shape and not torch.equal(found, x))
